/* SPDX-License-Identifier: MIT */
/* What the survival controller loses and gains on simulated processes, compared with the others.
 * With the argument -v: a table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "tests/draft/length_process.h"

static bool verbose;

static void run_of(moe_length_kind kind, uint32_t max, const length_process *process,
                   length_outcome *outcome)
{
    moe_length_options options = {.kind = kind, .max_draft = max, .draft_pass = process->draft > 0};
    moe_length_control *control = length_control_new(&options);
    length_process_run(process, control, outcome);
    moe_length_control_free(&control);
}

static void survival_costs_little_at_worst(void **state)
{
    (void)state;
    double worst[2] = {0, 0};
    static const moe_length_kind kinds[] = {MOE_LENGTH_SURVIVAL, MOE_LENGTH_CASCADE};
    for (uint64_t seed = 1; seed <= 600; seed++) {
        length_process p = length_process_random(seed);
        for (int i = 0; i < 2; i++) {
            length_outcome outcome;
            run_of(kinds[i], 8, &p, &outcome);
            worst[i] = outcome.excess > worst[i] ? outcome.excess : worst[i];
        }
    }
    print_message("worst slow-down of 600 processes: survival %.2f %%, cascade %.2f %%\n",
                  100 * worst[0], 100 * worst[1]);
    assert_true(worst[0] <= 0.015);
}

/* Short runs, where the first probe is much of the whole: all but one in a hundred of them. */
static void survival_begins_with_care(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {250, 500, 1000};
    for (int i = 0; i < 3; i++) {
        uint32_t n_slower = 0;
        double sum = 0;
        for (uint64_t seed = 1; seed <= 600; seed++) {
            length_process p = length_process_random(seed);
            p.n_iterations = lengths[i];
            p.drift = 0;
            length_outcome outcome;
            run_of(MOE_LENGTH_SURVIVAL, 8, &p, &outcome);
            n_slower += outcome.excess > 0.02;
            sum += outcome.excess;
        }
        print_message("%u iterations: %u of 600 lost more than 2 %%, %.2f %% on average\n",
                      lengths[i], n_slower, 100 * sum / 600);
        assert_true(n_slower <= 6);
    }
}

#define SURE 0.95f /* confidence */

/* How many tokens of such a draft are verified. */
static uint32_t cut_draft(const moe_length_control *control, uint32_t k)
{
    double survival[UINT8_MAX], path = 1;
    for (uint32_t i = 0; i < k; i++) {
        path *= moe_length_survival(control, i + 1, SURE);
        survival[i] = path;
    }
    return k > 0 ? moe_length_cut(control, survival, NULL, k, 1) : 0;
}

/* One iteration of a sequence; all of the draft stands, or nothing does. Of a plain token's cost
 * `misses` is for experts, and of a row's as much of its own. Returns how much was verified. */
static uint32_t draft_once(moe_length_control *control, double plain, double misses, double row,
                           bool stands)
{
    uint32_t k = cut_draft(control, moe_length_begin(control, 1));
    moe_length_iteration iteration = {.n_sequences = 1,
                                      .n_drafted = k,
                                      .n_rows = 1 + k,
                                      .n_emitted = stands ? 1 + k : 1,
                                      .verify_cost = plain + k * row,
                                      .fetch_cost = misses * (1 + k * row / plain),
                                      .models_misses = misses > 0,
                                      .modelled_fetch = misses * (1 + k * row / plain),
                                      .plain_fetch = misses * (stands ? 1 + k : 1),
                                      .fresh = -1,
                                      .resident_share = -1};
    for (uint32_t i = 0; i < (stands ? k : k > 0); i++) {
        moe_length_note_token(control, i + 1, SURE, stands);
    }
    moe_length_end(control, &iteration);
    return k;
}

/* The first tokens cost three times the later ones, by misses that are modelled or for another
 * reason: a debt of theirs must not outlive them, nor refused drafts be taken for gains because
 * plain tokens were dear. */
