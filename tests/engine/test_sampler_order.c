/* SPDX-License-Identifier: MIT */
/* The sampler's shortcuts against the plain way: the whole vocabulary sorted, every weight added
 * up, every token's logarithm taken. Distributions and drawn tokens must be the same to the bit.
 * Logits have ties, zeros of both signs, infinities and NaN. `--bench` measures instead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "runtime/base/clock.h"
#include "runtime/sampling/sampler.h"

enum { LARGEST = 151936, N_RECENT = 30 };

typedef struct long_way {
    float *logits; /* [LARGEST] */
    uint32_t n;
    moe_candidate *order; /* [LARGEST] */
    moe_choice *choices;  /* [LARGEST] */
} long_way;

static int descending(const void *a, const void *b)
{
    const moe_candidate *x = a, *y = b;
    if (x->logit != y->logit) {
        return x->logit > y->logit ? -1 : 1;
    }
    return (x->token > y->token) - (x->token < y->token);
}

static void put_in_order(const moe_sampling *s, uint32_t n_vocab, const int32_t *recent,
                         long_way *out)
{
    for (uint32_t t = 0; t < n_vocab; t++) {
        float logit = isnan(out->logits[t]) ? -INFINITY : out->logits[t];
        bool is_recent = false;
        for (uint32_t i = N_RECENT - s->repeat_last; i < N_RECENT; i++) {
            is_recent |= recent[i] == (int32_t)t;
        }
        if (is_recent && s->repeat_penalty != 1.0f) {
            logit = logit > 0.0f ? logit / s->repeat_penalty : logit * s->repeat_penalty;
        }
        out->order[t] = (moe_candidate){logit, (int32_t)t};
    }
    qsort(out->order, n_vocab, sizeof *out->order, descending);
}

static double weigh(long_way *way, double temperature)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < way->n; i++) {
        double below = (double)way->order[i].logit - (double)way->order[0].logit;
        way->choices[i] = (moe_choice){way->order[i].token, exp(below / temperature)};
        sum += way->choices[i].p;
    }
    return sum;
}

/* As the options are documented, one filter after the other. */
static void take_the_long_way(const moe_sampling *s, uint32_t n_vocab, const int32_t *recent,
                              long_way *out)
{
    put_in_order(s, n_vocab, recent, out);
    if (s->temperature == 0.0f || !isfinite(out->order[0].logit)) {
        out->n = 1;
        out->choices[0] = (moe_choice){out->order[0].token, 1.0};
        return;
    }
    out->n = s->top_k == 0 || s->top_k > n_vocab ? n_vocab : s->top_k;
    double sum = weigh(out, 1.0);
    if (s->top_p < 1.0f) {
        double held = 0.0;
        uint32_t n = 0;
        while (n < out->n && (n == 0 || held < (double)s->top_p * sum)) {
            held += out->choices[n++].p;
        }
        out->n = n;
    }
    while (out->n > 1 && out->choices[out->n - 1].p < (double)s->min_p * out->choices[0].p) {
        out->n--;
    }
    (void)weigh(out, (double)s->temperature);
}

static int32_t race(const long_way *way, uint64_t number)
{
    double best = INFINITY;
    int32_t winner = way->choices[0].token;
    for (uint32_t i = 0; i < way->n; i++) {
        const moe_choice *c = &way->choices[i];
        double variate = -log(moe_random_mix(number, (uint32_t)c->token));
        double arrival = c->p > 0.0 ? variate / c->p : INFINITY;
        if (arrival < best || (arrival == best && c->token < winner)) {
            best = arrival;
            winner = c->token;
        }
    }
    return winner;
}

static double gaussian(moe_random *random)
{
    double radius = sqrt(-2.0 * log(1.0 - moe_random_uniform(random)));
    return radius * cos(6.283185307179586 * moe_random_uniform(random));
}

