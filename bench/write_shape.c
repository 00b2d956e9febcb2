/* SPDX-License-Identifier: MIT */
/* Writes a GGUF file of a known model's shape with random weights in Q4_K, for machines that have
 * no model and cannot fetch one:
 *
 *     write_shape SHAPE OUT [--layers N]
 *
 * Shapes: olmoe (3.9 GB), qwen3-30b (17 GB), tiny (for tests), deep (85 MB; for counts a layer).
 * The weights give finite activations and routers that choose by the token, but text without
 * meaning. The last line on standard output is
 *
 *     active BYTES of which experts BYTES, layers N
 *
 * the bytes of weights that one token reads. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT   32u
#define BLOCK       256u /* elements, of Q4_K and Q6_K */
#define POOL_BLOCKS 65536u
#define MAX_TENSORS 1024

enum { TYPE_F32 = 0, TYPE_Q4_K = 12, TYPE_Q6_K = 14 };
enum { KEY_UINT32 = 4, KEY_FLOAT32 = 6, KEY_STRING = 8, KEY_ARRAY = 9, KEY_INT32 = 5 };

typedef struct shape {
    const char *name, *arch;
    uint32_t layers, embd, ff, ff_exp, heads, kv_heads, head, experts, used, vocab, context;
    float rope_base;
    bool norm_per_head; /* of queries and keys; else over all heads at once */
} shape;

static const shape shapes[] = {
    {"olmoe", "olmoe", 16, 2048, 1024, 1024, 16, 16, 128, 64, 8, 50304, 65536, 1e4f, false},
    {"qwen3-30b", "qwen3moe", 48, 2048, 6144, 768, 32, 4, 128, 128, 8, 151936, 262144, 1e6f, true},
    {"tiny", "qwen3moe", 4, 256, 256, 256, 4, 2, 64, 8, 2, 300, 1024, 1e4f, true},
    {"deep", "qwen3moe", 24, 256, 256, 256, 4, 2, 64, 32, 4, 300, 1024, 1e4f, true}};

typedef struct tensor {
    char name[64];
    uint32_t n_dims;
    uint64_t dims[3];
    uint32_t type;
    uint64_t bytes;
} tensor;

typedef struct writer {
    const shape *s;
    uint32_t layers;
    FILE *file;
    uint64_t written;
    bool failed;
    uint32_t n_keys;
    tensor tensors[MAX_TENSORS];
    uint32_t n_tensors;
    uint64_t random;
    uint8_t *pools[15]; /* by type: POOL_BLOCKS random blocks */
} writer;

static void put(writer *w, const void *data, size_t bytes)
{
    w->failed = w->failed || fwrite(data, 1, bytes, w->file) != bytes;
    w->written += bytes;
}

static void put_u32(writer *w, uint32_t value)
{
    put(w, &value, sizeof value);
}

static void put_u64(writer *w, uint64_t value)
{
    put(w, &value, sizeof value);
}

static void put_string(writer *w, const char *text)
{
    put_u64(w, strlen(text));
    put(w, text, strlen(text));
}

static void pad(writer *w)
{
    static const uint8_t zeros[ALIGNMENT];
    put(w, zeros, (ALIGNMENT - w->written % ALIGNMENT) % ALIGNMENT);
}

static uint64_t next_random(writer *w)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random;
}

/* ---- Metadata ---- */

/* The key of a number of the architecture, or of the tokenizer. */
static void key(writer *w, const char *format, uint32_t type)
{
    char name[96];
    snprintf(name, sizeof name, format, w->s->arch);
    put_string(w, name);
    put_u32(w, type);
    w->n_keys++;
}

static void key_u32(writer *w, const char *format, uint32_t value)
{
    key(w, format, KEY_UINT32);
    put_u32(w, value);
}

static void key_float(writer *w, const char *format, float value)
{
    key(w, format, KEY_FLOAT32);
    put(w, &value, sizeof value);
}

static void key_string(writer *w, const char *format, const char *value)
{
    key(w, format, KEY_STRING);
    put_string(w, value);
}

