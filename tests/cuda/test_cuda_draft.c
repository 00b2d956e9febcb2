/* SPDX-License-Identifier: MIT */
/* Self drafts that the emulated GPU carries out alone, recorded as a graph: their logits have the
 * bits of drafts whose routing the host resolves, with every kind of stand-in, and texts and drafts
 * of whole conversations are the same. Drafts that cannot be recorded work as before. Runs on a
 * model given by path. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../engine/engine_fixture.h"
#include "../engine/engine_options.h"
#include "fake_module.h"
#include "runtime/engine/engine_state.h"

#define N_PROMPT 12
#define N_DECODE 10

static const char *model_path;

static fake_module fake;

static char last_log[1024];

static void keep_log(const char *line, void *user)
{
    (void)user;
    if (strstr(line, "drafts are routed by the host") != NULL) {
        snprintf(last_log, sizeof last_log, "%s", line);
    }
}

static int find_fake(void **state)
{
    (void)state;
    find_fake_module(&fake);
    return 0;
}

/* Nothing in a run depends on when a read arrives. The device reads no expert in host memory: it
 * would hold other experts than one whose passes the host routes, and drafts follow what it holds.
 */
static moe_engine_options draft_options(moe_stand_in affinity)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.n_threads = 2;
    options.prefill_chunk = 16;
    options.context = 192;
    options.device = "cuda";
    options.expert_cache_share = 0.5;
    options.host_compute = MOE_SWITCH_OFF;
    options.prefetch = MOE_SWITCH_OFF;
    options.speculate = MOE_SPECULATE_SELF;
    lab_of(&options)->cost_by_bytes = true;
    lab_of(&options)->read_in_place = MOE_SWITCH_OFF;
    lab_of(&options)->length_control = MOE_LENGTH_STATIC;
    options.draft_max = 3;
    lab_of(&options)->affinity = affinity;
    options.log = keep_log;
    return options;
}

static fake_machine machine_failing(const char *call, cudaError_t code)
{
    fake_machine machine;
    fake.init(&machine);
    machine.nap_us = 50;
    machine.fail_call = call;
    machine.fail_code = code;
    return machine;
}

static void use_machine(const char *fail_call, uint32_t after, cudaError_t code, bool for_good)
{
    fake_machine machine = machine_failing(fail_call, code);
    machine.fail_after = after;
    machine.fail_for_good = for_good;
    fake.set(&machine);
}

/* Every such call fails, and nothing else. */
static void use_machine_without(const char *call, cudaError_t code)
{
    fake_machine machine = machine_failing(call, code);
    machine.fail_each = true;
    fake.set(&machine);
}

/* ---- Logits of single draft passes ---- */

typedef struct logits {
    uint32_t n_vocab;
    float *values;
} logits;

static bool copy_logits(uint32_t row, const float *hidden, const float *values, void *user)
{
    (void)hidden;
    const logits *out = user;
    assert_int_equal(row, 0);
    memcpy(out->values, values, out->n_vocab * sizeof *values);
    return true;
}

static bool copy_greatest(uint32_t row, const moe_greatest *value, void *user)
{
    moe_greatest *out = user;
    assert_int_equal(row, 0);
    *out = *value;
    return true;
}

