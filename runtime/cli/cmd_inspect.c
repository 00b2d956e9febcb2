/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/model_file.h>
#include <moe/moe.h>

#include "cli_engine.h"
#include "cli_format.h"
#include "cli_json.h"
#include "commands.h"

/* A value fits one line of a terminal; with --all, there is room for every array. */
#define SHORT_VALUE_SIZE 81
#define LONG_VALUE_SIZE  (64u << 20)
#define MAX_TYPES        64

/* Bytes and tensors of one pair of kind and type. */
typedef struct tally {
    moe_tensor_kind kind;
    const char *type;
    uint64_t n_tensors;
    uint64_t n_bytes;
} tally;

typedef struct tally_table {
    tally rows[MOE_KIND_COUNT * MAX_TYPES];
    size_t n_rows;
} tally_table;

static void count_tensor(tally_table *table, const moe_file_tensor *tensor)
{
    size_t i = 0;
    while (i < table->n_rows && (table->rows[i].kind != tensor->kind ||
                                 strcmp(table->rows[i].type, tensor->type) != 0)) {
        i++;
    }
    if (i == table->n_rows) {
        if (i == sizeof table->rows / sizeof table->rows[0]) {
            return;
        }
        table->rows[table->n_rows++] = (tally){tensor->kind, tensor->type, 0, 0};
    }
    table->rows[i].n_tensors++;
    table->rows[i].n_bytes += tensor->n_bytes;
}

static int compare_tallies(const void *left, const void *right)
{
    const tally *a = left;
    const tally *b = right;
    if (a->kind != b->kind) {
        return a->kind < b->kind ? -1 : 1;
    }
    return a->n_bytes > b->n_bytes ? -1 : a->n_bytes < b->n_bytes;
}

static void count_tensors(tally_table *table, const moe_file *file, uint64_t n)
{
    table->n_rows = 0;
    for (uint64_t i = 0; i < n; i++) {
        moe_file_tensor tensor = {.struct_size = sizeof tensor};
        if (moe_file_get_tensor(file, i, &tensor) == MOE_OK) {
            count_tensor(table, &tensor);
        }
    }
    qsort(table->rows, table->n_rows, sizeof table->rows[0], compare_tallies);
}

static void print_geometry(const moe_file_summary *s)
{
    char a[CLI_FORMAT_SIZE];
    char b[CLI_FORMAT_SIZE];
    if (!s->runnable) {
        printf("runnable:     no: %s\n", s->why_not);
        if (s->expert_bytes > 0) {
            printf("experts:      %u a layer, %u used; all %s; other weights %s\n", s->n_expert,
                   s->n_expert_used, cli_format_bytes(a, s->expert_bytes),
                   cli_format_bytes(b, s->resident_bytes));
        }
        return;
    }
    printf("runnable:     yes, as %s\n", s->family);
    printf("parameters:   %s, %s active for a token\n", cli_format_count(a, s->n_parameters),
           cli_format_count(b, s->n_parameters_active));
    printf("layers:       %u, of which %u with experts\n", s->n_layer, s->n_layer_moe);
    printf("experts:      %u a layer, %u used; feed-forward %u", s->n_expert, s->n_expert_used,
           s->n_ff_expert);
    if (s->n_ff_shared > 0) {
        printf(", shared %u", s->n_ff_shared);
    }
    printf("\nexpert size:  %s", cli_format_bytes(a, s->smallest_expert_bytes));
    if (s->largest_expert_bytes != s->smallest_expert_bytes) {
        printf(" to %s", cli_format_bytes(a, s->largest_expert_bytes));
    }
    printf("; all %s; resident weights %s\n", cli_format_bytes(a, s->expert_bytes),
           cli_format_bytes(b, s->resident_bytes));
    if (s->row_table_bytes > 0) {
        printf("row table:    %s, of which a token reads %" PRIu64 " rows of %" PRIu64
               " bytes from the disk\n",
               cli_format_bytes(a, s->row_table_bytes), s->token_rows, s->row_bytes);
    }
    printf("attention:    %u heads, %u for keys and values; KV cache %s a token (f16)", s->n_head,
           s->n_head_kv, cli_format_bytes(a, s->kv_bytes_per_token_f16));
    if (s->kv_windowed_per_token_f16 > 0) {
        printf(", of which %s are freed behind a window of %" PRIu64,
               cli_format_bytes(a, s->kv_windowed_per_token_f16), s->attention_window);
    }
    printf("\n");
    if (s->n_layer_recurrent > 0) {
        printf("recurrent:    %" PRIu64 " layers, by a %s; a state of %s, of any length\n",
               s->n_layer_recurrent, s->recurrence, cli_format_bytes(a, s->state_bytes));
    }
    printf("embedding:    %u; vocabulary %u; context %u\n", s->n_embd, s->n_vocab,
           s->context_train);
}