/* A bell as of a model without a clue, and above it (peaked) a few tokens that stand out. */
static void bell(moe_random *random, float *logits, uint32_t n, bool peaked)
{
    for (uint32_t i = 0; i < n; i++) {
        logits[i] = (float)((peaked ? 2.0 : 1.0) * gaussian(random));
    }
    for (uint32_t i = 0; peaked && i < 1 + n / 800; i++) {
        logits[moe_random_next(random) % n] =
            (float)(8.0 - 3.0 * log(1.0 - moe_random_uniform(random)));
    }
}

enum { N_SHAPES = 9 };

/* What n logits may look like. */
static void shape_logits(moe_random *random, uint32_t shape, float *logits, uint32_t n)
{
    static const float odd[] = {NAN,   INFINITY, -INFINITY, 3.4e38f, -3.4e38f,
                                -0.0f, 0.0f,     1e-45f,    -1e-45f, 17.0f};
    bell(random, logits, n, shape % 2 == 1);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t dice = moe_random_next(random) >> 20;
        switch (shape) {
        case 2: /* ties: sixteen values, a zero of either sign among them */
            logits[i] = (float)(dice % 16) * 0.5f - 4.0f;
            logits[i] = logits[i] == 0.0f && dice % 32 < 16 ? -0.0f : logits[i];
            break;
        case 3: /* all alike */
            logits[i] = 0.25f;
            break;
        case 4: /* two values */
            logits[i] = dice % 2 == 0 ? 1.0f : 1.0000001f;
            break;
        case 5: /* a few that are no numbers or infinitely small */
            logits[i] = dice % 7 == 0 ? NAN : dice % 7 == 1 ? -INFINITY : logits[i];
            break;
        case 6: /* all that is odd */
            logits[i] = odd[dice % 10];
            break;
        case 7: /* odd but for infinities above */
            logits[i] = odd[2 + dice % 8];
            break;
        case 8: /* far apart */
            logits[i] *= (float)(1 << dice % 24);
            break;
        default:
            break;
        }
    }
}

static moe_sampling options_of(moe_random *random)
{
    static const float temperatures[] = {0.0f, 1.0f, 1.0f, 0.7f, 1.9f};
    static const float top_ps[] = {1.0f, 0.95f, 0.5f, 0.999999f, 0.01f, 0.25f};
    static const float min_ps[] = {0.0f, 0.0f, 0.05f, 0.5f, 1e-6f, 0.60653067f};
    static const uint32_t top_ks[] = {0, 0, 0, 1, 40, 1024, 3000, 1u << 30};
    moe_sampling s;
    moe_sampling_init(&s);
    s.temperature = temperatures[moe_random_next(random) % 5];
    s.top_p = top_ps[moe_random_next(random) % 6];
    s.min_p = min_ps[moe_random_next(random) % 6];
    s.top_k = top_ks[moe_random_next(random) % 8];
    s.repeat_penalty = moe_random_next(random) % 3 == 0 ? 1.3f : 1.0f;
    s.repeat_last = (uint32_t)(moe_random_next(random) % (N_RECENT + 1));
    s.seed = moe_random_next(random);
    return s;
}

static void make_sampler(moe_sampler *sampler, const moe_sampling *s, uint32_t n_vocab)
{
    assert_int_equal(moe_sampler_init(sampler, s, n_vocab, NULL), MOE_OK);
}

/* way: what is expected. */
static void check_distribution(const moe_distribution *d, const long_way *way)
{
    assert_int_equal(d->n, way->n);
    for (uint32_t i = 0; i < d->n; i++) {
        assert_int_equal(d->choices[i].token, way->choices[i].token);
        assert_memory_equal(&d->choices[i].p, &way->choices[i].p, sizeof d->choices[i].p);
    }
}