/* What the draft thinks of a token behind the timeline: out or greatest, the other is NULL. */
static void draft_one(moe_engine *engine, moe_session *session, int32_t token, logits *out,
                      moe_greatest *greatest)
{
    moe_error err = {""};
    uint32_t at = session->n_evaluated;
    uint32_t zero = 0;
    assert_int_equal(moe_kv_table_reserve(&engine->kv, &session->kv, at, at + 1, NULL), MOE_OK);
    moe_kv_row row = moe_kv_row_at(session->kv.addresses, at);
    moe_pass pass = {.kind = MOE_PASS_DRAFT,
                     .n_rows = 1,
                     .tokens = &token,
                     .kv_rows = &row,
                     .depths = &zero,
                     .logit_rows = &zero,
                     .n_logit_rows = 1,
                     .on_logits = copy_logits,
                     .on_greatest = greatest != NULL ? copy_greatest : NULL,
                     .user = greatest != NULL ? (void *)greatest : out};
    if (moe_pass_run_draft(&engine->runner, &pass, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
}

/* Whether the greatest is that of the logits. */
static void check_greatest(const logits *all, const moe_greatest *greatest, const char *text)
{
    uint32_t best = 0;
    double sum = 0.0;
    for (uint32_t t = 1; t < all->n_vocab; t++) {
        best = all->values[t] > all->values[best] ? t : best;
    }
    for (uint32_t t = 0; t < all->n_vocab; t++) {
        sum += exp((double)(all->values[t] - all->values[best]));
    }
    assert_int_equal(greatest->index, best);
    if (fabs(greatest->share * sum - 1.0) > 1e-5) {
        fail_msg("a share of %g, not %g: %s", (double)greatest->share, 1.0 / sum, text);
    }
}

static void compare_one(moe_engine *engine, moe_session *session, int32_t token, logits two[2],
                        const char *text)
{
    moe_pass_hook *hooks = engine->runner.hooks;
    assert_true(moe_recorded_passes_has(engine->recorded, MOE_RECORDED_DRAFT));
    moe_greatest greatest[2];
    draft_one(engine, session, token, &two[0], NULL);
    draft_one(engine, session, token, NULL, &greatest[0]);
    while (engine->runner.hooks != NULL && engine->runner.hooks->order == MOE_HOOK_RECORDED) {
        engine->runner.hooks = engine->runner.hooks->next; /* the host routes */
    }
    draft_one(engine, session, token, &two[1], NULL);
    draft_one(engine, session, token, NULL, &greatest[1]);
    engine->runner.hooks = hooks;
    check_greatest(&two[0], &greatest[0], text);
    assert_memory_equal(&greatest[0], &greatest[1], sizeof greatest[0]);
    if (memcmp(two[0].values, two[1].values, two[0].n_vocab * sizeof(float)) != 0) {
        fail_msg("other logits behind position %u: %s", session->n_evaluated, text);
    }
}

static void step(moe_engine *engine, moe_session *session)
{
    moe_error err = {""};
    if (moe_step(engine, &session, 1, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
}

/* As the timeline grows, what is resident changes, and pages are added. */
static void compare_logits(const moe_engine_options *options, uint32_t n_prompt, const char *text)
{
    use_machine(NULL, 0, cudaSuccess, false);
    moe_engine *engine = open_engine(options);
    logits two[2];
    int32_t prompt[160];
    for (int i = 0; i < 2; i++) {
        two[i].n_vocab = engine->config.n_vocab;
        two[i].values = calloc(two[i].n_vocab, sizeof(float));
    }
    make_prompt(prompt, n_prompt, engine->config.n_vocab, 3);
    moe_session *session = greedy_session(engine);
    uint64_t n_recordings = engine->speculation->stats.draft_recordings;
    for (uint32_t fed = 0; fed < n_prompt;) {
        uint32_t n = n_prompt - fed < 16 ? n_prompt - fed : 16;
        feed(session, prompt + fed, n);
        session->evaluate_only = true;
        step(engine, session);
        fed += n;
        for (int32_t token = 5; token < 8; token++) {
            compare_one(engine, session, token, two, text);
        }
        assert_int_equal(engine->speculation->n_recorded_passes, 6); /* of this step */
    }
    n_recordings = engine->speculation->stats.draft_recordings - n_recordings;
    assert_int_equal(n_recordings, n_prompt > 128 ? 2 : 1);
    for (int i = 0; i < 2; i++) {
        free(two[i].values);
    }
    moe_session_close(&session);
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
}

static const moe_stand_in fills[] = {MOE_STAND_IN_TOPK, MOE_STAND_IN_NONE, MOE_STAND_IN_SHUFFLED};
static const char *const fill_names[] = {"topk", "none", "shuffled"};

static void same_logits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof fills / sizeof fills[0]; i++) {
        moe_engine_options options = draft_options(fills[i]);
        compare_logits(&options, i == 0 ? 140 : 32, fill_names[i]);
    }
    /* With fewer residents than a token uses in some layers. */
    moe_engine_options options = draft_options(MOE_STAND_IN_SHUFFLED);
    moe_memory_plan plan = {.struct_size = sizeof plan};
    options.expert_cache_share = 0;
    assert_int_equal(moe_plan_memory(&options, &plan, NULL), MOE_OK);
    options.device_memory = plan.device_floor;
    compare_logits(&options, 16, "few slots");
}

/* ---- Whole runs ---- */

typedef struct outcome {
    int status;
    moe_error err;
    int32_t tokens[N_DECODE];
    moe_speculation_stats stats;
} outcome;

/* On the machine as it has been set. */
static void write_text(const moe_engine_options *options, bool sampled, outcome *out)
{
    memset(out, 0, sizeof *out);
    moe_engine *engine = NULL;
    moe_session *session = NULL;
    last_log[0] = '\0';
    out->status = moe_engine_open(&engine, options, &out->err);
    size_t n = 0;
    if (out->status == MOE_OK) {
        int32_t prompt[N_PROMPT];
        moe_session_options how;
        moe_session_options_init(&how);
        how.sampling.temperature = sampled ? 0.8f : 0.0f;
        how.sampling.seed = 11;
        out->status = moe_session_create(&session, engine, &how, &out->err);
        make_prompt(prompt, N_PROMPT, engine->config.n_vocab, 1);
        if (out->status == MOE_OK) {
            feed(session, prompt, N_PROMPT);
        }
    }
    while (out->status == MOE_OK && n < N_DECODE) {
        out->status = moe_step(engine, &session, 1, &out->err);
        n += moe_session_take(session, out->tokens + n, N_DECODE - n);
    }
    if (engine != NULL) {
        moe_engine_stats stats = {.struct_size = sizeof stats};
        moe_engine_get_stats(engine, &stats);
        out->stats = stats.speculation;
    }
    moe_session_close(&session);
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
}

static void assert_same_drafts(const outcome *a, const outcome *b, const char *text)
{
    if (a->status != MOE_OK || b->status != MOE_OK) {
        fail_msg("%s: %s%s", text, a->err.message, b->err.message);
    }
    if (memcmp(a->tokens, b->tokens, sizeof a->tokens) != 0) {
        fail_msg("other tokens: %s", text);
    }
    assert_int_equal(a->stats.drafted, b->stats.drafted);
    assert_int_equal(a->stats.accepted, b->stats.accepted);
    assert_int_equal(a->stats.passes, b->stats.passes);
    assert_int_equal(a->stats.draft_passes, b->stats.draft_passes);
    assert_memory_equal(a->stats.drafted_at, b->stats.drafted_at, sizeof a->stats.drafted_at);
    assert_memory_equal(a->stats.accepted_at, b->stats.accepted_at, sizeof a->stats.accepted_at);
}

/* Recorded, and on a runtime that does not capture. */
static void same_drafts(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        moe_engine_options options = draft_options(fills[i % 3]);
        lab_of(&options)->length_control = i == 3 ? MOE_LENGTH_CASCADE : MOE_LENGTH_STATIC;
        outcome alone, routed;
        use_machine(NULL, 0, cudaSuccess, false);
        write_text(&options, i >= 3, &alone);
        use_machine_without("cudaStreamBeginCapture", cudaErrorNotSupported);
        write_text(&options, i >= 3, &routed);
        assert_same_drafts(&alone, &routed, fill_names[i % 3]);
        assert_true(alone.stats.draft_passes > 0);
        assert_int_equal(alone.stats.draft_passes_recorded, alone.stats.draft_passes);
        assert_int_equal(alone.stats.draft_recordings, 1);
        assert_int_equal(routed.stats.draft_passes_recorded, 0);
        assert_int_equal(alone.stats.draft_moves, 0);
    }
}

/* Without the switch of draft_options: experts read in host memory change what a device holds, and
 * with it drafts, but no token. */
static void experts_in_host_memory(void **state)
{
    (void)state;
    moe_engine_options options = draft_options(MOE_STAND_IN_TOPK);
    outcome moved, in_place;
    use_machine(NULL, 0, cudaSuccess, false);
    write_text(&options, true, &moved);
    lab_of(&options)->read_in_place = MOE_SWITCH_ON;
    use_machine(NULL, 0, cudaSuccess, false);
    write_text(&options, true, &in_place);
    assert_int_equal(in_place.status, MOE_OK);
    assert_memory_equal(moved.tokens, in_place.tokens, sizeof moved.tokens);
    assert_true(in_place.stats.draft_passes > 0);
    assert_int_equal(in_place.stats.draft_passes_recorded, in_place.stats.draft_passes);
}

/* Foresight learns of the picks when the pass is over, and verification is as exact. */
static void foresight(void **state)
{
    (void)state;
    moe_engine_options options = draft_options(MOE_STAND_IN_TOPK);
    outcome plain, foreseen;
    use_machine(NULL, 0, cudaSuccess, false);
    write_text(&options, false, &plain);
    lab_of(&options)->foresight = MOE_SWITCH_ON;
    use_machine(NULL, 0, cudaSuccess, false);
    write_text(&options, false, &foreseen);
    assert_int_equal(foreseen.status, MOE_OK);
    assert_memory_equal(plain.tokens, foreseen.tokens, sizeof plain.tokens);
    assert_int_equal(plain.stats.foresight_all, 0);
    assert_true(foreseen.stats.foresight_right > 0);
    assert_int_equal(foreseen.stats.draft_passes_recorded, foreseen.stats.draft_passes);
}

/* Trees, and stand-ins by chance. */
static void others_are_routed_by_the_host(void **state)
{
    (void)state;
    moe_engine_options options = draft_options(MOE_STAND_IN_RANDOM);
    outcome got;
    use_machine(NULL, 0, cudaSuccess, false);
    write_text(&options, false, &got);
    assert_int_equal(got.status, MOE_OK);
    assert_true(got.stats.draft_passes > 0);
    assert_int_equal(got.stats.draft_passes_recorded, 0);
    options = draft_options(MOE_STAND_IN_TOPK);
    options.tree_nodes = 4;
    write_text(&options, false, &got);
    assert_int_equal(got.status, MOE_OK);
    assert_true(got.stats.draft_passes > 0);
    assert_int_equal(got.stats.draft_passes_recorded, 0);
}

/* ---- What goes wrong ---- */

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *call;
        cudaError_t code;
        const char *named; /* in the log */
    } cases[] = {
        {"cudaStreamBeginCapture", cudaErrorNotSupported, "cudaStreamBeginCapture"},
        {"captured kernel", cudaErrorStreamCaptureUnsupported, "launching a kernel"},
        {"cudaStreamEndCapture", cudaErrorStreamCaptureInvalidated, "cudaStreamEndCapture"},
        {"cudaGraphInstantiate", cudaErrorMemoryAllocation, "cudaGraphInstantiate"},
    };
    moe_engine_options options = draft_options(MOE_STAND_IN_TOPK);
    outcome alone, got;
    use_machine(NULL, 0, cudaSuccess, false);
    write_text(&options, false, &alone);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        use_machine_without(cases[i].call, cases[i].code);
        write_text(&options, false, &got);
        assert_same_drafts(&alone, &got, cases[i].call);
        assert_int_equal(got.stats.draft_passes_recorded, 0);
        assert_int_equal(got.stats.draft_recordings, 0);
        assert_non_null(strstr(last_log, cases[i].named));
    }
}