/* Prints keys that the engine does not support, or does not know. */
static void print_doubtful_keys(const moe_file *file, uint64_t n, char *value, size_t size)
{
    for (uint64_t i = 0; i < n; i++) {
        const char *key;
        const char *why;
        char type[48];
        moe_metadata_use use;
        if (moe_file_get_metadata_use(file, i, &use, &why) != MOE_OK ||
            (use != MOE_METADATA_REFUSED && use != MOE_METADATA_UNKNOWN) ||
            moe_file_get_metadata(file, i, &key, type, sizeof type, value, size) != MOE_OK) {
            continue;
        }
        if (use == MOE_METADATA_UNKNOWN) {
            printf("unknown key:  %s = %s; the text may differ\n", key, value);
        } else {
            printf("refused key:  %s = %s (%s)\n", key, value, why);
        }
    }
}

static void print_tally(const tally_table *table)
{
    char size[CLI_FORMAT_SIZE];
    printf("\n%-20s%-9s%10s%13s\n", "tensors", "type", "number", "size");
    for (size_t i = 0; i < table->n_rows; i++) {
        const tally *row = &table->rows[i];
        printf("%-20s%-9s%10" PRIu64 "%13s\n", moe_tensor_kind_name(row->kind), row->type,
               row->n_tensors, cli_format_bytes(size, row->n_bytes));
    }
}

static void print_metadata(const moe_file *file, uint64_t n, char *value, size_t size)
{
    puts("\nmetadata");
    for (uint64_t i = 0; i < n; i++) {
        const char *key;
        char type[48];
        if (moe_file_get_metadata(file, i, &key, type, sizeof type, value, size) == MOE_OK) {
            printf("%-42s %-14s %s\n", key, type, value);
        }
    }
}

static void print_tensors(const moe_file *file, uint64_t n)
{
    puts("\nevery tensor");
    for (uint64_t i = 0; i < n; i++) {
        moe_file_tensor t = {.struct_size = sizeof t};
        if (moe_file_get_tensor(file, i, &t) != MOE_OK) {
            continue;
        }
        printf("%-36s %-8s [%" PRIu64, t.name, t.type, t.dims[0]);
        for (uint32_t d = 1; d < t.n_dims; d++) {
            printf(", %" PRIu64, t.dims[d]);
        }
        printf("] %" PRIu64 " bytes at %" PRIu64 " of file %u\n", t.n_bytes, t.offset,
               t.file_index + 1);
    }
}

static void print_readable(const moe_file *file, const cli_options *options, char *value,
                           size_t value_size)
{
    moe_file_summary s = {.struct_size = sizeof s};
    tally_table table;
    char size[CLI_FORMAT_SIZE];
    moe_file_get_summary(file, &s);
    count_tensors(&table, file, s.n_tensors);
    printf("file:         %s\n", options->model);
    printf("format:       GGUF v%u, %u file%s, %s\n", s.gguf_version, s.n_files,
           s.n_files == 1 ? "" : "s", cli_format_bytes(size, s.file_bytes));
    printf("architecture: %s\n", s.architecture);
    print_geometry(&s);
    print_doubtful_keys(file, s.n_metadata, value, value_size);
    print_tally(&table);
    print_metadata(file, s.n_metadata, value, value_size);
    if (options->all) {
        print_tensors(file, s.n_tensors);
    }
}

