/* SPDX-License-Identifier: MIT */
/* Refuses an override that nothing reads: it is misspelt, or meant for another model. */
#include "runtime/model/override_check.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/model/gguf_internal.h"
#include "runtime/model/metadata_keys.h"

/* Which code reads a key that does not begin with an architecture's name. */
enum {
    BY_MODEL = 1,   /* opening a whole model, but not opening its vocabulary alone */
    BY_TEXTS = 2,   /* chat templates and names; also read for models without a vocabulary */
    BY_BPE = 4,     /* the tokenizer "gpt2" */
    BY_SPM = 8,     /* the tokenizer "llama" */
    BY_GEMMA4 = 16, /* the tokenizer "gemma4" */
    BY_TOKENIZERS = BY_BPE | BY_SPM | BY_GEMMA4
};

typedef struct known_key {
    const char *key; /* a trailing '*' stands for any end */
    unsigned readers;
} known_key;

static const known_key known_keys[] = {
    {"general.architecture", BY_MODEL},
    {"general.name", BY_TEXTS},
    {"tokenizer.chat_template", BY_TEXTS},
    {"tokenizer.chat_template.*", BY_TEXTS},
    {"tokenizer.ggml.model", BY_TEXTS},
    {"tokenizer.ggml.pre", BY_BPE},
    {"tokenizer.huggingface.json", BY_BPE},
    {"tokenizer.ggml.tokens", BY_TOKENIZERS},
    {"tokenizer.ggml.token_type", BY_TOKENIZERS},
    {"tokenizer.ggml.merges", BY_BPE | BY_GEMMA4},
    {"tokenizer.ggml.scores", BY_SPM},
    {"tokenizer.ggml.bos_token_id", BY_TOKENIZERS},
    {"tokenizer.ggml.eos_token_id", BY_TOKENIZERS},
    {"tokenizer.ggml.eot_token_id", BY_TOKENIZERS},
    {"tokenizer.ggml.eom_token_id", BY_TOKENIZERS},
    {"tokenizer.ggml.unknown_token_id", BY_TOKENIZERS},
    {"tokenizer.ggml.padding_token_id", BY_TOKENIZERS},
    {"tokenizer.ggml.add_bos_token", BY_BPE | BY_SPM},
    {"tokenizer.ggml.add_eos_token", BY_TOKENIZERS},
    {"tokenizer.ggml.add_space_prefix", BY_SPM},
};

#define N_KNOWN (sizeof known_keys / sizeof known_keys[0])

static unsigned readers_of(const moe_gguf *gguf, const moe_family *family)
{
    static const struct {
        const char *model;
        unsigned reader;
    } tokenizers[] = {{"gpt2", BY_BPE}, {"llama", BY_SPM}, {"gemma4", BY_GEMMA4}};
    unsigned readers = BY_TEXTS | (family != NULL ? BY_MODEL : 0);
    moe_string_view model = {"", 0};
    (void)moe_gguf_get_string(gguf, "tokenizer.ggml.model", &model, NULL);
    for (size_t i = 0; i < sizeof tokenizers / sizeof tokenizers[0]; i++) {
        bool is_it = strlen(tokenizers[i].model) == model.size &&
                     memcmp(tokenizers[i].model, model.data, model.size) == 0;
        readers |= is_it ? tokenizers[i].reader : 0;
    }
    return readers;
}

static bool names(const char *known, const char *key)
{
    size_t n = strlen(known);
    return known[n - 1] == '*' ? strncmp(known, key, n - 1) == 0 : strcmp(known, key) == 0;
}

/* ---- Keys that are spelt much alike ---- */

#define MAX_KEY     96
#define MAX_OFFERED 3

/* The edit distance: how many characters must be inserted, deleted or replaced to turn a into b. */
static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(b);
    size_t row[MAX_KEY + 1];
    if (strlen(a) > MAX_KEY || n > MAX_KEY) {
        return MAX_KEY;
    }
    for (size_t j = 0; j <= n; j++) {
        row[j] = j;
    }
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            size_t replaced = diagonal + (a[i] != b[j]);
            size_t moved = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;
            diagonal = row[j + 1];
            row[j + 1] = replaced < moved ? replaced : moved;
        }
    }
    return row[n];
}

typedef struct offers {
    char keys[MAX_OFFERED][MAX_KEY + 1];
    size_t distances[MAX_OFFERED];
    size_t n;
} offers;