static void check_one(moe_random *random, uint32_t n_vocab, uint32_t shape, long_way *way)
{
    moe_sampling s = options_of(random);
    int32_t recent[N_RECENT];
    for (uint32_t i = 0; i < N_RECENT; i++) {
        recent[i] = (int32_t)(moe_random_next(random) % n_vocab);
    }
    shape_logits(random, shape, way->logits, n_vocab);
    moe_sampler sampler;
    make_sampler(&sampler, &s, n_vocab);
    moe_random numbers;
    moe_random_seed(&numbers, s.seed);
    take_the_long_way(&s, n_vocab, recent, way);
    for (uint32_t draw = 0; draw < 3; draw++) {
        moe_distribution d;
        moe_sampler_distribution(&sampler, way->logits, recent, N_RECENT, &d);
        check_distribution(&d, way);
        int32_t token =
            s.temperature == 0.0f ? way->choices[0].token : race(way, moe_random_next(&numbers));
        assert_int_equal(moe_sampler_draw(&sampler, &d), token);
    }
    moe_sampler_free(&sampler);
}

static void same_as_the_long_way(void **state)
{
    static const struct {
        uint32_t n_vocab, rounds;
    } sizes[] = {{1, 200},    {2, 500},    {3, 500},    {64, 4000},   {1000, 1500},
                 {1024, 500}, {1025, 500}, {5000, 600}, {LARGEST, 18}};
    moe_random random;
    moe_random_seed(&random, 20);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (uint32_t round = 0; round < sizes[i].rounds; round++) {
            check_one(&random, sizes[i].n_vocab, round % N_SHAPES, *state);
        }
    }
}

static uint32_t n_kept(const moe_sampling *s, uint32_t n_vocab, long_way *way)
{
    static const int32_t nothing_recent[N_RECENT] = {0};
    take_the_long_way(s, n_vocab, nothing_recent, way);
    return way->n;
}

/* Moves a token's logit between low and high to where the next float would keep another number of
 * tokens; leaves it on the low side and puts the other side in *next. False: it makes no
 * difference. */
static bool tune(const moe_sampling *s, uint32_t n_vocab, long_way *way, uint32_t token, float low,
                 float high, float *next)
{
    float *logit = &way->logits[token];
    *logit = high;
    uint32_t n_high = n_kept(s, n_vocab, way);
    *logit = low;
    uint32_t n_low = n_kept(s, n_vocab, way);
    while (n_high != n_low && nextafterf(low, high) != high) {
        float middle = low + (high - low) / 2.0f;
        *logit = middle;
        bool is_low = n_kept(s, n_vocab, way) == n_low;
        low = is_low ? middle : low;
        high = is_low ? high : middle;
    }
    *logit = low;
    *next = high;
    return n_high != n_low;
}

/* Top-p's share is made to end within the last bits of the sum, by logits that weigh less and less:
 * the sum must then be the one in order, as in any other order it rounds to another number. */
static void shares_within_the_last_bits(void **state)
{
    enum { N = 700, N_TUNERS = 3, N_ROUNDS = 40 };
    static const float depths[N_TUNERS] = {0.0f, 12.0f, 20.0f};
    long_way *way = *state;
    moe_random random;
    moe_random_seed(&random, 5);
    moe_sampling s;
    moe_sampling_init(&s);
    s.temperature = 1.0f;
    s.top_k = 0;
    s.top_p = 0.7f;
    s.min_p = 0.0f;
    uint32_t n_tuned = 0;
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        bell(&random, way->logits, N, false);
        way->logits[N_TUNERS] = 5.0f; /* the best */
        for (uint32_t t = 0; t < N_TUNERS; t++) {
            way->logits[t] = -60.0f;
        }
        float next;
        bool is_tuned = true;
        for (uint32_t t = 0; t < N_TUNERS && is_tuned; t++) {
            is_tuned = tune(&s, N, way, t, -60.0f, 5.0f - depths[t], &next);
            if (!is_tuned && t > 0) { /* from the other side of the edge, then */
                way->logits[t - 1] = nextafterf(way->logits[t - 1], INFINITY);
                is_tuned = tune(&s, N, way, t, -60.0f, 5.0f - depths[t], &next);
            }
        }
        n_tuned += is_tuned;
        for (uint32_t side = 0; side < 2; side++) {
            moe_sampler sampler;
            moe_distribution d;
            make_sampler(&sampler, &s, N);
            (void)n_kept(&s, N, way);
            moe_sampler_distribution(&sampler, way->logits, NULL, 0, &d);
            check_distribution(&d, way);
            moe_sampler_free(&sampler);
            way->logits[N_TUNERS - 1] = is_tuned ? next : way->logits[N_TUNERS - 1];
        }
    }
    print_message("%u of %u on the edge\n", n_tuned, N_ROUNDS);
    assert_true(n_tuned >= N_ROUNDS / 4);
}

