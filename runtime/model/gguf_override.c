/* SPDX-License-Identifier: MIT */
/* Metadata that the caller gives in place of the file's. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/model/gguf_internal.h"

static int check(const moe_metadata_override *o, size_t at, moe_error *err)
{
    if (o->key == NULL || o->key[0] == '\0') {
        return moe_fail(err, MOE_ERR_ARGUMENT, "options.metadata_overrides[%zu] has no key", at);
    }
    if ((int)o->type < MOE_METADATA_INT || o->type > MOE_METADATA_TEXT) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.metadata_overrides: the type of '%s' is %d, which is none of "
                        "MOE_METADATA_INT, MOE_METADATA_FLOAT, MOE_METADATA_BOOL or "
                        "MOE_METADATA_TEXT",
                        o->key, (int)o->type);
    }
    if ((o->type == MOE_METADATA_TEXT && o->value.text == NULL) ||
        (o->type == MOE_METADATA_FLOAT && !isfinite(o->value.real))) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.metadata_overrides: the value of '%s' is %s", o->key,
                        o->type == MOE_METADATA_TEXT ? "NULL" : "not finite");
    }
    return moe_gguf_key_is_of_the_reader(o->key)
               ? moe_fail(err, MOE_ERR_ARGUMENT,
                          "key '%s' cannot be overridden: the file was read by it", o->key)
               : MOE_OK;
}

static size_t text_bytes(const moe_metadata_override *o)
{
    return strlen(o->key) + (o->type == MOE_METADATA_TEXT ? strlen(o->value.text) : 0);
}

/* Copies a text to *place, and moves *place behind the copy. */
static moe_string_view copy_text(char **place, const char *text)
{
    moe_string_view view = {*place, strlen(text)};
    memcpy(*place, text, view.size);
    *place += view.size;
    return view;
}

static moe_gguf_kv copy_kv(char **place, const moe_metadata_override *o)
{
    moe_gguf_kv kv = {.n_elements = 1, .key = copy_text(place, o->key)};
    switch (o->type) {
    case MOE_METADATA_TEXT:
        kv.type = MOE_GGUF_STRING;
        kv.value.string = copy_text(place, o->value.text);
        break;
    case MOE_METADATA_BOOL:
        kv.type = MOE_GGUF_BOOL;
        kv.value.u64 = o->value.flag;
        break;
    case MOE_METADATA_FLOAT:
        kv.type = MOE_GGUF_F64;
        kv.value.f64 = o->value.real;
        break;
    default:
        kv.type = MOE_GGUF_I64;
        kv.value.i64 = o->value.integer;
        break;
    }
    return kv;
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

int moe_gguf_override(moe_gguf *gguf, const moe_metadata_override *overrides, size_t n,
                      moe_error *err)
{
    size_t bytes = 1;
    int status = MOE_OK;
    if (overrides == NULL || gguf->overrides != NULL) {
        return MOE_OK;
    }
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        status = check(&overrides[i], i, err);
        bytes += status == MOE_OK ? text_bytes(&overrides[i]) : 0;
    }
    if (status != MOE_OK) {
        return status;
    }
    gguf->overrides = moe_calloc(bytes, 1); /* keys and values point into it */
    if (gguf->overrides == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the metadata overrides");
    }
    gguf->n_file_kvs = gguf->parts[0].header.n_kvs;
    char *place = gguf->overrides;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        moe_gguf_kv kv = copy_kv(&place, &overrides[i]);
        status = put(&gguf->parts[0].header, &kv, overrides[i].key);
        if (status != MOE_OK) {
            moe_fail(err, status, "out of memory for the metadata override of '%s'",
                     overrides[i].key);
        }
    }
    return status;
}