/* The printable stand-in of a byte in byte-level vocabularies, in UTF-8. */
static void append_byte(char *text, uint32_t byte)
{
    uint32_t code = byte;
    uint32_t n_before = 0; /* bytes without a stand-in of their own, below this one */
    for (uint32_t b = 0; b <= byte; b++) {
        bool plain = (b >= 33 && b < 127) || (b >= 161 && b < 173) || b >= 174;
        if (b == byte && !plain) {
            code = 256 + n_before;
        }
        n_before += !plain;
    }
    size_t n = strlen(text);
    if (code < 128) {
        text[n++] = (char)code;
    } else {
        text[n++] = (char)(0xc0 | code >> 6);
        text[n++] = (char)(0x80 | (code & 63));
    }
    text[n] = '\0';
}

/* Tokens are the bytes, then pairs of them, then pairs with one of three letters. before: where the
 * last letter begins, which the merge that makes the token adds. */
static void token_text(const writer *w, uint32_t token, char *text, size_t *before)
{
    text[0] = '\0';
    *before = 0;
    if (token + 1 == w->s->vocab) {
        strcpy(text, "<|end|>");
        return;
    }
    uint32_t pair = token < 256 ? token : token < 256 + 65536 ? token - 256 : (token - 65792) / 3;
    if (token >= 256) {
        append_byte(text, pair / 256);
        *before = strlen(text);
    }
    append_byte(text, pair % 256);
    if (token >= 65792) {
        *before = strlen(text);
        append_byte(text, (token - 65792) % 3);
    }
}

static void put_vocabulary(writer *w)
{
    const uint32_t n = w->s->vocab;
    char text[16];
    size_t before;
    key_string(w, "tokenizer.ggml.model", "gpt2");
    key_string(w, "tokenizer.ggml.pre", w->s->norm_per_head ? "qwen2" : "olmo");
    key(w, "tokenizer.ggml.tokens", KEY_ARRAY);
    put_u32(w, KEY_STRING);
    put_u64(w, n);
    for (uint32_t t = 0; t < n; t++) {
        token_text(w, t, text, &before);
        put_string(w, text);
    }
    key(w, "tokenizer.ggml.token_type", KEY_ARRAY);
    put_u32(w, KEY_INT32);
    put_u64(w, n);
    for (uint32_t t = 0; t < n; t++) {
        put_u32(w, t + 1 == n ? 3 : 1);
    }
    key(w, "tokenizer.ggml.merges", KEY_ARRAY);
    put_u32(w, KEY_STRING);
    put_u64(w, n - 257);
    for (uint32_t t = 256; t + 1 < n; t++) {
        char merge[24];
        token_text(w, t, text, &before);
        snprintf(merge, sizeof merge, "%.*s %s", (int)before, text, text + before);
        put_string(w, merge);
    }
    key_u32(w, "tokenizer.ggml.eos_token_id", n - 1);
}

static void put_metadata(writer *w)
{
    const shape *s = w->s;
    key_string(w, "general.architecture", s->arch);
    key_string(w, "general.name", s->name);
    key_u32(w, "general.alignment", ALIGNMENT);
    key_u32(w, "%s.block_count", w->layers);
    key_u32(w, "%s.context_length", s->context);
    key_u32(w, "%s.embedding_length", s->embd);
    key_u32(w, "%s.feed_forward_length", s->ff);
    key_u32(w, "%s.attention.head_count", s->heads);
    key_u32(w, "%s.attention.head_count_kv", s->kv_heads);
    key_float(w, "%s.attention.layer_norm_rms_epsilon", 1e-6f);
    key_float(w, "%s.rope.freq_base", s->rope_base);
    key_u32(w, "%s.expert_count", s->experts);
    key_u32(w, "%s.expert_used_count", s->used);
    if (s->norm_per_head) {
        key_u32(w, "%s.attention.key_length", s->head);
        key_u32(w, "%s.attention.value_length", s->head);
        key_u32(w, "%s.expert_feed_forward_length", s->ff_exp);
    }
    put_vocabulary(w);
}

/* ---- Tensors ---- */

static uint32_t block_bytes(uint32_t type)
{
    return type == TYPE_Q4_K ? 144 : 210;
}

