/* SPDX-License-Identifier: MIT */
/* Drafting layers ("nextn"): their logits against transformers' MtpLayer, their entries under
 * forks, cuts and saving, the demo model's trained one, and what is refused. EAGLE-3 heads
 * likewise, against the forward pass of tests/oracle/make_eagle.py. Usage: test_drafting_layers
 * ORACLE_FOLDER DEMO_FOLDER */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine_fixture.h"
#include "engine_options.h"
#include "npy_file.h"
#include "runtime/draft/draft_head.h"
#include "runtime/engine/engine_state.h"

#define TOLERANCE 1e-4

static const char *oracle_folder, *demo_folder;
static const char *const models[] = {
    "nextn-glm4moe",  "nextn-deepseek-v3", "nextn-hyv3", "nextn-glm5-next", "nextn-hy_v4",
    "nextn-qwen4exp", "nextn-deepseek4",   "eagle3",     "eagle3-norms",    "eagle3-bare"};

enum { N_LAYERS = 7 }; /* of the models; the others have heads in files of their own */

static moe_engine *open_with_head(const char *name, moe_kv_cache_type kv)
{
    char path[1024], head[1024];
    moe_engine_options options = oracle_options(path, oracle_folder, name);
    snprintf(head, sizeof head, "%s/%s/head.gguf", oracle_folder, name);
    options.speculate = MOE_SPECULATE_MTP;
    options.draft_model = strncmp(name, "eagle3", 6) == 0 ? head : NULL;
    options.kv_cache = kv;
    options.prefill_chunk = 16;
    options.draft_max = 3;
    lab_of(&options)->length_control = MOE_LENGTH_STATIC;
    return open_engine(&options);
}

/* ---- Logits ---- */

typedef struct comparison {
    const moe_draft_eagle *eagle;
    const float *expected;
    double delta, most;
} comparison;

static bool compare(uint32_t row, const float *hidden, const float *logits, void *user)
{
    (void)hidden;
    comparison *c = user;
    (void)row;
    logits = c->eagle != NULL ? moe_draft_eagle_spread(c->eagle, logits) : logits;
    for (size_t i = 0; i < 96; i++) {
        if (isinf(c->expected[i])) { /* no token of the head's */
            assert_true(logits[i] == c->expected[i]);
            continue;
        }
        c->delta = fmax(c->delta, fabs((double)logits[i] - c->expected[i]));
        c->most = fmax(c->most, fabs((double)c->expected[i]));
    }
    return true;
}

/* The drafts after position p: from the model's hidden state, then from the layer's own. */
static void check_position(const moe_session *session, uint32_t p, comparison *c)
{
    moe_head_line *line = session->draft->head;
    moe_draft_head *head = line->head;
    size_t width = head->width;
    float state[512];
    assert_true(width <= 512);
    for (uint32_t r = 0; r <= p; r++) {
        memcpy(head->rows_hidden + r * width, line->hidden + r * width, width * sizeof(float));
        head->tokens[r] = session->tokens[r + 1];
        head->rows[r] = moe_kv_row_at(line->pages, r);
    }
    head->logit_rows[0] = p;
    moe_pass pass = {.n_logit_rows = 1, .on_logits = compare, .user = c};
    assert_int_equal(moe_head_pass(head, &pass, p + 1, NULL), MOE_OK);
    memcpy(state, moe_head_states(head, 1, 0), width * sizeof(float));
    memcpy(head->rows_hidden, state, width * sizeof(float));
    head->tokens[0] = session->tokens[p + 2];
    head->rows[0] = moe_kv_row_at(line->pages, p + 1);
    head->logit_rows[0] = 0;
    c->expected += 96;
    assert_int_equal(moe_head_pass(head, &pass, 1, NULL), MOE_OK);
    c->expected += 96;
}