/* A device that is lost while it plays fails the step, with a remedy. */
static void losses(void **state)
{
    (void)state;
    moe_engine_options options = draft_options(MOE_STAND_IN_TOPK);
    outcome well;
    fake_usage usage;
    use_machine(NULL, 0, cudaSuccess, false);
    write_text(&options, false, &well);
    assert_int_equal(well.status, MOE_OK);
    fake.usage(&usage);
    assert_true(usage.n_graphs >= well.stats.draft_passes);
    const struct {
        const char *call;
        uint32_t after;
    } cases[] = {{"cudaStreamBeginCapture", 0},
                 {"cudaStreamEndCapture", 0},
                 {"cudaGraphInstantiate", 0},
                 {"cudaGraphLaunch", 0},
                 {"cudaGraphLaunch", 4},
                 {"fault", (uint32_t)usage.n_kernels / 2},
                 {"fault", (uint32_t)usage.n_kernels * 3 / 4}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome got;
        use_machine(cases[i].call, cases[i].after, cudaErrorLaunchFailure, true);
        write_text(&options, false, &got);
        if (got.status != MOE_ERR_DEVICE || strstr(got.err.message, "; ") == NULL) {
            fail_msg("%s: status %d: %s", cases[i].call, got.status, got.err.message);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_cuda_draft MODEL.gguf\n");
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_logits),
        cmocka_unit_test(same_drafts),
        cmocka_unit_test(experts_in_host_memory),
        cmocka_unit_test(foresight),
        cmocka_unit_test(others_are_routed_by_the_host),
        cmocka_unit_test(refusals),
        cmocka_unit_test(losses),
    };
    return cmocka_run_group_tests(tests, find_fake, NULL);
}