static void add(writer *w, const char *name, uint32_t type, uint64_t n_in, uint64_t n_out,
                uint64_t n_experts)
{
    tensor *t = &w->tensors[w->n_tensors++];
    uint64_t n = n_in * (n_out > 0 ? n_out : 1) * (n_experts > 0 ? n_experts : 1);
    *t = (tensor){.n_dims = 1 + (n_out > 0) + (n_experts > 0),
                  .dims = {n_in, n_out, n_experts},
                  .type = type,
                  .bytes = type == TYPE_F32 ? 4 * n : n / BLOCK * block_bytes(type)};
    snprintf(t->name, sizeof t->name, "%s", name);
}

static void add_to_layer(writer *w, uint32_t layer, const char *name, uint32_t type, uint64_t n_in,
                         uint64_t n_out, uint64_t n_experts)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%u.%s.weight", layer, name);
    add(w, full, type, n_in, n_out, n_experts);
}

static void list_tensors(writer *w)
{
    const shape *s = w->s;
    const uint64_t q = (uint64_t)s->heads * s->head;
    const uint64_t kv = (uint64_t)s->kv_heads * s->head;
    add(w, "token_embd.weight", TYPE_Q4_K, s->embd, s->vocab, 0);
    add(w, "output_norm.weight", TYPE_F32, s->embd, 0, 0);
    add(w, "output.weight", TYPE_Q6_K, s->embd, s->vocab, 0);
    for (uint32_t i = 0; i < w->layers; i++) {
        add_to_layer(w, i, "attn_norm", TYPE_F32, s->embd, 0, 0);
        add_to_layer(w, i, "attn_q", TYPE_Q4_K, s->embd, q, 0);
        add_to_layer(w, i, "attn_k", TYPE_Q4_K, s->embd, kv, 0);
        add_to_layer(w, i, "attn_v", TYPE_Q4_K, s->embd, kv, 0);
        add_to_layer(w, i, "attn_output", TYPE_Q4_K, q, s->embd, 0);
        add_to_layer(w, i, "attn_q_norm", TYPE_F32, s->norm_per_head ? s->head : q, 0, 0);
        add_to_layer(w, i, "attn_k_norm", TYPE_F32, s->norm_per_head ? s->head : kv, 0, 0);
        add_to_layer(w, i, "ffn_norm", TYPE_F32, s->embd, 0, 0);
        add_to_layer(w, i, "ffn_gate_inp", TYPE_F32, s->embd, s->experts, 0);
        add_to_layer(w, i, "ffn_gate_exps", TYPE_Q4_K, s->embd, s->ff_exp, s->experts);
        add_to_layer(w, i, "ffn_up_exps", TYPE_Q4_K, s->embd, s->ff_exp, s->experts);
        add_to_layer(w, i, "ffn_down_exps", TYPE_Q4_K, s->ff_exp, s->embd, s->experts);
    }
}