/* Keeps the keys nearest to the override's, the nearest first. */
static void offer(offers *o, const char *prefix, const char *suffix, size_t away)
{
    size_t at = o->n;
    while (at > 0 && away < o->distances[at - 1]) {
        at--;
    }
    if (at == MAX_OFFERED) {
        return;
    }
    o->n += o->n < MAX_OFFERED;
    for (size_t i = o->n - 1; i > at; i--) {
        memcpy(o->keys[i], o->keys[i - 1], sizeof o->keys[i]);
        o->distances[i] = o->distances[i - 1];
    }
    snprintf(o->keys[at], sizeof o->keys[at], "%s%s", prefix, suffix);
    o->distances[at] = away;
}

/* Compares keys with and without an architecture's name: the override's may have a wrong one, or
 * none. */
static void find_alike(offers *o, const char *key, const moe_family *family, unsigned readers)
{
    const size_t most = strlen(key) < 12 ? 2 : strlen(key) / 5;
    const char *dot = strchr(key, '.');
    for (size_t i = 0; i < N_KNOWN; i++) {
        size_t away = distance(key, known_keys[i].key);
        if ((known_keys[i].readers & readers) != 0 && away <= most) {
            offer(o, "", known_keys[i].key, away);
        }
    }
    const char *suffix;
    for (size_t i = 0; family != NULL && (suffix = moe_metadata_key_at(i, NULL)) != NULL; i++) {
        size_t bare = distance(key, suffix);
        size_t away = dot != NULL ? distance(dot + 1, suffix) : MAX_KEY;
        away = away < bare ? away : bare;
        if (strchr(suffix, '*') == NULL && away <= most && moe_metadata_key_is_read(i, family)) {
            char prefix[MAX_KEY];
            snprintf(prefix, sizeof prefix, "%s.", family->architecture);
            offer(o, prefix, suffix, away);
        }
    }
}

/* ---- The check ---- */

/* Whether the key has an effect. *why: out, the reason if the key is known and has none. */
static bool has_effect(const moe_gguf *gguf, const moe_family *family, const char *key,
                       unsigned readers, const char **why)
{
    *why = "";
    for (size_t i = 0; i < N_KNOWN; i++) {
        if (names(known_keys[i].key, key)) {
            *why = "the model's tokenizer is of another kind";
            return (known_keys[i].readers & readers) != 0;
        }
    }
    for (size_t i = 0; family != NULL && i < moe_gguf_n_kvs(gguf); i++) {
        const moe_gguf_kv *kv = moe_gguf_kv_at(gguf, i);
        if (kv->key.size != strlen(key) || memcmp(kv->key.data, key, kv->key.size) != 0) {
            continue;
        }
        moe_key_use use = moe_metadata_key_use(family, gguf, kv, why);
        bool file_has_it = i < gguf->n_file_kvs;
        /* An override with a neutral value may replace a value of the file that would be
         * refused. */
        return use == MOE_KEY_USE_READ || use == MOE_KEY_USE_REFUSED ||
               (use == MOE_KEY_USE_HARMLESS && file_has_it &&
                moe_metadata_key_can_be_refused(family, kv));
    }
    return false;
}

static int refuse(const char *key, const moe_family *family, const char *why, const offers *found,
                  moe_error *err)
{
    char shown[MOE_GGUF_SHOWN];
    char alike[MAX_OFFERED * (MAX_KEY + 2) + 32] = "";
    char where[96] = "where only the vocabulary is opened";
    if (family != NULL) {
        snprintf(where, sizeof where, "for %s models", family->name);
    }
    for (size_t j = 0; j < found->n; j++) {
        size_t used = strlen(alike);
        snprintf(alike + used, sizeof alike - used, "%s%s",
                 j == 0 ? "; known keys like it: " : ", ", found->keys[j]);
    }
    bool known = why[0] != '\0';
    return moe_fail(err, MOE_ERR_ARGUMENT,
                    "options.metadata_overrides: key '%s' would have no effect: nothing reads it "
                    "%s%s%s%s%s",
                    moe_gguf_show((moe_string_view){key, strlen(key)}, shown), where,
                    known ? " (" : "", why, known ? ")" : "", alike);
}

int moe_overrides_check(const moe_gguf *gguf, const moe_family *family,
                        const moe_metadata_override *overrides, size_t n, moe_error *err)
{
    const unsigned readers = readers_of(gguf, family);
    const char *why;
    for (size_t i = 0; i < n; i++) {
        const char *key = overrides[i].key;
        if (has_effect(gguf, family, key, readers, &why)) {
            continue;
        }
        offers found = {.n = 0};
        find_alike(&found, key, family, readers);
        return refuse(key, family, why, &found, err);
    }
    return MOE_OK;
}
