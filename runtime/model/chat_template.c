/* SPDX-License-Identifier: MIT */
/* Chooses the template of a conversation. */
#include "runtime/model/chat_template.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/model/chat_template_table.h"
#include "runtime/model/gguf_internal.h"

static const char key_default[] = "tokenizer.chat_template";
#define PREFIX_SIZE sizeof key_default /* with a dot in place of the final 0 */

static void add_name(char *out, size_t size, size_t *n, const char *name)
{
    int written = snprintf(out + *n, size - *n, "%s%s", *n == 0 ? "" : " ", name);
    *n += written > 0 && (size_t)written < size - *n ? (size_t)written : 0;
    out[*n] = '\0';
}

/* Lists the templates' names, the file's first. */
static void list_names(const moe_gguf *gguf, char *out, size_t size)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < moe_gguf_n_kvs(gguf); i++) {
        char shown[MOE_GGUF_SHOWN];
        moe_string_view key = moe_gguf_kv_at(gguf, i)->key;
        if (key.size > PREFIX_SIZE &&
            memcmp(key.data, "tokenizer.chat_template.", PREFIX_SIZE) == 0) {
            moe_string_view name = {key.data + PREFIX_SIZE, key.size - PREFIX_SIZE};
            add_name(out, size, &n, moe_gguf_show(name, shown));
        }
    }
    for (size_t i = 0; i < moe_n_known_templates; i++) {
        add_name(out, size, &n, moe_known_templates[i].name);
    }
}

static int find_in_file(moe_chat_template *out, const moe_gguf *gguf, const char *name,
                        moe_error *err)
{
    char key[128];
    *out = (moe_chat_template){.source = {NULL, 0}};
    int size = name == NULL || strcmp(name, "default") == 0
                   ? snprintf(key, sizeof key, "%s", key_default)
                   : snprintf(key, sizeof key, "%s.%s", key_default, name);
    return (size_t)size < sizeof key ? moe_gguf_get_string(gguf, key, &out->source, err) : MOE_OK;
}

static bool find_known(moe_chat_template *out, const char *name)
{
    for (size_t i = 0; name != NULL && i < moe_n_known_templates; i++) {
        if (strcmp(moe_known_templates[i].name, name) == 0) {
            const char *source = moe_known_templates[i].source;
            *out = (moe_chat_template){.source = {source, strlen(source)}, .is_built_in = true};
            return true;
        }
    }
    return false;
}

int moe_chat_template_find(moe_chat_template *out, const moe_gguf *gguf, const char *name,
                           bool with_tools, moe_error *err)
{
    char names[320];
    int status = MOE_OK;
    *out = (moe_chat_template){.source = {NULL, 0}};
    if (name == NULL && with_tools) {
        status = find_in_file(out, gguf, "tool_use", err);
    }
    if (status == MOE_OK && out->source.size == 0) {
        status = find_in_file(out, gguf, name, err);
    }
    if (status != MOE_OK || out->source.size > 0 || find_known(out, name)) {
        return status;
    }
    list_names(gguf, names, sizeof names);
    return name == NULL
               ? moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "the model has no tokenizer.chat_template; options.template_name "
                          "names one: %s",
                          names)
               : moe_fail(
                     err, MOE_ERR_ARGUMENT,
                     "template_name: there is no chat template of the name \"%.40s\"; known: %s",
                     name, names);
}
