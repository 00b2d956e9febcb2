/* SPDX-License-Identifier: MIT */
/* Weights that lead to NaN or infinite values, in each kind of tensor. Loading refuses resident
 * ones. With such experts, or damage in memory after loading, the step fails: it names the first
 * layer where such values appeared, and leaves the timeline unchanged. Argument: a model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "damaged_model.h"
#include "engine_fixture.h"
#include "engine_options.h"
#include "runtime/base/dtype.h"
#include "runtime/engine/engine_state.h"

#define N_PROMPT 90 /* more than a chunk */
#define N_SHORT  4
#define N_MOST   16
#define N_STEPS  64 /* at most, for a prompt: a small cache takes a panel's layer in several */

static const char *model;
static char folder[64] = "/tmp/moe-not-finite-XXXXXX";

static const char *copy_path(void)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/copy.gguf", folder);
    return path;
}

static void fill_infinite(uint8_t *bytes, uint64_t n, uint32_t type)
{
    for (uint64_t i = 0; i + 4 <= n; i += 4) {
        uint32_t infinity = type == MOE_DTYPE_F32 ? 0x7f800000u : 0x7c007c00u;
        memcpy(bytes + i, &infinity, sizeof infinity);
    }
}

/* In the copy all of the tensor is infinite: its values, or its blocks' scales. */
static bool spoil(const char *name)
{
    tensor_place place;
    if (!find_tensor(model, name, &place)) {
        return false;
    }
    uint8_t *bytes = calloc(1, place.size);
    assert_non_null(bytes);
    fill_infinite(bytes, place.size, place.type);
    assert_true(copy_with_bytes(model, copy_path(), place.offset, bytes, place.size));
    free(bytes);
    return true;
}

/* The tensor as the engine has it in memory; NULL: it has no such one. Of a joined attn_kv_b it is
 * the keys' half. */
static const moe_weight *find_weight(const moe_engine *engine, uint64_t offset)
{
    const moe_tensor_map *map = &engine->map;
    if (map->token_embedding.offset == offset) {
        return &engine->weights.token_embedding;
    }
    if (map->output_norm.offset == offset) {
        return &engine->weights.output_norm;
    }
    if (map->output.offset == offset) {
        return &engine->weights.output;
    }
    for (uint32_t l = 0; l < map->n_layer; l++) {
        for (int t = 0; t < MOE_LAYER_TENSOR_COUNT; t++) {
            if (map->layers[l].tensors[t].size != 0 && map->layers[l].tensors[t].offset == offset) {
                const moe_weight *weights = engine->weights.layers[l].tensors;
                return &weights[t == MOE_LAYER_ATTN_KV_B ? MOE_LAYER_ATTN_K_B : t];
            }
        }
    }
    return NULL;
}

/* In the engine's memory n bytes of the tensor are infinite, from `first` on; n = 0: all. */
static void spoil_in_memory(const moe_engine *engine, const tensor_place *place, uint64_t first,
                            uint64_t n)
{
    const moe_weight *weight = find_weight(engine, place->offset);
    assert_non_null(weight);
    uint64_t bytes = (uint64_t)weight->n_out * weight->row_bytes;
    fill_infinite((uint8_t *)weight->data + first, n > 0 ? n : bytes, weight->type);
}

static moe_engine_options options_of_copy(void)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = copy_path();
    options.n_threads = 2;
    options.prefill_chunk = 64;
    options.context = 256;
    options.calibration = "none";
    return options;
}

static void feed_prompt(moe_engine *engine, moe_session *session, size_t n)
{
    int32_t tokens[N_PROMPT];
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    make_prompt(tokens, n, info.n_vocab, 3);
    feed(session, tokens, n);
}

/* Steps until one fails, at most so many. */
static int step_until_failure(moe_engine *engine, moe_session *session, moe_error *error)
{
    int status = MOE_OK;
    for (int i = 0; i < N_STEPS && status == MOE_OK; i++) {
        status = moe_step(engine, &session, 1, error);
    }
    return status;
}

/* A step of the prompt fails, twice, and says `where`. resident: what is infinite once the model is
 * loaded, or NULL. */
static void expect_failure_with(const moe_engine_options *options, const tensor_place *resident,
                                const char *where)
{
    moe_engine *engine = open_engine(options);
    if (resident != NULL) {
        spoil_in_memory(engine, resident, 0, 0);
    }
    moe_session *session = greedy_session(engine);
    feed_prompt(engine, session, N_PROMPT);
    size_t n_pending = 0;
    for (int i = 0; i < 2; i++) {
        moe_error error = {""};
        assert_int_equal(step_until_failure(engine, session, &error), MOE_ERR_FORMAT);
        if (strstr(error.message, where) == NULL || strstr(error.message, "not finite") == NULL) {
            fail_msg("expected '%s' in: %s", where, error.message);
        }
        assert_int_equal(moe_session_n_tokens(session), N_PROMPT);
        assert_true(moe_session_n_pending(session) > 0);
        assert_true(i == 0 || moe_session_n_pending(session) == n_pending);
        n_pending = moe_session_n_pending(session);
        assert_null(moe_session_logits(session));
    }
    moe_session_close(&session);
    moe_engine_close(&engine);
}