static struct json_object *tally_json(const tally_table *table)
{
    struct json_object *list = json_object_new_array();
    for (size_t i = 0; i < table->n_rows; i++) {
        struct json_object *row = json_object_new_object();
        cli_json_text(row, "kind", moe_tensor_kind_name(table->rows[i].kind));
        cli_json_text(row, "type", table->rows[i].type);
        cli_json_u64(row, "tensors", table->rows[i].n_tensors);
        cli_json_u64(row, "bytes", table->rows[i].n_bytes);
        cli_json_append(list, row);
    }
    return list;
}

static void put_use_json(struct json_object *entry, const moe_file *file, uint64_t index)
{
    static const char *const names[] = {
        [MOE_METADATA_OTHER] = "other",       [MOE_METADATA_READ] = "read",
        [MOE_METADATA_HARMLESS] = "harmless", [MOE_METADATA_REFUSED] = "refused",
        [MOE_METADATA_UNKNOWN] = "unknown",
    };
    const char *why;
    moe_metadata_use use;
    if (moe_file_get_metadata_use(file, index, &use, &why) == MOE_OK) {
        cli_json_text(entry, "use", names[use]);
        if (why[0] != '\0') {
            cli_json_text(entry, "about", why);
        }
    }
}

static struct json_object *metadata_json(const moe_file *file, uint64_t n, char *value,
                                         size_t value_size)
{
    struct json_object *object = json_object_new_object();
    for (uint64_t i = 0; i < n; i++) {
        const char *key;
        char type[48];
        if (moe_file_get_metadata(file, i, &key, type, sizeof type, value, value_size) == MOE_OK) {
            struct json_object *entry = json_object_new_object();
            cli_json_text(entry, "type", type);
            cli_json_text(entry, "value", value);
            put_use_json(entry, file, i);
            cli_json_put(object, key, entry);
        }
    }
    return object;
}

static struct json_object *tensors_json(const moe_file *file, uint64_t n)
{
    struct json_object *list = json_object_new_array();
    for (uint64_t i = 0; i < n; i++) {
        moe_file_tensor t = {.struct_size = sizeof t};
        if (moe_file_get_tensor(file, i, &t) != MOE_OK) {
            continue;
        }
        struct json_object *tensor = json_object_new_object();
        struct json_object *dims = json_object_new_array();
        for (uint32_t d = 0; d < t.n_dims; d++) {
            cli_json_append(dims, json_object_new_uint64(t.dims[d]));
        }
        cli_json_text(tensor, "name", t.name);
        cli_json_text(tensor, "type", t.type);
        cli_json_text(tensor, "kind", moe_tensor_kind_name(t.kind));
        cli_json_put(tensor, "dims", dims);
        cli_json_u64(tensor, "bytes", t.n_bytes);
        cli_json_u64(tensor, "offset", t.offset);
        cli_json_u64(tensor, "file_index", t.file_index);
        cli_json_append(list, tensor);
    }
    return list;
}

