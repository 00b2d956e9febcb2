/* SPDX-License-Identifier: MIT */
#include "hub_names.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli_options.h"

#define DEFAULT_QUANT "Q4_K_M"
#define MOST_PARTS    1000 /* no model has as many */

static bool ends_in(const char *text, const char *end)
{
    size_t size = strlen(text), n = strlen(end);
    return size >= n && strcasecmp(text + size - n, end) == 0;
}

static bool is_word(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (!isalnum((unsigned char)text[i]) && strchr("._-", text[i]) == NULL) {
            return false;
        }
    }
    return size > 0 && size <= 96 && text[0] != '.' && text[0] != '-';
}

int hub_name_parse(hub_name *name, const char *text)
{
    size_t owner = strcspn(text, "/");
    size_t size = strcspn(text, "@:");
    size_t end = strcspn(text, ":");
    const char *quant = text[end] == ':' ? text + end + 1 : "";
    *name = (hub_name){.repo = ""};
    snprintf(name->revision, sizeof name->revision, "%.*s", end > size ? (int)(end - size - 1) : 0,
             text + size + (end > size));
    bool valid =
        owner < size && is_word(text, owner) && is_word(text + owner + 1, size - owner - 1) &&
        size < HUB_REPO_SIZE && strstr(text, "..") == NULL && strlen(quant) < HUB_QUANT_SIZE &&
        end - size < HUB_REVISION_SIZE && (end == size || hub_is_revision(name->revision)) &&
        (text[end] == '\0' || hub_path_is_safe(quant));
    if (!valid) {
        return cli_fail(CLI_EXIT_USAGE,
                        "-hf must be OWNER/REPO, OWNER/REPO:QUANT or OWNER/REPO:FILE.gguf (a "
                        "revision: OWNER/REPO@REVISION), not '%.200s'",
                        text);
    }
    snprintf(name->repo, sizeof name->repo, "%.*s", (int)size, text);
    snprintf(name->shown, sizeof name->shown, "%.*s", (int)end, text);
    snprintf(name->quant, sizeof name->quant, "%s", quant);
    return CLI_EXIT_OK;
}

bool hub_path_is_safe(const char *path)
{
    size_t size = strlen(path);
    if (size == 0 || size >= HUB_QUANT_SIZE) {
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)path[i];
        if (c < 0x20 || c == 0x7F || c == '\\') {
            return false;
        }
    }
    for (const char *part = path;; part++) {
        size_t n = strcspn(part, "/");
        if (n == 0 || part[0] == '.') {
            return false; /* absolute, "//", ".", "..", hidden */
        }
        part += n;
        if (*part == '\0') {
            return true;
        }
    }
}

