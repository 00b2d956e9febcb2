/* SPDX-License-Identifier: MIT */
/* What speculation costs, in modelled bytes and so without noise: `auto` loses at most 2 % on any
 * text and cache size, at the end and at any time before that from N_EARLY tokens on, and its
 * shadow of plain decoding is what plain decoding costs. The first tokens cost several times the
 * later ones, as caches are cold: what is lost on them weighs most. Usage: test_modelled_cost
 * MODEL.gguf TEXT... */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_fixture.h"
#include "engine_options.h"

#define N_PROMPT  96
#define N_DECODE  384
#define N_EARLY   128
#define MOST_LOST 0.02
#define WIN       1.3
#define ROUNDING  1e-9 /* of sums in another order; a single miss is 1e-4 */
#define MOST_TEXT (1 << 20)

static char **arguments; /* MODEL TEXT... */

typedef struct costs {
    double actual, plain;
    double worst; /* plain over actual, at any time from N_EARLY tokens on */
    size_t n_tokens;
    int32_t tokens[N_DECODE + 64];
} costs;

static moe_engine *open_with(moe_speculate speculate, double share)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = arguments[0];
    options.n_threads = 1;
    options.context = 512;
    options.expert_cache_share = share;
    options.speculate = speculate;
    lab_of(&options)->cost_by_bytes = true;
    return open_engine(&options);
}

static void load_prompt(const char *path, int32_t *prompt)
{
    char *text = calloc(1, MOST_TEXT);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(text, 1, MOST_TEXT, file);
    fclose(file);
    moe_engine *engine = open_with(MOE_SPECULATE_OFF, 1.0);
    int32_t *tokens;
    size_t n;
    size_t begin = size / 3; /* beyond licences and titles */
    assert_int_equal(moe_tokenize(engine, text + begin, size - begin, 0, &tokens, &n, NULL),
                     MOE_OK);
    assert_true(n >= N_PROMPT);
    memcpy(prompt, tokens, N_PROMPT * sizeof *prompt);
    moe_free(tokens);
    moe_engine_close(&engine);
    free(text);
}

/* Writes at least n tokens. */
static void write_tokens(moe_engine *engine, const int32_t *prompt, size_t n, costs *out)
{
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    out->n_tokens = 0;
    out->worst = 1;
    moe_engine_stats stats = {.struct_size = sizeof stats};
    while (out->n_tokens < n) {
        moe_error err = {""};
        if (moe_step(engine, &session, 1, &err) != MOE_OK) {
            fail_msg("%s", err.message);
        }
        out->n_tokens += moe_session_take(session, out->tokens + out->n_tokens, 64);
        moe_engine_get_stats(engine, &stats);
        out->actual = stats.speculation.modelled_cost;
        out->plain = stats.speculation.modelled_plain_cost;
        if (out->n_tokens >= N_EARLY && out->plain < out->worst * out->actual) {
            out->worst = out->plain / out->actual;
        }
    }
    moe_session_close(&session);
    moe_engine_close(&engine);
}

static double compare(const char *path, double share, double *worst)
{
    int32_t prompt[N_PROMPT];
    load_prompt(path, prompt);
    costs with, without;
    write_tokens(open_with(MOE_SPECULATE_AUTO, share), prompt, N_DECODE, &with);
    write_tokens(open_with(MOE_SPECULATE_OFF, share), prompt, with.n_tokens, &without);
    assert_int_equal(with.n_tokens, without.n_tokens);
    assert_memory_equal(with.tokens, without.tokens, with.n_tokens * sizeof *with.tokens);
    assert_true(without.actual > 0 && fabs(without.plain / without.actual - 1) < ROUNDING);
    assert_true(fabs(with.plain / without.actual - 1) < ROUNDING);
    double ratio = without.actual / with.actual;
    printf("%s, %.0f %% of the experts: %.4f, at the worst time %.4f\n", path, 100 * share, ratio,
           with.worst);
    *worst = with.worst < *worst ? with.worst : *worst;
    return ratio;
}

static void auto_never_costs_much(void **state)
{
    (void)state;
    static const double shares[] = {0.15, 0.25, 0.5, 0.75, 1.0};
    double best = 0, worst = 1;
    for (char **text = arguments + 1; *text != NULL; text++) {
        for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
            double ratio = compare(*text, shares[i], &worst);
            best = ratio > best ? ratio : best;
        }
    }
    assert_true(worst >= 1 - MOST_LOST);
    assert_true(best >= WIN);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: test_modelled_cost MODEL.gguf TEXT...\n");
        return 2;
    }
    arguments = argv + 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(auto_never_costs_much)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