static void put_geometry_json(struct json_object *object, const moe_file_summary *s)
{
    cli_json_put(object, "runnable", json_object_new_boolean(s->runnable));
    if (!s->runnable) {
        cli_json_text(object, "why_not", s->why_not);
        return;
    }
    cli_json_text(object, "family", s->family);
    cli_json_u64(object, "n_parameters", s->n_parameters);
    cli_json_u64(object, "n_parameters_active", s->n_parameters_active);
    cli_json_u64(object, "n_layer", s->n_layer);
    cli_json_u64(object, "n_layer_moe", s->n_layer_moe);
    cli_json_u64(object, "n_embd", s->n_embd);
    cli_json_u64(object, "n_vocab", s->n_vocab);
    cli_json_u64(object, "n_head", s->n_head);
    cli_json_u64(object, "n_head_kv", s->n_head_kv);
    cli_json_u64(object, "context_train", s->context_train);
    cli_json_u64(object, "n_expert", s->n_expert);
    cli_json_u64(object, "n_expert_used", s->n_expert_used);
    cli_json_u64(object, "n_ff_expert", s->n_ff_expert);
    cli_json_u64(object, "n_ff_shared", s->n_ff_shared);
    cli_json_u64(object, "resident_bytes", s->resident_bytes);
    cli_json_u64(object, "expert_bytes", s->expert_bytes);
    cli_json_u64(object, "smallest_expert_bytes", s->smallest_expert_bytes);
    cli_json_u64(object, "largest_expert_bytes", s->largest_expert_bytes);
    cli_json_u64(object, "kv_bytes_per_token_f16", s->kv_bytes_per_token_f16);
    cli_json_u64(object, "n_layer_recurrent", s->n_layer_recurrent);
    cli_json_text(object, "recurrence", s->recurrence);
    cli_json_u64(object, "state_bytes", s->state_bytes);
    cli_json_u64(object, "kv_windowed_per_token_f16", s->kv_windowed_per_token_f16);
    cli_json_u64(object, "attention_window", s->attention_window);
    cli_json_u64(object, "row_table_bytes", s->row_table_bytes);
    cli_json_u64(object, "token_rows", s->token_rows);
    cli_json_u64(object, "row_bytes", s->row_bytes);
}

static int print_json(const moe_file *file, const cli_options *options, char *value,
                      size_t value_size)
{
    moe_file_summary s = {.struct_size = sizeof s};
    tally_table table;
    moe_file_get_summary(file, &s);
    count_tensors(&table, file, s.n_tensors);
    struct json_object *object = json_object_new_object();
    cli_json_u64(object, "gguf_version", s.gguf_version);
    cli_json_u64(object, "n_files", s.n_files);
    cli_json_u64(object, "file_bytes", s.file_bytes);
    cli_json_u64(object, "n_tensors", s.n_tensors);
    cli_json_text(object, "architecture", s.architecture);
    put_geometry_json(object, &s);
    cli_json_put(object, "by_kind", tally_json(&table));
    cli_json_put(object, "metadata", metadata_json(file, s.n_metadata, value, value_size));
    if (options->all) {
        cli_json_put(object, "tensors", tensors_json(file, s.n_tensors));
    }
    return cli_json_print(object, stdout);
}

static int print_program(const moe_file *file, const char *which)
{
    char *text;
    char *end;
    moe_error err = {""};
    bool all = strcmp(which, "all") == 0;
    unsigned long layer = all ? UINT32_MAX : strtoul(which, &end, 10);
    if (!all && (which[0] < '0' || which[0] > '9' || *end != '\0' || layer >= UINT32_MAX)) {
        return cli_fail(CLI_EXIT_USAGE, "--program must be all or the number of a layer, not '%s'",
                        which);
    }
    int status = moe_file_get_program(file, (uint32_t)layer, &text, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    fputs(text, stdout);
    moe_free(text);
    return CLI_EXIT_OK;
}

int cmd_inspect(const cli_options *options)
{
    moe_file *file = NULL;
    moe_error err = {""};
    int status = moe_file_open(&file, options->model, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    int code = CLI_EXIT_OK;
    size_t value_size = options->all ? LONG_VALUE_SIZE : SHORT_VALUE_SIZE;
    char *value = malloc(value_size);
    if (value == NULL) {
        code = cli_fail(CLI_EXIT_FAILURE, "out of memory for the metadata");
    } else if (options->program != NULL) {
        code = print_program(file, options->program);
    } else if (options->json) {
        code = print_json(file, options, value, value_size);
    } else {
        print_readable(file, options, value, value_size);
    }
    moe_file_summary summary = {.struct_size = sizeof summary};
    moe_file_get_summary(file, &summary);
    if (code == CLI_EXIT_OK && options->check && !summary.runnable) {
        code = cli_fail(CLI_EXIT_FAILURE, "this file cannot be run: %s", summary.why_not);
    }
    free(value);
    moe_file_close(&file);
    return code;
}
