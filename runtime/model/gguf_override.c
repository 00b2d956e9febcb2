/* SPDX-License-Identifier: MIT */
/* Metadata that the caller gives in place of the file's: "KEY=TYPE:VALUE", several with commas
 * between. TYPE is int, float, bool or str. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/model/gguf_internal.h"

static const char *const types[] = {"int:", "float:", "bool:", "str:"};
#define N_TYPES (sizeof types / sizeof types[0])

/* Where the type begins of an override that begins at text; NULL if none begins there. */
static char *find_type(char *text)
{
    char *equals = text + strcspn(text, ",=");
    for (size_t i = 0; *equals == '=' && i < N_TYPES; i++) {
        if (strncmp(equals + 1, types[i], strlen(types[i])) == 0) {
            return equals + 1;
        }
    }
    return NULL;
}

/* Finds the comma behind the override at text, or its end. A comma belongs to a string unless
 * another override follows it. */
static char *find_end(char *text)
{
    char *end = strchr(text, ',');
    while (end != NULL && find_type(end + 1) == NULL) {
        end = strchr(end + 1, ',');
    }
    return end != NULL ? end : text + strlen(text);
}

static bool read_value(const char *type, char *value, moe_gguf_kv *kv)
{
    char *end = value;
    errno = 0;
    if (strncmp(type, "str:", 4) == 0) {
        kv->type = MOE_GGUF_STRING;
        kv->value.string = (moe_string_view){value, strlen(value)};
        return true;
    }
    if (strncmp(type, "bool:", 5) == 0) {
        kv->type = MOE_GGUF_BOOL;
        kv->value.u64 = strcmp(value, "true") == 0;
        return kv->value.u64 == 1 || strcmp(value, "false") == 0;
    }
    if (strncmp(type, "int:", 4) == 0) {
        kv->type = MOE_GGUF_I64;
        kv->value.i64 = strtoll(value, &end, 10);
        return end != value && *end == '\0' && errno == 0;
    }
    kv->type = MOE_GGUF_F64;
    kv->value.f64 = strtod(value, &end);
    return end != value && *end == '\0' && isfinite(kv->value.f64);
}

/* Keys that the reader used while it read the file cannot be changed afterwards. */
static bool is_of_the_reader(const char *key)
{
    return strcmp(key, "general.alignment") == 0 || strncmp(key, "split.", 6) == 0;
}

static int put(moe_gguf_header *header, const moe_gguf_kv *kv, const char *key)
{
    moe_gguf_kv *known = (moe_gguf_kv *)moe_gguf_header_find(header, key);
    if (known != NULL) {
        *known = *kv;
        return MOE_OK;
    }
    if (header->n_kvs == header->kvs_capacity) {
        size_t capacity = header->kvs_capacity + 16;
        moe_gguf_kv *kvs = moe_realloc_array(header->kvs, capacity, sizeof *kvs);
        if (kvs == NULL) {
            return MOE_ERR_MEMORY;
        }
        header->kvs = kvs;
        header->kvs_capacity = capacity;
    }
    moe_gguf_index index = {0};
    header->kvs[header->n_kvs] = *kv;
    if (moe_gguf_index_init(&index, header->n_kvs + 1, header->kvs) != MOE_OK) {
        return MOE_ERR_MEMORY;
    }
    header->n_kvs++;
    moe_gguf_index_free(&header->kv_index);
    header->kv_index = index;
    for (size_t i = 0; i < header->n_kvs; i++) {
        (void)moe_gguf_index_add(&header->kv_index, &header->kvs[0].key, sizeof *header->kvs, i);
    }
    return MOE_OK;
}

static int override_one(moe_gguf *gguf, char *text, moe_error *err)
{
    char *type = find_type(text);
    moe_gguf_kv kv = {.n_elements = 1};
    if (type == NULL || type == text + 1 || !read_value(type, strchr(type, ':') + 1, &kv)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "metadata override '%s' must be KEY=TYPE:VALUE, TYPE being int, float, "
                        "bool (true or false) or str",
                        text);
    }
    type[-1] = '\0';
    if (is_of_the_reader(text)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "key '%s' cannot be overridden: the file was read by it", text);
    }
    kv.key = (moe_string_view){text, strlen(text)};
    int status = put(&gguf->parts[0].header, &kv, text);
    return status == MOE_OK
               ? MOE_OK
               : moe_fail(err, status, "out of memory for the metadata override of '%s'", text);
}

int moe_gguf_override(moe_gguf *gguf, const char *overrides, moe_error *err)
{
    int status = MOE_OK;
    if (overrides == NULL || gguf->overrides != NULL) {
        return MOE_OK;
    }
    gguf->overrides = moe_strdup(overrides); /* the values point into it */
    if (gguf->overrides == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the metadata overrides");
    }
    for (char *text = gguf->overrides; text != NULL && status == MOE_OK;) {
        char *end = find_end(text);
        char *next = *end == ',' ? end + 1 : NULL;
        *end = '\0';
        status = override_one(gguf, text, err);
        text = next;
    }
    return status;
}
