/* SPDX-License-Identifier: MIT */
/* Writes the tables of README's "What runs" from the code and from the oracles of the tests, and
 * compares them with the text between the two marks of the README. Usage: what_runs SOURCE_FOLDER
 * [--write]. Exits 1 when they differ, or when a row has no oracle */
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/cpu_device.h"
#include "cuda/cuda_forms.h"
#include "runtime/base/dtype.h"
#include "runtime/model/chat_template_table.h"
#include "runtime/families/families.h"
#include "runtime/families/families_missing.h"
#include "runtime/model/gguf.h"
#include "runtime/model/pretokenizer_rows.h"
#include "runtime/program/op_forms.h"
#include "tests/tokenizer/split_names.h"

#define BEGIN       "<!-- what runs: written by tests/docs/what_runs.c (--write) -->\n"
#define END         "<!-- end of what runs -->\n"
#define MAX_ORACLES 512
#define NAME_ROOM   64

typedef struct oracle {
    char folder[NAME_ROOM]; /* below tests/oracle */
    char architecture[NAME_ROOM];
    uint64_t forms; /* of its program's operations */
    bool recorded;  /* whether a GPU can record whole passes of it */
} oracle;

/* Families that transformers has no class for; theirs is another package, or the description in
 * this file. */
static const struct {
    const char *architecture, *reference;
} described[] = {
    {"deepseek", "deepseek_moe.py"},   {"bailingmoe", "bailing_moe.py"},
    {"bailingmoe2", "bailing_moe.py"}, {"smallthinker", "plain_moe.py"},
    {"grok", "plain_moe.py"},          {"arctic", "plain_moe.py"},
    {"maple", "plain_moe.py"},         {"kimi-k3", "mlx-lm"},
};

static const char *source;
static oracle oracles[MAX_ORACLES];
static size_t n_oracles;
static size_t n_without; /* rows without an oracle */
static uint64_t cpu_forms;

static void ask_cpu(void)
{
    moe_team *team;
    moe_device *cpu;
    if (moe_team_create(&team, 1, NULL) != MOE_OK) {
        exit(2);
    }
    const moe_cpu_device_options options = {.team = team};
    if (moe_cpu_device_open(&cpu, &options, NULL) != MOE_OK) {
        exit(2);
    }
    cpu_forms = cpu->forms;
    cpu->ops->close(cpu);
    moe_team_destroy(&team);
}

static int by_folder(const void *a, const void *b)
{
    return strcmp(((const oracle *)a)->folder, ((const oracle *)b)->folder);
}

static void read_program(oracle *o, const moe_gguf *gguf)
{
    static moe_model_config config;
    const moe_recording_ops recording = {.forms = MOE_CUDA_RECORDED_FORMS};
    const moe_device gpu = {.recording = &recording, .forms = MOE_CUDA_FORMS};
    moe_tensor_map map;
    moe_program program;
    moe_error err = {""};
    if (moe_model_config_read(&config, gguf, &err) != MOE_OK ||
        moe_program_build(&program, &map, &config, gguf, &err) != MOE_OK) {
        fprintf(stderr, "%s: %s\n", o->folder, err.message);
        exit(2);
    }
    for (uint32_t i = 0; i < program.n_ops; i++) {
        o->forms |= program.ops[i].forms;
    }
    o->recorded = moe_program_is_recordable(&program, &gpu);
    moe_program_free(&program);
    moe_tensor_map_free(&map);
}

static void note_oracle(const char *folder)
{
    char path[4096];
    moe_gguf *gguf = NULL;
    moe_string_view name = {0};
    snprintf(path, sizeof path, "%s/tests/oracle/%s/0.logits.npy", source, folder);
    if (strlen(folder) >= NAME_ROOM || n_oracles == MAX_ORACLES || access(path, R_OK) != 0) {
        return;
    }
    snprintf(path, sizeof path, "%s/tests/oracle/%s/model.gguf", source, folder);
    if (moe_gguf_open(&gguf, path, NULL) != MOE_OK) {
        return;
    }
    if (moe_gguf_get_string(gguf, "general.architecture", &name, NULL) == MOE_OK &&
        name.size < NAME_ROOM) {
        oracle *o = &oracles[n_oracles++];
        strcpy(o->folder, folder);
        memcpy(o->architecture, name.data, name.size);
        read_program(o, gguf);
    }
    moe_gguf_close(&gguf);
}