/* A share that equal logits hold exactly. */
static void shares_on_the_edge(void **state)
{
    enum { N = 4096 };
    float *logits = ((long_way *)*state)->logits;
    for (uint32_t i = 0; i < N; i++) {
        logits[i] = 3.0f;
    }
    moe_sampling s;
    moe_sampling_init(&s);
    s.top_k = 0;
    s.min_p = 0.0f;
    for (uint32_t share = 1; share < 64; share++) {
        s.top_p = (float)share / 64.0f;
        moe_sampler sampler;
        moe_distribution d;
        make_sampler(&sampler, &s, N);
        moe_sampler_distribution(&sampler, logits, NULL, 0, &d);
        assert_int_equal(d.n, N / 64 * share);
        assert_int_equal(d.choices[d.n - 1].token, d.n - 1);
        moe_sampler_free(&sampler);
    }
}

static int open_way(void **state)
{
    static long_way way;
    way.logits = malloc(LARGEST * sizeof *way.logits);
    way.order = malloc(LARGEST * sizeof *way.order);
    way.choices = malloc(LARGEST * sizeof *way.choices);
    *state = &way;
    return way.logits == NULL || way.order == NULL || way.choices == NULL ? -1 : 0;
}

static int close_way(void **state)
{
    long_way *way = *state;
    free(way->logits);
    free(way->order);
    free(way->choices);
    return 0;
}

static int bench(void)
{
    static const struct {
        float temperature;
        uint32_t top_k;
        float top_p, min_p;
    } cases[] = {{1.0f, 0, 0.95f, 0.0f},  {1.0f, 0, 1.0f, 0.05f},   {1.0f, 0, 1.0f, 0.0f},
                 {0.8f, 0, 0.95f, 0.05f}, {0.8f, 40, 0.95f, 0.05f}, {1.0f, 20000, 1.0f, 0.0f}};
    float *logits = malloc(LARGEST * sizeof *logits);
    for (uint32_t i = 0; logits != NULL && i < 2 * sizeof cases / sizeof cases[0]; i++) {
        bool peaked = i % 2 == 0;
        moe_sampling s;
        moe_sampling_init(&s);
        s.temperature = cases[i / 2].temperature;
        s.top_k = cases[i / 2].top_k;
        s.top_p = cases[i / 2].top_p;
        s.min_p = cases[i / 2].min_p;
        moe_sampler sampler;
        if (moe_sampler_init(&sampler, &s, LARGEST, NULL) != MOE_OK) {
            break;
        }
        moe_random random;
        moe_random_seed(&random, 1);
        uint64_t best = UINT64_MAX;
        for (uint32_t round = 0; round < 20; round++) {
            bell(&random, logits, LARGEST, peaked);
            uint64_t start = moe_now_ns();
            (void)moe_sampler_next(&sampler, logits, NULL, 0);
            uint64_t took = moe_now_ns() - start;
            best = took < best ? took : best;
        }
        printf("%-6s temperature %.1f, top-k %u, top-p %.2f, min-p %.2f: %.3f ms a token\n",
               peaked ? "peaked" : "flat", (double)s.temperature, s.top_k, (double)s.top_p,
               (double)s.min_p, (double)best / 1e6);
        moe_sampler_free(&sampler);
    }
    free(logits);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        return bench();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_the_long_way),
        cmocka_unit_test(shares_within_the_last_bits),
        cmocka_unit_test(shares_on_the_edge),
    };
    return cmocka_run_group_tests(tests, open_way, close_way);
}