static void lose_early(double row, bool models_misses)
{
    moe_length_control *control = length_control_of(MOE_LENGTH_SURVIVAL, 8);
    double plain = 0, lost = 0;
    uint32_t n_drafts = 0;
    for (uint32_t t = 0; t < 1000; t++) {
        double cost = t < 40 ? 3000 : 1000;
        uint32_t k = draft_once(control, cost, models_misses ? cost - 500 : 0, row * cost, false);
        plain += cost;
        lost += k * row * cost;
        n_drafts += k > 0;
        moe_length_note_token(control, 1, SURE,
                              true); /* silent drafts promise what is never kept */
        assert_true(t < 128 || lost <= 0.02 * plain);
    }
    assert_true(n_drafts > 0);
    moe_length_control_free(&control);
}

typedef struct batch_outcome {
    double plain, cost;
    uint32_t n_listened, n_drafted; /* iterations */
    bool heard_first;               /* before the first draft */
} batch_outcome;

/* n_tokens of n sequences. A plain pass costs 100 and 900 for misses, and a row more of every
 * sequence 10 and `fresh` times these misses; a draft pass `pass`. Every drafted token stands, or
 * none. resident: of what plain rows choose; below 0: not known. */
typedef struct batch_case {
    uint32_t n, n_tokens;
    double fresh, resident, pass;
    bool stands;
} batch_case;

static batch_outcome decode_batch_of(const batch_case *c)
{
    uint32_t n = c->n;
    bool stands = c->stands;
    double fresh = c->fresh, resident = c->resident;
    moe_length_options options = {.kind = MOE_LENGTH_SURVIVAL, .max_draft = 8, .draft_pass = 1};
    moe_length_control *control = length_control_new(&options);
    batch_outcome outcome = {0};
    for (uint32_t done = 0; done < c->n_tokens;) {
        uint32_t k = moe_length_begin(control, n);
        uint32_t heard = k == 0 ? moe_length_listen(control) : 0;
        uint32_t tokens = stands ? 1 + k : 1;
        double fetch = 900 * (1 + k * fresh);
        moe_length_iteration iteration = {.n_sequences = n,
                                          .n_drafted = n * k,
                                          .n_draft_passes = k + heard,
                                          .n_rows = n * (1 + k),
                                          .n_emitted = n * tokens,
                                          .draft_cost = c->pass * (k + heard),
                                          .verify_cost = 100 + 10 * k + fetch,
                                          .fetch_cost = fetch,
                                          .models_misses = true,
                                          .modelled_fetch = fetch,
                                          .plain_fetch = 900 * tokens,
                                          .fresh = fresh,
                                          .resident_share = resident};
        for (uint32_t i = 0; i < n * (k + heard) && (stands || i < n); i++) {
            moe_length_note_token(control, 1 + i / n, 0.5f, stands);
        }
        moe_length_end(control, &iteration);
        outcome.heard_first |= heard > 0 && outcome.n_drafted == 0;
        outcome.n_listened += heard > 0;
        outcome.n_drafted += k > 0;
        outcome.plain += 1000 * tokens;
        outcome.cost += iteration.verify_cost + iteration.draft_cost;
        done += tokens;
    }
    moe_length_control_free(&control);
    return outcome;
}

static batch_outcome decode_resident_batch(uint32_t n, double fresh, bool stands, double resident)
{
    batch_case c = {n, 64, fresh, resident, 50, stands};
    return decode_batch_of(&c);
}

static batch_outcome decode_batch(uint32_t n, double fresh, bool stands)
{
    return decode_resident_batch(n, fresh, stands, -1);
}

/* A self draft of a batch is verified at once where most of what rows choose is in memory, and not
 * even listened to where little is. A wrong guess costs one draft of one token. */