static void expect_failure(const moe_engine_options *options, const char *where)
{
    expect_failure_with(options, NULL, where);
}

/* The tensor infinite in the file: loading refuses it and says which and where. Then in memory: the
 * step fails. False: there is no such tensor. */
static bool check_resident(const char *name, const char *where)
{
    tensor_place place;
    char offset[32];
    if (!spoil(name)) {
        return false;
    }
    assert_true(find_tensor(model, name, &place));
    print_message("%s\n", name);
    moe_engine_options options = options_of_copy();
    moe_engine *engine = NULL;
    moe_error error = {""};
    assert_int_equal(moe_engine_open(&engine, &options, &error), MOE_ERR_FORMAT);
    assert_null(engine);
    snprintf(offset, sizeof offset, "at offset %llu", (unsigned long long)place.offset);
    const char *const words[] = {copy_path(), name, offset, "not finite", "download"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strstr(error.message, words[i]) == NULL) {
            fail_msg("expected '%s' in: %s", words[i], error.message);
        }
    }
    assert_true(copy_with_bytes(model, copy_path(), 0, NULL, 0));
    expect_failure_with(&options, &place, where);
    return true;
}

/* The last layer with experts. */
static unsigned last_layer(void)
{
    unsigned layer = 0;
    tensor_place place;
    char name[64];
    for (unsigned l = 0; l < 8; l++) {
        snprintf(name, sizeof name, "blk.%u.ffn_gate_inp.weight", l);
        layer = find_tensor(model, name, &place) ? l : layer;
    }
    return layer;
}

/* "layer 1, BLOCK". Static memory. */
static const char *in_last_layer(const char *block)
{
    static char where[64];
    snprintf(where, sizeof where, "layer %u, %s", last_layer(), block);
    return where;
}

/* A tensor of the last layer. */
static bool spoil_last(const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%u.%s.weight", last_layer(), name);
    return spoil(full);
}

static void each_kind_of_tensor(void **state)
{
    (void)state;
    static const struct {
        const char *name, *where;
    } cases[] = {
        {"attn_q", "attention"},
        {"attn_k", "attention"},
        {"attn_v", "attention"},
        {"attn_output", "attention"},
        {"attn_q_norm", "attention"},
        {"attn_q_a_norm", "attention"},
        {"attn_kv_b", "attention"},
        {"attn_k_b", "attention"},
        {"attn_v_b", "attention"},
        {"attn_kv_a_mqa", "attention"},
        {"ffn_norm", "router and experts"},
        {"ffn_gate_inp", "router and experts"},
        {"ffn_gate_exps", "router and experts"},
        {"ffn_down_exps", "router and experts"},
        {"ffn_down_shexp", "router and experts"},
    };
    size_t n_found = 0;
    char name[64];
    moe_engine_options options = options_of_copy();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *where = in_last_layer(cases[i].where);
        snprintf(name, sizeof name, "blk.%u.%s.weight", last_layer(), cases[i].name);
        if (strstr(name, "_exps") == NULL) {
            n_found += check_resident(name, where);
        } else if (spoil(name)) {
            expect_failure(&options, where);
            n_found++;
        }
    }
    assert_true(n_found >= 7);
    assert_true(check_resident("token_embd.weight", "embedding of token"));
    assert_true(check_resident("output_norm.weight", "output head"));
    assert_true(check_resident("blk.0.attn_norm.weight", "layer 0, attention"));
    (void)check_resident("output.weight", "output head");
    (void)check_resident("blk.0.ffn_down.weight", "layer 0, feed-forward network");
}

/* One value of a tensor, the first or the last of it, which a step may not meet at all. */
static void one_value(void **state)
{
    (void)state;
    static const uint32_t values[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffffffffu};
    static const char *const names[] = {"output_norm.weight", "blk.0.attn_norm.weight",
                                        "blk.0.ffn_norm.weight"};
    moe_engine_options options = options_of_copy();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            tensor_place place;
            moe_engine *engine = NULL;
            moe_error error = {""};
            assert_true(find_tensor(model, names[i], &place));
            assert_int_equal(place.type, MOE_DTYPE_F32);
            uint64_t at = v % 2 == 0 ? place.offset : place.offset + place.size - 4;
            assert_true(copy_with_bytes(model, copy_path(), at, &values[v], 4));
            assert_int_equal(moe_engine_open(&engine, &options, &error), MOE_ERR_FORMAT);
            assert_non_null(strstr(error.message, names[i]));
        }
    }
}