static void find_oracles(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/oracle", source);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        note_oracle(entry->d_name);
    }
    if (folder != NULL) {
        closedir(folder);
    }
    qsort(oracles, n_oracles, sizeof oracles[0], by_folder);
}

static const char *reference_of(const char *architecture)
{
    for (size_t i = 0; i < sizeof described / sizeof described[0]; i++) {
        if (strcmp(described[i].architecture, architecture) == 0) {
            return described[i].reference;
        }
    }
    return "transformers";
}

static void write_lacking(FILE *out, uint64_t lacking)
{
    size_t n = 0;
    fputs(lacking == 0 ? "yes" : "no ", out);
    for (int form = 0; form < MOE_FORMS; form++) {
        if ((lacking & MOE_FORM_BIT(form)) != 0) {
            fprintf(out, "%s%s", n++ == 0 ? "" : ", ", moe_form_name((moe_form)form));
        }
    }
}

/* What devices list, and what the programs of the family's oracles need. */
static void write_devices(FILE *out, const char *architecture)
{
    uint64_t needs = 0;
    bool recorded = true;
    for (size_t o = 0; o < n_oracles; o++) {
        if (strcmp(oracles[o].architecture, architecture) == 0) {
            needs |= oracles[o].forms;
            recorded = recorded && oracles[o].recorded;
        }
    }
    write_lacking(out, needs & ~cpu_forms);
    fputs(" | ", out);
    write_lacking(out, needs & ~MOE_CUDA_FORMS);
    fprintf(out, "%s | ", (needs & ~MOE_CUDA_FORMS) == 0 && recorded ? ", recorded" : "");
}

static void write_architectures(FILE *out)
{
    fprintf(out, "| architecture | models | CPU | GPU | logits and tokens of tiny models equal "
                 "those of |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < moe_family_count(); i++) {
        const moe_family *family = moe_family_at(i);
        size_t n = 0;
        fprintf(out, "| `%s` | %s | ", family->architecture, family->name);
        write_devices(out, family->architecture);
        fprintf(out, "%s:", reference_of(family->architecture));
        for (size_t o = 0; o < n_oracles; o++) {
            if (strcmp(oracles[o].architecture, family->architecture) == 0) {
                fprintf(out, "%s %s", n++ == 0 ? "" : ",", oracles[o].folder);
            }
        }
        n_without += n == 0;
        fprintf(out, "%s |\n", n == 0 ? " **none**" : "");
    }
}

static void write_missing(FILE *out)
{
    fprintf(out, "\n| refused by name | models | it would need |\n|---|---|---|\n");
    for (size_t i = 0; i < moe_missing_family_count(); i++) {
        const moe_missing_family *missing = moe_missing_family_at(i);
        fprintf(out, "| `%s` | %s | %s |\n", missing->architecture, missing->name,
                missing->missing);
    }
}

/* `expected` types have blocks with the reference's values, or none: floats are values. */
static void write_types(FILE *out, bool cpu_only, const char *values_by)
{
    size_t n = 0;
    char names[1024] = "";
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        const moe_dtype_info *info = moe_dtype_info_of(type);
        char path[4096];
        if (info == NULL || info->cpu_only != cpu_only) {
            continue;
        }
        snprintf(path, sizeof path, "%s/tests/oracle/quants/%s.f32", source, info->name);
        bool held = type == MOE_DTYPE_F32 || access(path, R_OK) == 0;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s%s", n++ == 0 ? "" : ", ", info->name,
                 held ? "" : " (**no oracle**)");
        n_without += !held;
    }
    fprintf(out, "| types%s | %zu | %s | %s, bit by bit |\n", cpu_only ? ", on the CPU" : "", n,
            names, values_by);
}

static bool same_patterns(const moe_pretokenizer *a, const moe_pretokenizer *b)
{
    for (size_t i = 0; i < MOE_PRETOKENIZER_MAX_PATTERNS; i++) {
        const char *x = a->patterns[i];
        const char *y = b->patterns[i];
        if ((x == NULL) != (y == NULL) || (x != NULL && strcmp(x, y) != 0)) {
            return false;
        }
    }
    return true;
}

/* Whether cases/ holds what BPE of characters makes of the strings. */
static bool has_ids(const moe_pretokenizer *row)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/tokenizer/cases/%.*s.ids", source,
             (int)strcspn(row->names, " "), row->names);
    return access(path, R_OK) == 0;
}