static void check_case(const char *name, int number)
{
    char path[1024];
    size_t n_ids, n_rows, n_columns;
    snprintf(path, sizeof path, "%s/%s/prompts.txt", oracle_folder, name);
    int *ids = ints_read(path, number, &n_ids);
    snprintf(path, sizeof path, "%s/%s/%d.drafts.npy", oracle_folder, name, number);
    float *expected = npy_read(path, &n_rows, &n_columns);
    assert_true(ids != NULL && expected != NULL && n_columns == 96 && n_rows == 2 * (n_ids - 2));
    moe_engine *engine = open_with_head(name, MOE_KV_CACHE_F32);
    moe_session_options how;
    moe_session_options_init(&how);
    how.evaluate_only = true;
    moe_session *session = NULL;
    assert_int_equal(moe_session_create(&session, engine, &how, NULL), MOE_OK);
    feed(session, ids, n_ids);
    while (moe_session_n_pending(session) > 0) {
        assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
    }
    moe_head_line *line = session->draft->head;
    assert_true(!line->is_behind && line->first == 0 && line->n_hidden == n_ids);
    assert_int_equal(moe_head_line_reserve(line, (uint32_t)n_ids, NULL), MOE_OK);
    comparison c = {.eagle = engine->draft_head->eagle, .expected = expected};
    for (uint32_t p = 0; p + 2 < n_ids; p++) {
        check_position(session, p, &c);
    }
    print_message("%s, case %d: %.1e of the largest\n", name, number, c.delta / c.most);
    assert_true(c.most > 1.0 && c.delta <= TOLERANCE * c.most);
    moe_session_close(&session);
    moe_engine_close(&engine);
    free(ids);
    free(expected);
}

static void logits_are_the_reference(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        for (int number = 0; number < 3; number++) {
            check_case(models[m], number);
        }
    }
}

/* ---- Entries ---- */

/* What the layer knows of a session, after entries were made of all hidden states that have their
 * next token: a hash of its keys and values, by a draft of one more token. */
static void draft_once(moe_engine *engine, moe_session *session, moe_engine_stats *stats)
{
    assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
    *stats = (moe_engine_stats){.struct_size = sizeof *stats};
    moe_engine_get_stats(engine, stats);
}

static void assert_same_entries(const moe_session *a, const moe_session *b)
{
    const moe_head_line *x = a->draft->head, *y = b->draft->head;
    const moe_kv_layout *layout = &x->head->kv.layers[0];
    assert_int_equal(a->n_evaluated, b->n_evaluated);
    assert_true(!x->is_behind && !y->is_behind);
    assert_int_equal(x->first + x->n_hidden, y->first + y->n_hidden);
    uint32_t n = x->n_entries < y->n_entries ? x->n_entries : y->n_entries;
    assert_true(n > 0 && n <= MOE_KV_PAGE);
    for (uint32_t h = 0; h < layout->n_head_kv; h++) {
        size_t at = layout->k_offset + (size_t)h * MOE_KV_PAGE * layout->k_row_bytes;
        assert_memory_equal((uint8_t *)x->pages[0] + at, (uint8_t *)y->pages[0] + at,
                            n * layout->k_row_bytes);
    }
    size_t width = x->head->width;
    const float *last_x = x->hidden + (x->n_hidden - 1) * width;
    const float *last_y = y->hidden + (y->n_hidden - 1) * width;
    assert_memory_equal(last_x, last_y, width * sizeof(float));
}

/* A session that drafts has the entries of one whose text was fed: none is left of rejected drafts,
 * of tokens that were cut off, of the session that it was forked from or saved by. */