static void survival_guesses_from_what_is_in_memory(void **state)
{
    (void)state;
    for (uint32_t n = 8; n <= 32; n *= 4) {
        batch_outcome most = decode_resident_batch(n, 0.5, true, 0.8);
        assert_true(most.n_listened == 0 && most.plain > 1.3 * most.cost);
        assert_true(most.cost / most.plain <
                    decode_batch(n, 0.5, true).cost / decode_batch(n, 0.5, true).plain);
        batch_outcome little = decode_resident_batch(n, 0.5, true, 0.2);
        assert_true(little.n_listened == 0 && little.n_drafted == 0);
        batch_outcome wrong = decode_resident_batch(n, 0.5, false, 0.8);
        assert_true(wrong.n_drafted > 0 && wrong.cost <= 1.01 * wrong.plain);
    }
}

/* The greatest share lost of 32 tokens of 1, 8 and 32 sequences, nothing of whose drafts ever
 * stands, however dear passes and rows are. Adds to *n_tried the cases that listened or drafted. */
static double worst_of_32_tokens(double resident, uint32_t *n_tried)
{
    static const uint32_t sequences[] = {1, 8, 32};
    static const double freshes[] = {0.05, 0.1, 0.2, 0.3, 0.5, 1};
    static const double passes[] = {5, 30, 60, 100}; /* no more than a plain pass computes */
    double worst = 0;
    for (uint32_t i = 0; i < 3 * 6 * 4; i++) {
        batch_case c = {.n = sequences[i / 24],
                        .n_tokens = 32,
                        .fresh = freshes[i % 6],
                        .resident = resident,
                        .pass = passes[i / 6 % 4]};
        batch_outcome outcome = decode_batch_of(&c);
        double lost = outcome.cost / outcome.plain - 1;
        *n_tried += outcome.n_listened + outcome.n_drafted > 0;
        worst = lost > worst ? lost : worst;
    }
    return worst;
}

/* A drafter that is heard first loses at most 1 %. A guess from what is in memory is no evidence:
 * where it is wrong of every sequence at once, the draft that shows it may lose more. */
static void survival_loses_little_of_32_tokens(void **state)
{
    (void)state;
    uint32_t n_heard = 0, n_hopeless = 0, n_guessed = 0;
    double heard = worst_of_32_tokens(-1, &n_heard);
    double hopeless = worst_of_32_tokens(0.3, &n_hopeless);
    double wrong = worst_of_32_tokens(0.95, &n_guessed);
    print_message("worst of 32 tokens: heard %.2f %%, hopeless %.2f %%, guessed wrong %.2f %%\n",
                  100 * heard, 100 * hopeless, 100 * wrong);
    assert_true(n_heard > 35 && n_guessed > 35 && n_hopeless <= 30);
    assert_true(heard <= 0.01 && hopeless <= 0.01 && wrong <= 0.02);
}

static void survival_takes_what_batches_share(void **state)
{
    (void)state;
    for (uint32_t n = 8; n <= 32; n *= 4) {
        batch_outcome good = decode_batch(n, 0.6, true);
        assert_true(good.heard_first && good.plain > 1.3 * good.cost);
        batch_outcome shared = decode_batch(n, 0.1, true);
        assert_true(shared.plain / shared.cost > good.plain / good.cost);
        batch_outcome bad = decode_batch(n, 0.6, false);
        assert_true(bad.n_listened > 0 && bad.n_drafted == 0);
        assert_true(bad.cost <= 1.02 * bad.plain);
        assert_true(decode_batch(n, 0.1, false).cost <= 1.02 * bad.plain);
    }
    assert_int_equal(decode_batch(2, 0.6, true).n_listened, 0); /* too few to pay for passes */
}

static void survival_counts_its_debts_in_costs(void **state)
{
    (void)state;
    static const double rows[] = {0.2, 0.5, 1.0, 1.5, 2.0};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        lose_early(rows[r], true);
        if (rows[r] <= 1) { /* without misses a row costs at most a pass of its own */
            lose_early(rows[r], false);
        }
    }
}