/* Whether cases/splits.bin holds what this expression splits. */
static bool is_split(const moe_pretokenizer *row)
{
    if (row->by_characters) {
        return has_ids(row);
    }
    for (size_t i = 0; i < N_SPLITTERS; i++) {
        const moe_pretokenizer *held = moe_pretokenizer_find(splitters[i], strlen(splitters[i]));
        if (held != NULL && same_patterns(row, held)) {
            return true;
        }
    }
    return false;
}

static void write_pretokenizers(FILE *out)
{
    size_t n_names = 0;
    for (size_t i = 0; i < moe_pretokenizer_n_rows; i++) {
        n_names++;
        for (const char *c = moe_pretokenizer_rows[i].names; *c != '\0'; c++) {
            n_names += *c == ' ';
        }
    }
    fprintf(out, "| pre-tokenizers | %zu names of %zu expressions | ", n_names,
            moe_pretokenizer_n_rows);
    for (size_t i = 0; i < moe_pretokenizer_n_rows; i++) {
        bool held = is_split(&moe_pretokenizer_rows[i]);
        fprintf(out, "%s%s%s", i == 0 ? "" : " · ", moe_pretokenizer_rows[i].names,
                held ? "" : " (**no oracle**)");
        n_without += !held;
    }
    fprintf(out, " | `tokenizers`, split by split, and where characters merge, token by token |\n");
}

static size_t count_files(const char *folder, const char *ending)
{
    char path[4096];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/%s", source, folder);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        size_t size = strlen(entry->d_name);
        n += size > strlen(ending) && strcmp(entry->d_name + size - strlen(ending), ending) == 0;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return n;
}

static void write_templates(FILE *out)
{
    size_t n = count_files("tests/template/templates", ".jinja");
    n_without += n == 0;
    fprintf(out,
            "| chat templates | | an interpreter of Jinja | `jinja2`, byte by byte, on %zu "
            "templates in the tests |\n",
            n);
    fprintf(out, "| chat templates by name | %zu | ", moe_n_known_templates);
    for (size_t i = 0; i < moe_n_known_templates; i++) {
        fprintf(out, "%s%s", i == 0 ? "" : ", ", moe_known_templates[i].name);
    }
    fprintf(out, " | `jinja2` |\n");
}

static char *read_whole(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    if (file == NULL || text == NULL || fread(text, 1, (1 << 20) - 1, file) == 0) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(2);
    }
    fclose(file);
    return text;
}

/* The README with the tables put between its marks. */
static char *with_tables(const char *readme, const char *tables)
{
    const char *begin = strstr(readme, BEGIN);
    const char *end = strstr(readme, END);
    if (begin == NULL || end == NULL || end < begin) {
        fprintf(stderr, "README.md lacks the marks %s and %s", BEGIN, END);
        exit(2);
    }
    begin += strlen(BEGIN);
    char *text = calloc(1, strlen(readme) + strlen(tables) + 1);
    if (text == NULL) {
        exit(2);
    }
    memcpy(text, readme, (size_t)(begin - readme));
    strcat(text, tables);
    strcat(text, end);
    return text;
}

int main(int argc, char **argv)
{
    char path[4096];
    char *tables = NULL;
    size_t size = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: what_runs SOURCE_FOLDER [--write]\n");
        return 2;
    }
    source = argv[1];
    ask_cpu();
    find_oracles();
    FILE *out = open_memstream(&tables, &size);
    if (out == NULL) {
        return 2;
    }
    write_architectures(out);
    write_missing(out);
    fprintf(out, "\n| | how many | which | equal to |\n|---|---|---|---|\n");
    write_types(out, false, "the `gguf` package's dequantisation");
    write_types(out, true, "`make_shifted.py`, which decodes them by bit streams");
    write_pretokenizers(out);
    write_templates(out);
    fclose(out);
    snprintf(path, sizeof path, "%s/README.md", source);
    char *readme = read_whole(path);
    char *expected = with_tables(readme, tables);
    bool same = strcmp(readme, expected) == 0;
    if (!same && argc > 2 && strcmp(argv[2], "--write") == 0) {
        FILE *file = fopen(path, "wb");
        same = file != NULL && fputs(expected, file) >= 0 && fclose(file) == 0;
    }
    if (!same) {
        fprintf(stderr,
                "README.md, \"What runs\", is not what the code says; write it with\n"
                "  what_runs %s --write\nThe tables should be\n\n%s",
                source, tables);
    }
    if (n_without > 0) {
        fprintf(stderr, "%zu rows have no oracle\n", n_without);
    }
    free(expected);
    free(readme);
    free(tables);
    return same && n_without == 0 ? 0 : 1;
}