static void check_entries(const char *name)
{
    enum { N = 20, MORE = 9 };
    char path[] = "/tmp/moe-head-XXXXXX";
    int32_t prompt[N];
    moe_engine_stats stats;
    moe_engine *engine = open_with_head(name, MOE_KV_CACHE_F16);
    moe_session *a = greedy_session(engine);
    make_prompt(prompt, N, 96, 5);
    feed(a, prompt, N);
    while (moe_session_n_tokens(a) < N + MORE) {
        draft_once(engine, a, &stats);
    }
    assert_true(stats.speculation.drafted_by_head > stats.speculation.accepted_by_head);
    moe_session *fork = NULL, *loaded = NULL, *fed = greedy_session(engine);
    assert_int_equal(moe_session_fork(&fork, a, NULL), MOE_OK);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(moe_session_save(a, path, NULL), MOE_OK);
    assert_int_equal(moe_session_load(&loaded, engine, path, NULL), MOE_OK);
    unlink(path);
    assert_same_entries(a, fork);
    assert_same_entries(a, loaded);
    /* Back to the middle of what was written, and on with other tokens. A recurrent model then
     * evaluates text again, and its line begins anew behind it. */
    moe_session *all[] = {a, fork, loaded};
    const bool recurrent = moe_count_mixers(&engine->config, MOE_MIXER_RECURRENT) > 0;
    for (int i = 0; i < 3 && !recurrent; i++) {
        assert_int_equal(moe_session_truncate(all[i], N + 3, NULL), MOE_OK);
        feed(all[i], prompt, 6);
        assert_int_equal(moe_step(engine, &all[i], 1, NULL), MOE_OK);
        draft_once(engine, all[i], &stats);
    }
    feed(fed, moe_session_tokens(a), N + 3 + 6);
    while (!recurrent && moe_session_n_tokens(fed) == N + 3 + 6) {
        assert_int_equal(moe_step(engine, &fed, 1, NULL), MOE_OK);
    }
    draft_once(engine, fed, &stats);
    for (int i = 0; i < 3; i++) {
        if (!recurrent) {
            assert_same_entries(all[i], fed);
        }
        moe_session_close(&all[i]);
    }
    moe_session_close(&fed);
    moe_engine_close(&engine);
}

static void entries_follow_the_text(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        check_entries(models[m]);
    }
}

/* ---- A trained layer ---- */

enum { N_WRITTEN = 96 };

/* name: the head's file; NULL: without drafts. */
static void write_text(const char *name, float temperature, int32_t *out,
                       moe_speculation_stats *drafts)
{
    static const char prompt[] = "Question: A farmer has 12 cows and buys 5 more. Each cow gives 3";
    char model[1024], head[1024];
    moe_engine_options options;
    moe_engine_options_init(&options);
    snprintf(model, sizeof model, "%s/moe-demo-q4.gguf", demo_folder);
    snprintf(head, sizeof head, "%s/%s", demo_folder, name != NULL ? name : "");
    options.model_path = model;
    options.n_threads = 2;
    options.context = 256;
    options.expert_cache_share = 0.5;
    options.speculate = name != NULL ? MOE_SPECULATE_MTP : MOE_SPECULATE_OFF;
    if (name != NULL) {
        options.draft_model = head;
        options.draft_max = 2;
        lab_of(&options)->length_control = MOE_LENGTH_STATIC;
    }
    moe_engine *engine = open_engine(&options);
    moe_session_options how;
    moe_session_options_init(&how);
    how.sampling.temperature = temperature;
    how.sampling.seed = 11;
    moe_session *session = NULL;
    assert_int_equal(moe_session_create(&session, engine, &how, NULL), MOE_OK);
    int32_t *tokens;
    size_t n, n_out = 0;
    assert_int_equal(moe_tokenize(engine, prompt, strlen(prompt), 0, &tokens, &n, NULL), MOE_OK);
    feed(session, tokens, n);
    moe_free(tokens);
    int32_t written[N_WRITTEN + 64];
    while (n_out < N_WRITTEN) {
        assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
        n_out += moe_session_take(session, written + n_out, N_WRITTEN + 64 - n_out);
    }
    memcpy(out, written, N_WRITTEN * sizeof *out);
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    *drafts = stats.speculation;
    moe_session_close(&session);
    moe_engine_close(&engine);
}