/* Iterations until the first draft, when silent ones stand or do not, or are not made at all. */
static uint32_t first_draft(bool heard, bool stands)
{
    moe_length_control *control = length_control_of(MOE_LENGTH_SURVIVAL, 8);
    uint32_t t = 0;
    for (; t < 500; t++) {
        uint32_t k = draft_once(control, 1000, 0, 350, stands);
        if (k > 0) {
            break;
        }
        assert_true(moe_length_hears_silent_drafts(control));
        if (heard) {
            moe_length_note_token(control, 1, SURE, stands);
        }
    }
    moe_length_control_free(&control);
    return t;
}

static void survival_hears_silent_drafts(void **state)
{
    (void)state;
    assert_int_equal(first_draft(false, true), 500);
    assert_true(first_draft(true, true) < 40);
    assert_int_equal(first_draft(true, false), 500); /* nothing was lost */
    moe_length_control *cascade = length_control_of(MOE_LENGTH_CASCADE, 3);
    assert_false(moe_length_hears_silent_drafts(cascade));
    moe_length_control_free(&cascade);
}

/* Throughput against the best static K, on processes where one of them wins. */
static void controllers_reach_the_best_static_length(void **state)
{
    (void)state;
    static const double accepts[] = {0.6, 0.75, 0.85, 0.95};
    for (size_t i = 0; i < sizeof accepts / sizeof *accepts; i++) {
        for (uint64_t seed = 1; seed <= 5; seed++) {
            length_process p = {.seed = seed,
                                .n_iterations = N_ITERATIONS,
                                .fade = 0.95,
                                .accept = accepts[i],
                                .spread = 0.05,
                                .row = 0.12,
                                .draft = 0.03,
                                .noise = 0.2,
                                .outliers = 0.01};
            double best = 0;
            for (uint32_t k = 1; k <= 8; k++) {
                length_outcome o;
                run_of(MOE_LENGTH_STATIC, k, &p, &o);
                best = 1 / (1 + o.excess) > best ? 1 / (1 + o.excess) : best;
            }
            length_outcome survival, cascade;
            run_of(MOE_LENGTH_SURVIVAL, 8, &p, &survival);
            run_of(MOE_LENGTH_CASCADE, 8, &p, &cascade);
            double s = 1 / (1 + survival.excess) / best, c = 1 / (1 + cascade.excess) / best;
            if (verbose) {
                print_message("accept %.2f seed %u: best static %.2fx, survival %.3f of it, "
                              "cascade %.3f\n",
                              accepts[i], (unsigned)seed, best, s, c);
            }
            assert_true(s >= 0.91);
            assert_true(c >= 0.91);
        }
    }
}

/* Phases of which one pays: better than never, and than the static K that does best of all. */
static void survival_follows_phases(void **state)
{
    (void)state;
    length_process p = {.seed = 3,
                        .n_iterations = N_ITERATIONS,
                        .fade = 0.95,
                        .accept = 0.9,
                        .accept_other = 0.02,
                        .phase = 500,
                        .spread = 0.02,
                        .row = 0.5,
                        .noise = 0.1};
    length_outcome best = {0}, survival;
    for (uint32_t k = 1; k <= 8; k++) {
        length_outcome o;
        run_of(MOE_LENGTH_STATIC, k, &p, &o);
        best = k == 1 || o.excess < best.excess ? o : best;
    }
    run_of(MOE_LENGTH_SURVIVAL, 8, &p, &survival);
    assert_true(survival.excess < -0.05);
    assert_true(survival.excess < best.excess);
}

int main(int argc, char **argv)
{
    verbose = argc > 1 && strcmp(argv[1], "-v") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survival_costs_little_at_worst),
        cmocka_unit_test(survival_begins_with_care),
        cmocka_unit_test(survival_takes_what_batches_share),
        cmocka_unit_test(survival_loses_little_of_32_tokens),
        cmocka_unit_test(survival_guesses_from_what_is_in_memory),
        cmocka_unit_test(survival_counts_its_debts_in_costs),
        cmocka_unit_test(survival_hears_silent_drafts),
        cmocka_unit_test(controllers_reach_the_best_static_length),
        cmocka_unit_test(survival_follows_phases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