bool hub_is_revision(const char *text)
{
    static const char plain[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-+/";
    return strspn(text, plain) == strlen(text) && text[0] != '-' && hub_path_is_safe(text);
}

bool hub_is_hex(const char *text, size_t size)
{
    return strlen(text) == size && strspn(text, "0123456789abcdef") == size;
}

bool hub_files_add(hub_files *files, const char *path, uint64_t size, const char *sum)
{
    hub_file *list = realloc(files->list, (files->n + 1) * sizeof *list);
    if (list == NULL) {
        return false;
    }
    files->list = list;
    hub_file *file = &list[files->n];
    *file = (hub_file){.path = strdup(path), .size = size};
    snprintf(file->sum, sizeof file->sum, "%s", sum);
    files->n += file->path != NULL;
    return file->path != NULL;
}

void hub_files_free(hub_files *files)
{
    for (size_t i = 0; i < files->n; i++) {
        free(files->list[i].path);
    }
    free(files->list);
    *files = (hub_files){0};
}

/* Reads "-00002-of-00003.gguf": the part's number, and the number of parts; false: the file is no
 * part of a split model. */
static bool part_of(const char *path, unsigned *part, unsigned *n_parts, size_t *stem)
{
    static const char form[] = "-00001-of-00001.gguf";
    size_t size = strlen(path), n = sizeof form - 1;
    if (size <= n) {
        return false;
    }
    const char *end = path + size - n;
    for (size_t i = 0; i < n; i++) {
        if (isdigit((unsigned char)form[i]) ? !isdigit((unsigned char)end[i]) : end[i] != form[i]) {
            return false;
        }
    }
    *part = (unsigned)strtoul(end + 1, NULL, 10);
    *n_parts = (unsigned)strtoul(end + 10, NULL, 10);
    *stem = size - n;
    return true;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* Whether the file is a model, or its first part: not an image projector, importance matrix or
 * sidecar. */
static bool is_model(const char *path)
{
    unsigned part, n_parts;
    size_t stem;
    const char *base = base_of(path);
    return ends_in(path, ".gguf") && strstr(base, ".moe-") == NULL &&
           strcasestr(base, "mmproj") == NULL && strcasestr(base, "imatrix") == NULL &&
           (!part_of(path, &part, &n_parts, &stem) || part == 1);
}

/* Whether the path contains the quant as a whole word: not beside letters, digits or "_". */
static bool has_quant(const char *path, const char *quant)
{
    if (ends_in(quant, ".gguf")) {
        return strcmp(path, quant) == 0;
    }
    size_t n = strlen(quant);
    for (const char *at = path; (at = strcasestr(at, quant)) != NULL; at++) {
        bool begins = at == path || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
        if (begins && at[n] != '\0' && strchr("-./", at[n]) != NULL) {
            return true;
        }
    }
    return false;
}

/* Finds the file with the shortest path that contains the quant ("UD-Q4_K_M" contains "Q4_K_M",
 * too); NULL: none. */
static const hub_file *find_quant(const hub_files *all, const char *quant)
{
    const hub_file *found = NULL;
    for (size_t i = 0; i < all->n; i++) {
        const hub_file *file = &all->list[i];
        if (is_model(file->path) && has_quant(file->path, quant) &&
            (found == NULL || strlen(file->path) < strlen(found->path))) {
            found = file;
        }
    }
    return found;
}

size_t hub_files_next_model(const hub_files *files, size_t from)
{
    while (from < files->n && !is_model(files->list[from].path)) {
        from++;
    }
    return from;
}

static const hub_file *find_path(const hub_files *all, const char *path)
{
    for (size_t i = 0; i < all->n; i++) {
        if (strcmp(all->list[i].path, path) == 0) {
            return &all->list[i];
        }
    }
    return NULL;
}

bool hub_files_choose(hub_files *chosen, const hub_files *all, const hub_name *name)
{
    unsigned part = 1, n_parts = 1;
    size_t stem = 0;
    *chosen = (hub_files){0};
    memcpy(chosen->commit, all->commit, sizeof chosen->commit);
    const hub_file *first = find_quant(all, name->quant[0] != '\0' ? name->quant : DEFAULT_QUANT);
    if (first == NULL && name->quant[0] == '\0') {
        size_t i = hub_files_next_model(all, 0);
        first = i < all->n ? &all->list[i] : NULL;
    }
    if (first == NULL) {
        return true;
    }
    bool split = part_of(first->path, &part, &n_parts, &stem);
    for (unsigned i = 1; i <= n_parts && n_parts <= MOST_PARTS; i++) {
        char path[HUB_QUANT_SIZE];
        snprintf(path, sizeof path, "%.*s-%05u-of-%05u.gguf", (int)stem, first->path, i, n_parts);
        const hub_file *file = split ? find_path(all, path) : first;
        if (file == NULL) { /* a part is missing */
            hub_files_free(chosen);
            return true;
        }
        if (!hub_files_add(chosen, file->path, file->size, file->sum)) {
            return false;
        }
    }
    return true;
}

/* Whether the word is the name of a type: "Q4_K_M", "IQ2_XXS", "TQ1_0", "BF16", "MXFP4". */
static bool is_type(const char *word, size_t size)
{
    size_t letters = 0;
    while (letters < size && isalpha((unsigned char)word[letters])) {
        letters++;
    }
    static const char *const types[] = {"Q", "IQ", "TQ", "F", "BF", "MXFP", "NVFP"};
    for (size_t i = 0; letters < size && i < sizeof types / sizeof types[0]; i++) {
        if (strlen(types[i]) == letters && strncasecmp(types[i], word, letters) == 0) {
            return isdigit((unsigned char)word[letters]) != 0;
        }
    }
    return false;
}

void hub_quant_of(const char *path, char out[HUB_QUANT_SIZE])
{
    const char *before = NULL; /* "UD-" */
    snprintf(out, HUB_QUANT_SIZE, "%s", path);
    for (const char *word = base_of(path); *word != '\0';) {
        size_t size = strcspn(word, "-.");
        if (is_type(word, size)) {
            const char *from = before != NULL ? before : word;
            snprintf(out, HUB_QUANT_SIZE, "%.*s", (int)(word + size - from), from);
            for (char *c = out; *c != '\0'; c++) {
                *c = (char)toupper((unsigned char)*c);
            }
        }
        before = size == 2 && strncasecmp(word, "UD", 2) == 0 ? word : NULL;
        word += size;
        word += *word != '\0';
    }
}

void hub_files_quants(const hub_files *files, char *out, size_t size)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = hub_files_next_model(files, 0); i < files->n && n + 1 < size;
         i = hub_files_next_model(files, i + 1)) {
        char quant[HUB_QUANT_SIZE];
        hub_quant_of(files->list[i].path, quant);
        int more = snprintf(out + n, size - n, "%s%s", n > 0 ? ", " : "", quant);
        n += more > 0 ? (size_t)more : 0;
    }
}