/* The demo model's heads are right often enough, and change no text, sampled or not. */
static void trained_layers_are_right(void **state)
{
    (void)state;
    static const float temperatures[] = {0.0f, 0.7f, 1.0f};
    static const char *const heads[] = {"moe-demo-head.gguf", "moe-demo-eagle3.gguf"};
    for (int i = 0; i < 3; i++) {
        int32_t plain[N_WRITTEN], drafted[N_WRITTEN];
        moe_speculation_stats s;
        write_text(NULL, temperatures[i], plain, &s);
        for (int h = 0; h < 2; h++) {
            write_text(heads[h], temperatures[i], drafted, &s);
            assert_memory_equal(plain, drafted, sizeof plain);
            print_message("%s, temperature %.1f: %llu of %llu drafted tokens accepted\n", heads[h],
                          (double)temperatures[i], (unsigned long long)s.accepted_by_head,
                          (unsigned long long)s.drafted_by_head);
            assert_true(s.drafted_by_head > 0 && 4 * s.accepted_by_head > s.drafted_by_head);
        }
    }
}

/* ---- Refusals ---- */

static void check_refused(const char *name, const char *own, const char *device, int status,
                          const char *words)
{
    char path[1024], own_path[1024];
    moe_engine *engine = NULL;
    moe_error err = {""};
    moe_engine_options options = oracle_options(path, oracle_folder, name);
    bool eagle = own != NULL && strncmp(own, "eagle3", 6) == 0;
    snprintf(own_path, sizeof own_path, "%s/%s/%s.gguf", oracle_folder, own != NULL ? own : "",
             eagle ? "head" : "model");
    options.speculate = MOE_SPECULATE_MTP;
    options.draft_model = own != NULL ? own_path : NULL;
    options.device = device;
    assert_int_equal(moe_engine_open(&engine, &options, &err), status);
    if (strstr(err.message, words) == NULL) {
        fail_msg("%s: \"%s\" does not say \"%s\"", name, err.message, words);
    }
}

/* ---- An EAGLE-3 head's file ---- */

/* Opens a copy of eagle3's head in which the u32 that stands `at` bytes behind a key is another
 * one; 1 is a byte (true). Without a key element `at` of d2t is another one. */