static void in_every_mode(void **state)
{
    (void)state;
    assert_true(spoil_last("ffn_down_exps"));
    static const struct {
        const char *device;
        moe_speculate speculate;
        const char *policy;
        uint32_t budget;
        double share;
    } modes[] = {
        {"sim:memory=4G,link=16GB/s,latency=10us", MOE_SPECULATE_OFF, NULL, 0, 0.0},
        {NULL, MOE_SPECULATE_SELF, NULL, 0, 0.0},
        {NULL, MOE_SPECULATE_NGRAM, NULL, 0, 0.5},
        {NULL, MOE_SPECULATE_SELF, "lru", 0, 0.5},
        {NULL, MOE_SPECULATE_OFF, NULL, 4, 0.5},
    };
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        moe_engine_options options = options_of_copy();
        options.device = modes[i].device;
        options.speculate = modes[i].speculate;
        options.policy = modes[i].policy;
        lossy_of(&options)->expert_budget = modes[i].budget;
        options.expert_cache_share = modes[i].share;
        expect_failure(&options, in_last_layer("router and experts"));
    }
}

/* The first of the tokens that the model writes and that is not in its prompt: what was written
 * before it, too. */
static int32_t find_new_token(const moe_engine_options *options, size_t *n_before,
                              uint32_t *n_vocab)
{
    int32_t prompt[N_SHORT], written[N_MOST];
    moe_engine *engine = open_engine(options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    *n_vocab = info.n_vocab;
    make_prompt(prompt, N_SHORT, info.n_vocab, 3);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_SHORT);
    decode(engine, session, written, N_MOST);
    moe_session_close(&session);
    moe_engine_close(&engine);
    for (*n_before = 0; *n_before < N_MOST; ++*n_before) {
        bool seen = false;
        for (size_t i = 0; i < N_SHORT; i++) {
            seen = seen || prompt[i] == written[*n_before];
        }
        if (!seen) {
            return written[*n_before];
        }
    }
    fail_msg("the model writes nothing but its prompt's tokens");
    return 0;
}

/* The embedding of a token that is written: the text up to it stays, and the step that fails leaves
 * no token. */
static void while_decoding(void **state)
{
    (void)state;
    static const moe_speculate modes[] = {MOE_SPECULATE_OFF, MOE_SPECULATE_SELF,
                                          MOE_SPECULATE_NGRAM};
    tensor_place place;
    if (!find_tensor(model, "output.weight", &place)) {
        skip(); /* the embedding is the head, too: every token would fail */
    }
    assert_true(find_tensor(model, "token_embd.weight", &place));
    for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
        size_t n_before;
        uint32_t n_vocab;
        assert_true(copy_with_bytes(model, copy_path(), 0, NULL, 0));
        moe_engine_options options = options_of_copy();
        options.speculate = modes[m];
        int32_t token = find_new_token(&options, &n_before, &n_vocab);
        uint64_t row = place.size / n_vocab;
        moe_engine *engine = open_engine(&options);
        spoil_in_memory(engine, &place, row * (uint64_t)token, row);
        moe_session *session = greedy_session(engine);
        moe_error error = {""};
        feed_prompt(engine, session, N_SHORT);
        int status = step_until_failure(engine, session, &error);
        if (status != MOE_ERR_FORMAT || strstr(error.message, "embedding of token") == NULL) {
            fail_msg("mode %zu: %d %s", m, status, error.message);
        }
        assert_int_equal(moe_session_n_tokens(session), N_SHORT + n_before + 1);
        assert_int_equal(moe_session_n_pending(session), 1);
        moe_session_close(&session);
        moe_engine_close(&engine);
    }
}

static bool count_positions(size_t position, const float *logits, void *user)
{
    (void)position;
    (void)logits;
    ++*(size_t *)user;
    return true;
}

static void scoring(void **state)
{
    (void)state;
    assert_true(spoil_last("ffn_gate_exps"));
    moe_engine_options options = options_of_copy();
    moe_engine *engine = open_engine(&options);
    moe_session *session = greedy_session(engine);
    int32_t tokens[N_PROMPT] = {0};
    size_t n_visited = 0;
    moe_error error = {""};
    assert_int_equal(
        moe_session_score(session, tokens, N_PROMPT, count_positions, &n_visited, &error),
        MOE_ERR_FORMAT);
    assert_non_null(strstr(error.message, in_last_layer("router and experts")));
    assert_int_equal(n_visited, 0);
    assert_int_equal(moe_session_n_tokens(session), 0);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(copy_path());
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_not_finite MODEL.gguf\n");
        return 2;
    }
    model = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_of_tensor),
        cmocka_unit_test(one_value),
        cmocka_unit_test(in_every_mode),
        cmocka_unit_test(while_decoding),
        cmocka_unit_test(scoring),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