static void put_tensor_infos(writer *w)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < w->n_tensors; i++) {
        const tensor *t = &w->tensors[i];
        put_string(w, t->name);
        put_u32(w, t->n_dims);
        put(w, t->dims, t->n_dims * sizeof t->dims[0]);
        put_u32(w, t->type);
        put_u64(w, offset);
        offset += (t->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
}

/* Scales (as halves) make values of mean 0 and a deviation of about 0.02, which is 1 / sqrt(2048):
 * Q4_K has d = 8.5e-5 and a minimum of 7.5 times it, because codes are 7.5 on average; Q6_K d
 * = 1.6e-5. */
static const uint8_t *pool_of(writer *w, uint32_t type)
{
    const uint32_t bytes = block_bytes(type);
    uint8_t *pool = w->pools[type];
    if (pool != NULL) {
        return pool;
    }
    pool = malloc((size_t)POOL_BLOCKS * bytes + sizeof(uint64_t));
    if (pool == NULL) {
        return NULL;
    }
    for (size_t at = 0; at < (size_t)POOL_BLOCKS * bytes; at += sizeof(uint64_t)) {
        uint64_t value = next_random(w);
        memcpy(pool + at, &value, sizeof value);
    }
    static const uint16_t q4_k[2] = {0x0592, 0x1139};
    static const uint16_t q6_k = 0x010c;
    for (uint32_t b = 0; b < POOL_BLOCKS; b++) {
        uint8_t *block = pool + (size_t)b * bytes;
        if (type == TYPE_Q4_K) {
            memcpy(block, q4_k, sizeof q4_k);
        } else {
            memcpy(block + bytes - sizeof q6_k, &q6_k, sizeof q6_k);
        }
    }
    w->pools[type] = pool;
    return pool;
}

static void put_blocks(writer *w, const tensor *t)
{
    const uint8_t *pool = pool_of(w, t->type);
    const uint32_t bytes = block_bytes(t->type);
    if (pool == NULL) {
        w->failed = true;
        return;
    }
    for (uint64_t left = t->bytes / bytes; left > 0 && !w->failed;) {
        uint64_t first = next_random(w) % POOL_BLOCKS;
        uint64_t n = POOL_BLOCKS - first < left ? POOL_BLOCKS - first : left;
        put(w, pool + first * bytes, n * bytes);
        left -= n;
    }
}

/* Norms are 1; routers have a deviation of 0.06, sums of four numbers drawn evenly. */
static void put_floats(writer *w, const tensor *t)
{
    for (uint64_t i = 0; i < t->bytes / sizeof(float) && !w->failed; i++) {
        float value = 1.0f;
        if (t->n_dims > 1) {
            uint64_t bits = next_random(w);
            float sum = 0.0f;
            for (int part = 0; part < 4; part++) {
                sum += (float)(bits >> 16 * part & 0xffff) / 65536.0f - 0.5f;
            }
            value = 0.1f * sum;
        }
        put(w, &value, sizeof value);
    }
}

static void put_tensors(writer *w)
{
    pad(w);
    for (uint32_t i = 0; i < w->n_tensors && !w->failed; i++) {
        const tensor *t = &w->tensors[i];
        if (t->type == TYPE_F32) {
            put_floats(w, t);
        } else {
            put_blocks(w, t);
        }
        pad(w);
    }
}

static void print_active(const writer *w)
{
    uint64_t active = 0;
    uint64_t experts = 0;
    for (uint32_t i = 1; i < w->n_tensors; i++) { /* without embeddings, of which a row is read */
        const tensor *t = &w->tensors[i];
        uint64_t bytes = t->n_dims == 3 ? t->bytes / w->s->experts * w->s->used : t->bytes;
        active += bytes;
        experts += t->n_dims == 3 ? bytes : 0;
    }
    printf("active %llu of which experts %llu, layers %u\n", (unsigned long long)active,
           (unsigned long long)experts, w->layers);
}

static int write_file(writer *w, const char *path)
{
    static const uint32_t magic = 0x46554747;
    w->file = fopen(path, "wb");
    if (w->file == NULL) {
        fprintf(stderr, "write_shape: %s: %s\n", path, strerror(errno));
        return 1;
    }
    list_tensors(w);
    put_u32(w, magic);
    put_u32(w, 3);
    put_u64(w, w->n_tensors);
    put_u64(w, 0); /* keys: see below */
    put_metadata(w);
    put_tensor_infos(w);
    put_tensors(w);
    if (fseek(w->file, 16, SEEK_SET) != 0) {
        w->failed = true;
    }
    put_u64(w, w->n_keys);
    w->failed = fclose(w->file) != 0 || w->failed;
    for (size_t i = 0; i < sizeof w->pools / sizeof w->pools[0]; i++) {
        free(w->pools[i]);
    }
    if (w->failed) {
        fprintf(stderr, "write_shape: %s: cannot be written: %s\n", path, strerror(errno));
        return 1;
    }
    print_active(w);
    return 0;
}

int main(int argc, char **argv)
{
    static writer w = {.random = 0x9e3779b97f4a7c15u};
    for (size_t i = 0; argc >= 3 && i < sizeof shapes / sizeof shapes[0]; i++) {
        w.s = strcmp(argv[1], shapes[i].name) == 0 ? &shapes[i] : w.s;
    }
    w.layers = w.s != NULL ? w.s->layers : 0;
    if (w.s != NULL && argc == 5 && strcmp(argv[3], "--layers") == 0) {
        long n = strtol(argv[4], NULL, 10);
        w.layers = n > 0 && (unsigned long)n <= w.s->layers ? (uint32_t)n : 0;
    }
    if (w.layers == 0 || (argc != 3 && argc != 5)) {
        fprintf(stderr, "usage: write_shape olmoe|qwen3-30b|tiny OUT [--layers N, no more than the "
                        "shape has]\n");
        return 2;
    }
    return write_file(&w, argv[2]);
}