static int open_patched(const char *key, size_t at, uint64_t value, moe_error *err)
{
    char path[1024], own[1024], copy[] = "/tmp/moe-eagle-XXXXXX";
    static uint8_t bytes[1 << 17];
    snprintf(own, sizeof own, "%s/eagle3/head.gguf", oracle_folder);
    FILE *file = fopen(own, "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes, file), n = strlen(key);
    fclose(file);
    assert_true(size > 0 && size < sizeof bytes);
    moe_gguf *gguf;
    assert_int_equal(moe_gguf_open(&gguf, own, NULL), MOE_OK);
    const moe_gguf_tensor *tokens = moe_gguf_find_tensor(gguf, "d2t");
    if (n == 0) {
        memcpy(bytes + tokens->offset + 8 * at, &value, sizeof value);
    }
    moe_gguf_close(&gguf);
    for (size_t i = 0; n > 0 && i + n + at + 4 < size; i++) {
        if (memcmp(bytes + i, key, n) == 0) {
            memcpy(bytes + i + n + at, &value, value == 1 ? 1 : sizeof(uint32_t));
            n = 0;
        }
    }
    assert_int_equal(n, 0);
    int fd = mkstemp(copy);
    assert_true(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    close(fd);
    moe_engine *engine = NULL;
    moe_engine_options options = oracle_options(path, oracle_folder, "eagle3");
    options.speculate = MOE_SPECULATE_MTP;
    options.draft_model = copy;
    int status = moe_engine_open(&engine, &options, err);
    moe_engine_close(&engine);
    unlink(copy);
    return status;
}

static void eagle_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        size_t
            at; /* a number's value stands behind its type, an array's elements behind 16 bytes */
        uint64_t value;
        int status;
        const char *words;
    } rows[] = {
        {"eagle3.vocab_size", 4, 96, MOE_OK, ""},
        {"eagle3.vocab_size", 4, 100, MOE_ERR_MISMATCH, "the model has 96"},
        {"eagle3.target_hidden_size", 4, 64, MOE_ERR_MISMATCH, "the model's is 32"},
        {"eagle3.target_layers", 20, 4, MOE_ERR_MISMATCH, "the model has 3 layers"},
        {"eagle3.block_count", 4, 2, MOE_ERR_UNSUPPORTED, "2 layers"},
        {"eagle3.attention.head_count_kv", 4, 3, MOE_ERR_UNSUPPORTED, "is not run"},
        {"eagle3.feed_forward_length", 4, 56, MOE_ERR_FORMAT, "'blk.0.ffn_gate.weight'"},
        {"eagle3.norm_before_fc", 4, 1, MOE_ERR_FORMAT, "'enc.output_norm.weight' is missing"},
        {"blk.0.attn_norm_", 0, 0x776f6e6b, MOE_ERR_FORMAT, "attn_norm_2.weight' is missing"},
        {"", 5, 96, MOE_ERR_FORMAT, "no token of the model"},
        {"", 5, UINT64_MAX, MOE_ERR_FORMAT, "element 5 of 'd2t' is -1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        moe_error err = {""};
        int status = open_patched(rows[i].key, rows[i].at, rows[i].value, &err);
        if (status != rows[i].status || strstr(err.message, rows[i].words) == NULL) {
            fail_msg("row %zu: %d, \"%s\" does not say \"%s\"", i, status, err.message,
                     rows[i].words);
        }
    }
}

/* What a head takes is in the plan: its weights are, to the byte, what the plan says more. */
static void heads_are_planned(void **state)
{
    (void)state;
    for (size_t m = N_LAYERS; m < sizeof models / sizeof models[0]; m++) {
        char path[1024];
        moe_memory_plan with, without;
        moe_engine *engine = open_with_head(models[m], MOE_KV_CACHE_F16);
        with = engine->plan;
        const moe_draft_head *head = engine->draft_head;
        moe_engine *plain;
        moe_engine_options options = oracle_options(path, oracle_folder, models[m]);
        options.prefill_chunk = 16;
        plain = open_engine(&options);
        without = plain->plan;
        assert_int_equal(with.resident - without.resident, head->weights.arena_bytes);
        assert_int_equal(head->eagle->tapped_bytes, 3 * 16 * 32 * sizeof(float));
        assert_true(with.scratch >= without.scratch + moe_draft_head_scratch_bytes(head, 16));
        assert_true(moe_draft_eagle_bytes(head->eagle, 16) > head->eagle->tapped_bytes);
        moe_engine_close(&plain);
        moe_engine_close(&engine);
    }
}

static void refusals(void **state)
{
    (void)state;
    check_refused("qwen3moe", NULL, "cpu", MOE_ERR_ARGUMENT, "brings no drafting layer");
    check_refused("qwen3moe", "nextn-hyv3", "cpu", MOE_ERR_MISMATCH, "architecture 'hy_v3'");
    check_refused("glm4moe", "glm4moe-plain", "cpu", MOE_ERR_MISMATCH, "0 drafting layers");
    check_refused("glm4moe", NULL, "cpu", MOE_ERR_FORMAT, "is missing");
    check_refused("exaone-moe", NULL, "cpu", MOE_ERR_UNSUPPORTED, "which window");
    check_refused("qwen3moe", "eagle3", "cpu", MOE_ERR_MISMATCH, "models of width 32");
    check_refused("dots1-heads", "eagle3", "cpu", MOE_ERR_MISMATCH, "the model has 1 layers");
    check_refused("eagle3", "eagle3", "sim:memory=64M,link=8GB/s,latency=2us", MOE_ERR_UNSUPPORTED,
                  "on the CPU alone");
    check_refused("nextn-hyv3", NULL, "sim:memory=64M,link=8GB/s,latency=2us", MOE_ERR_UNSUPPORTED,
                  "on the CPU alone");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_the_reference), cmocka_unit_test(entries_follow_the_text),
        cmocka_unit_test(trained_layers_are_right), cmocka_unit_test(eagle_refusals),
        cmocka_unit_test(heads_are_planned),        cmocka_unit_test(refusals),
    };
    if (argc != 3) {
        fprintf(stderr, "usage: %s ORACLE_FOLDER DEMO_FOLDER\n", argv[0]);
        return 2;
    }
    oracle_folder = argv[1];
    demo_folder = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
