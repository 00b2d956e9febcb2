/* SPDX-License-Identifier: MIT */
/* Routing edited on the device against the host's editors, bit by bit: the draft on resident
 * experts and buddies of missing ones, over random routings, residents and options. And the list of
 * products that the chosen become, and what they fetch over the link. */
#include "cuda/kernels/product_launch.h"
#include "runtime/lossy/buddy.h"
#include "runtime/draft/draft_route.h"
#include "tests/kernels/vector_test_util.h"

#define MAX_ROWS   65
#define MAX_EXPERT 256
#define MAX_USED   16
#define ROUNDS     400

typedef struct routing {
    uint32_t n_rows, n_expert, n_used;
    uint32_t experts[MAX_ROWS * MAX_USED];
    float weights[MAX_ROWS * MAX_USED];
    float probs[MAX_ROWS * MAX_EXPERT];
    float bias[MAX_EXPERT];
    bool resident[MAX_EXPERT];
    bool biased, renormalise;
    float scale;
} routing;

static void random_routing(uint64_t *seed, uint32_t round, routing *r)
{
    static const uint32_t sizes[][2] = {{8, 2}, {16, 1}, {64, 8}, {60, 4}, {256, 16}, {33, 16}};
    r->n_expert = sizes[round % 6][0];
    r->n_used = sizes[round % 6][1];
    r->n_rows = round % 9 == 0 ? MAX_ROWS : 1 + test_below(seed, 5);
    r->biased = test_below(seed, 2);
    r->renormalise = test_below(seed, 2);
    r->scale = test_below(seed, 2) ? 1.0f : 2.5f;
    for (uint32_t e = 0; e < r->n_expert; e++)
        r->bias[e] = 0.1f * test_unit(seed);
    moe_router_gate gate = {.kind = MOE_ROUTER_SOFTMAX,
                            .n_expert = r->n_expert,
                            .n_expert_used = r->n_used,
                            .renormalise = r->renormalise,
                            .scale = r->scale};
    float logits[MAX_EXPERT];
    for (uint32_t row = 0; row < r->n_rows; row++) {
        test_fill(seed, TEST_PLAIN, logits, r->n_expert);
        for (uint32_t e = 0; round % 5 == 0 && e < r->n_expert; e++)
            logits[e] = (float)test_below(seed, 3); /* ties */
        if (round % 50 == 17)
            logits[0] = NAN;
        moe_router_select_c(
            &gate, logits, r->biased ? r->bias : NULL, r->experts + (size_t)row * r->n_used,
            r->weights + (size_t)row * r->n_used, r->probs + (size_t)row * r->n_expert);
    }
    /* Ranks that an editor before has dropped. */
    for (uint32_t i = 0; round % 7 == 3 && i < r->n_rows * r->n_used; i++)
        if (test_below(seed, 4) == 0) {
            r->experts[i] = MOE_EXPERT_NONE;
            r->weights[i] = 0.0f;
        }
    uint32_t share = test_below(seed, 11); /* tenths; none and all among them */
    for (uint32_t e = 0; e < r->n_expert; e++)
        r->resident[e] = test_below(seed, 10) < share;
    if (round % 4 == 1) { /* as many as are used, give or take one */
        memset(r->resident, 0, sizeof(r->resident));
        for (uint32_t n = r->n_used + round % 3 - 1; n > 0; n--)
            r->resident[test_below(seed, r->n_expert)] = true;
    }
}

static moe_route_edit host_edit(routing *r)
{
    return (moe_route_edit){.n_rows = r->n_rows,
                            .n_expert = r->n_expert,
                            .n_used = r->n_used,
                            .experts = r->experts,
                            .weights = r->weights,
                            .probs = r->probs,
                            .resident = r->resident,
                            .mixing = {r->renormalise, r->scale, r->biased ? r->bias : NULL, NULL}};
}

static moe_cuda_route_edit device_edit(routing *r)
{
    return (moe_cuda_route_edit){.n_rows = r->n_rows,
                                 .n_expert = r->n_expert,
                                 .n_used = r->n_used,
                                 .chosen = r->experts,
                                 .experts = r->experts,
                                 .weights = r->weights,
                                 .probs = r->probs,
                                 .resident = r->resident,
                                 .renormalise = r->renormalise,
                                 .scale = r->scale,
                                 .bias = r->biased ? r->bias : NULL};
}

static void assert_same_routing(const char *what, const routing *expected, const routing *got)
{
    uint32_t n = expected->n_rows * expected->n_used;
    for (uint32_t i = 0; i < n; i++)
        if (expected->experts[i] != got->experts[i])
            fail_msg("%s: row %u rank %u is %u, on the host %u", what, i / expected->n_used,
                     i % expected->n_used, got->experts[i], expected->experts[i]);
    test_assert_same(what, "weights", expected->weights, got->weights, n);
}

/* Every expert's others in random order, itself first. */
static void random_orders(uint64_t *seed, uint32_t n, uint16_t *orders)
{
    for (uint32_t e = 0; e < n; e++) {
        uint16_t *order = orders + (size_t)e * n;
        for (uint32_t i = 0; i < n; i++)
            order[i] = (uint16_t)((e + i) % n);
        for (uint32_t i = n - 1; i > 1; i--) {
            uint32_t other = 1 + test_below(seed, i);
            uint16_t swap = order[i];
            order[i] = order[other];
            order[other] = swap;
        }
    }
}

static void drafts_on_residents(void **state)
{
    (void)state;
    static routing expected, got;
    static uint16_t orders[MAX_EXPERT * MAX_EXPERT];
    static const moe_draft_fill fills[] = {MOE_DRAFT_FILL_AFFINITY, MOE_DRAFT_FILL_ROUTER,
                                           MOE_DRAFT_FILL_NONE};
    static const moe_resident_fill device_fills[] = {
        MOE_RESIDENT_FILL_LIST, MOE_RESIDENT_FILL_ROUTER, MOE_RESIDENT_FILL_NONE};
    uint64_t seed = 0xbe5466cf34e90c6cu;
    uint32_t n_changed = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        random_routing(&seed, round, &expected);
        random_orders(&seed, expected.n_expert, orders);
        got = expected;
        uint32_t fill = test_below(&seed, 3);
        const uint16_t *affinity = round % 11 == 0 ? NULL : orders;
        moe_draft_routing routing_host = {.fill = fills[fill], .affinity = affinity};
        moe_cuda_draft_routing routing_device = {.fill = device_fills[fill], .lists = affinity};
        moe_route_edit edit = host_edit(&expected);
        moe_cuda_route_edit edit_device = device_edit(&got);
        moe_draft_route(&routing_host, &edit);
        n_changed += memcmp(expected.experts, got.experts, sizeof(got.experts)) != 0;
        moe_cuda_draft_route(NULL, &edit_device, &routing_device);
        assert_same_routing("draft", &expected, &got);
    }
    assert_true(n_changed > ROUNDS / 2);
}

static moe_buddy_options random_options(uint64_t *seed, uint32_t n_used)
{
    static const float entropies[] = {-1.0f, 0.3f, 0.8f, 0.95f};
    static const float margins[] = {2.0f, 0.05f, 0.3f};
    static const float residencies[] = {1.0f, 0.5f, 0.9f};
    moe_buddy_options o;
    moe_buddy_options_init(&o);
    o.max_replaced = test_below(seed, n_used + 2);
    o.search = test_below(seed, 4);
    o.tae_threshold = entropies[test_below(seed, 4)];
    o.margin_threshold = margins[test_below(seed, 3)];
    o.residency_threshold = residencies[test_below(seed, 3)];
    o.tae_temperature = test_below(seed, 2) ? 1.0f : 0.8f;
    o.weight = test_below(seed, 2) ? MOE_BUDDY_OWN : MOE_BUDDY_INHERIT;
    o.drop_unserved = test_below(seed, 2);
    return o;
}

static void buddies_of_the_missing(void **state)
{
    (void)state;
    static routing expected, got;
    static float together[MAX_EXPERT * MAX_EXPERT];
    uint64_t seed = 0xc0ac29b7c97c50ddu;
    moe_buddy_stats total = {0};
    for (uint32_t round = 0; round < ROUNDS; round++) {
        moe_buddy_list list;
        moe_error err;
        random_routing(&seed, round, &expected);
        for (uint32_t i = 0; i < expected.n_expert * expected.n_expert; i++)
            together[i] = (float)test_below(&seed, 50);
        assert_int_equal(
            moe_buddy_list_build(&list, together, expected.n_expert, 0.9f, 16, 1.0f, &err), MOE_OK);
        got = expected;
        moe_buddy_options o = random_options(&seed, expected.n_used);
        moe_buddy_stats stats = {0};
        moe_route_edit edit = host_edit(&expected);
        moe_buddy_apply(&list, &o, &edit, &stats);
        moe_cuda_substitution_counts counted = {0};
        moe_cuda_route_edit edit_device = device_edit(&got);
        moe_substitution rules = {.count = list.count,
                                  .lists = list.buddies,
                                  .max = list.max,
                                  .max_replaced = o.max_replaced,
                                  .search = o.search,
                                  .entropy_threshold = o.tae_threshold,
                                  .margin_threshold = o.margin_threshold,
                                  .entropy_temperature = o.tae_temperature,
                                  .missing_threshold = o.residency_threshold,
                                  .own_weight = o.weight == MOE_BUDDY_OWN,
                                  .drop_unserved = o.drop_unserved};
        moe_cuda_substitute(NULL, &edit_device, &rules, &counted);
        assert_same_routing("buddies", &expected, &got);
        assert_int_equal(counted.n_requested, stats.n_requested);
        assert_int_equal(counted.n_missing, stats.n_missing);
        assert_int_equal(counted.n_replaced, stats.n_replaced);
        assert_int_equal(counted.n_dropped, stats.n_dropped);
        assert_int_equal(counted.n_gated, stats.n_gated);
        assert_int_equal(counted.n_bypassed, stats.n_bypassed);
        assert_int_equal(counted.n_unserved, stats.n_unserved);
        total.n_replaced += stats.n_replaced;
        total.n_dropped += stats.n_dropped;
        total.n_gated += stats.n_gated;
        total.n_bypassed += stats.n_bypassed;
        moe_buddy_list_free(&list);
    }
    /* Every rule was met. */
    assert_true(total.n_replaced > 100 && total.n_dropped > 100 && total.n_gated > 50 &&
                total.n_bypassed > 20);
}

/* The list of products of what is chosen: each pick is a row of one product of its expert. */
enum { LIST_EXPERTS = 12, LIST_USED = 3, LIST_ROWS = 8, LIST_N = 300, LIST_FF = 64 };
typedef struct list_case {
    uint32_t n_rows, chosen[LIST_ROWS * LIST_USED];
    moe_expert_address addresses[LIST_EXPERTS];
    bool resident[LIST_EXPERTS];
    moe_cuda_product list[3 * LIST_ROWS * LIST_USED];
    uint32_t index[2 * LIST_ROWS * LIST_USED];
    float gate[LIST_ROWS * LIST_USED * LIST_FF], up[LIST_ROWS * LIST_USED * LIST_FF];
    float weights[LIST_ROWS * LIST_USED], ordered[LIST_ROWS * LIST_USED];
    float x[LIST_ROWS], out[LIST_ROWS * LIST_USED];
    uint32_t stopped, n_missing;
} list_case;

static moe_cuda_chosen_experts list_job(list_case *c, bool begins, const float *const *inputs,
                                        float *const *kept)
{
    return (moe_cuda_chosen_experts){.chosen = c->chosen,
                                     .addresses = c->addresses,
                                     .weights = c->weights,
                                     .ordered = c->ordered,
                                     .resident = c->resident,
                                     .n_expert = LIST_EXPERTS,
                                     .n_used = LIST_USED,
                                     .n_rows = c->n_rows,
                                     .gate.n_out = LIST_FF,
                                     .x = c->x,
                                     .list = c->list,
                                     .index = c->index,
                                     .gate_out = c->gate,
                                     .up_out = c->up,
                                     .out = c->out,
                                     .n_missing = &c->n_missing,
                                     .stop = {.stopped = &c->stopped,
                                              .begins = begins,
                                              .inputs = {inputs[0], inputs[1]},
                                              .kept = {kept[0], kept[1]},
                                              .n = LIST_N}};
}

static void list_chosen(list_case *c, bool begins, const float *const *inputs, float *const *kept)
{
    moe_cuda_chosen_experts job = list_job(c, begins, inputs, kept);
    moe_cuda_list_chosen(NULL, &job);
}

/* Each row chooses experts of its own; ranks may have none. */
static void choose_listed(uint64_t *seed, list_case *c)
{
    for (uint32_t r = 0; r < c->n_rows; r++)
        for (uint32_t k = 0; k < LIST_USED; k++) {
            uint32_t expert = (test_below(seed, 4) + 4 * k) % LIST_EXPERTS;
            c->chosen[r * LIST_USED + k] = test_below(seed, 6) == 0 ? MOE_EXPERT_NONE : expert;
            c->weights[r * LIST_USED + k] = (float)expert;
        }
    for (uint32_t e = 0; e < LIST_EXPERTS; e++) {
        c->resident[e] = true;
        for (int p = 0; p < 3; p++)
            c->addresses[e].parts[p] = &c->addresses[e].parts[p];
    }
}

/* An output's place, whose weight is its expert's number, is behind those of lower numbers. */
static void check_place(const list_case *c, uint32_t place, uint32_t expert)
{
    const uint32_t row = place / LIST_USED * LIST_USED;
    uint32_t n_lower = 0;
    for (uint32_t k = row; k < row + LIST_USED; k++)
        n_lower += c->chosen[k] < expert;
    assert_int_equal(place, row + n_lower);
    assert_true(c->ordered[place] == (float)expert);
}

static void each_pick_is_a_row_of_its_expert(void **state)
{
    (void)state;
    static list_case c;
    static float input[LIST_N], kept[LIST_N];
    const float *const inputs[2] = {input, input};
    float *const copies[2] = {kept, kept};
    uint64_t seed = 5;
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t n_seen[LIST_ROWS * LIST_USED] = {0}, n_inner[LIST_ROWS * LIST_USED] = {0};
        uint32_t n_picks = 0, n_outputs = 0;
        c.n_rows = 1 + round % LIST_ROWS;
        choose_listed(&seed, &c);
        list_chosen(&c, true, inputs, copies);
        const uint32_t n = c.n_rows * LIST_USED;
        assert_int_equal(c.n_missing, 0);
        assert_int_equal(c.stopped, 0);
        for (uint32_t i = 0; i < n; i++) {
            const moe_cuda_product *gate = &c.list[i], *up = gate + n, *down = up + n;
            assert_true(gate->n_rows == up->n_rows && gate->n_rows == down->n_rows);
            for (uint32_t r = 0; r < gate->n_rows; r++) {
                const uint32_t pick = down->out_index[r], expert = c.chosen[i];
                n_seen[pick]++;
                n_inner[down->first_row + r]++;
                check_place(&c, pick, expert);
                assert_int_equal(gate->x_index[r], pick / LIST_USED);
                assert_ptr_equal(gate->weights, c.addresses[expert].parts[0]);
                assert_ptr_equal(up->weights, c.addresses[expert].parts[1]);
                assert_ptr_equal(down->weights, c.addresses[expert].parts[2]);
                assert_ptr_equal(gate->out, c.gate + (size_t)down->first_row * LIST_FF);
                assert_ptr_equal(up->out, c.up + (size_t)down->first_row * LIST_FF);
                assert_ptr_equal(down->x, gate->out);
                assert_true(gate->x_index == up->x_index && gate->x == c.x && down->out == c.out);
            }
        }
        for (uint32_t i = 0; i < n; i++) {
            n_picks += c.chosen[i] != MOE_EXPERT_NONE;
            n_outputs += n_seen[i];
            assert_true(n_seen[i] <= 1);
            assert_true(n_inner[i] <= 1);
        }
        assert_int_equal(n_outputs, n_picks);
    }
}

/* The router of a row and the list of what it chooses as one kernel: what two give. */
static void a_row_is_routed_and_listed_at_once(void **state)
{
    (void)state;
    enum { INDEX = 2 * LIST_USED };
    static list_case c[2];
    static float input[LIST_N], kept[2][LIST_N], logits[LIST_EXPERTS], bias[LIST_EXPERTS];
    float weights[2][LIST_USED], probs[2][LIST_EXPERTS];
    uint64_t seed = 15;
    test_fill(&seed, TEST_PLAIN, input, LIST_N);
    for (uint32_t round = 0; round < 60; round++) {
        moe_router_gate gate = {.kind = round % 2 == 0 ? MOE_ROUTER_SOFTMAX : MOE_ROUTER_SIGMOID,
                                .n_expert = LIST_EXPERTS,
                                .n_expert_used = LIST_USED,
                                .n_group = round % 3 == 0 ? 4 : 0,
                                .n_group_used = 2,
                                .renormalise = round % 4 < 2,
                                .scale = 1.5f};
        test_fill(&seed, TEST_PLAIN, logits, LIST_EXPERTS);
        test_fill(&seed, TEST_PLAIN, bias, LIST_EXPERTS);
        memset(kept, 0, sizeof kept);
        memset(weights, 0x55, sizeof weights);
        memset(probs, 0x55, sizeof probs);
        for (uint32_t i = 0; i < 2; i++) {
            c[i].n_rows = 1;
            for (uint32_t e = 0; e < LIST_EXPERTS; e++) {
                c[i].resident[e] = round % 2 == 0 || e % 3 != 0;
                for (int p = 0; p < 3; p++)
                    c[i].addresses[e].parts[p] = &c[0].addresses[e].parts[p];
            }
            float *probs_of = round % 5 == 0 ? NULL : probs[i];
            const moe_cuda_chosen_router router = {&gate,       logits,     bias,
                                                   c[i].chosen, weights[i], probs_of};
            if (i == 0)
                moe_cuda_route(NULL, &gate, logits, bias, NULL, 1, c[i].chosen, weights[i],
                               probs_of);
            moe_cuda_chosen_experts job =
                list_job(&c[i], true, (const float *const[]){input, input},
                         (float *const[]){kept[i], kept[i]});
            job.router = i == 0 ? NULL : &router;
            job.weights = weights[i];
            moe_cuda_list_chosen(NULL, &job);
        }
        assert_memory_equal(c[0].chosen, c[1].chosen, sizeof(uint32_t) * LIST_USED);
        assert_memory_equal(c[0].index, c[1].index, sizeof(uint32_t) * INDEX);
        assert_memory_equal(weights[0], weights[1], sizeof weights[0]);
        assert_memory_equal(c[0].ordered, c[1].ordered, sizeof weights[0]);
        assert_memory_equal(probs[0], probs[1], sizeof probs[0]);
        assert_memory_equal(kept[0], kept[1], sizeof kept[0]);
        assert_true(c[0].stopped == c[1].stopped && c[0].n_missing == c[1].n_missing);
        for (uint32_t i = 0; i < 3 * LIST_USED; i++)
            assert_true(c[0].list[i].weights == c[1].list[i].weights &&
                        c[0].list[i].n_rows == c[1].list[i].n_rows &&
                        c[0].list[i].first_row == c[1].list[i].first_row);
    }
}

/* The first layer that misses an expert keeps what it began with, and says so to all behind it. */
static void the_first_miss_stops_the_pass(void **state)
{
    (void)state;
    enum { LAYERS = 4 };
    static list_case c;
    uint64_t seed = 9;
    for (uint32_t pass = 0; pass < 4; pass++) {
        static float x[LIST_N], norm[LIST_N], kept[2][LIST_N];
        const float *const inputs[2] = {x, norm};
        float *const copies[2] = {kept[0], kept[1]};
        const bool misses = pass % 2 == 0;
        c.stopped = 1; /* of the pass before */
        c.n_rows = pass < 2 ? 1 : LIST_ROWS;
        memset(kept, 0, sizeof kept);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            for (uint32_t i = 0; i < LIST_N; i++) {
                x[i] = (float)(1000 * pass + 100 * layer + i);
                norm[i] = -x[i];
            }
            choose_listed(&seed, &c);
            const uint32_t last = c.n_rows * LIST_USED - 1;
            c.chosen[last] = 11;
            c.resident[11] = !misses || layer < 2;
            list_chosen(&c, layer == 0, inputs, copies);
            bool runs = !misses || layer < 2;
            assert_true(runs ? c.n_missing == 0 : c.n_missing >= 1);
            assert_int_equal(c.stopped, !runs);
            uint32_t n_rows = 0;
            for (uint32_t i = 0; i <= last; i++)
                n_rows += c.list[i].n_rows;
            assert_true(runs == (n_rows > 0));
        }
        for (uint32_t i = 0; i < LIST_N; i++) {
            float was = (float)(1000 * pass + 200 + i);
            assert_true(kept[0][i] == (misses ? was : 0.0f) && kept[1][i] == -kept[0][i]);
        }
    }
}

/* ---- What is kept of what is read over the link ---- */

enum { KEEP_SPARES = 14, KEEP_BYTES = 16 * 1024 + 72, KEEP_SLOTS = 2 * LIST_EXPERTS + KEEP_SPARES };
static const size_t keep_bytes[3] = {0, KEEP_BYTES, 53};

typedef struct keep_case {
    list_case list;
    /* Addresses of this layer's experts, and of another's. */
    moe_expert_address table[2 * LIST_EXPERTS];
    moe_expert_spare spares[KEEP_SPARES];
    moe_spare_range range;
    uint32_t taken[KEEP_SPARES], n_fetches;
    moe_cuda_fetch fetches[LIST_ROWS * LIST_USED];
} keep_case;

/* A slot holds two parts; a slot of number n has bytes that depend on n. */
static uint8_t keep_memory[KEEP_SLOTS][2][KEEP_BYTES + 8] __attribute__((aligned(64)));

static moe_expert_address keep_address(uint32_t slot, bool over_link)
{
    uint8_t *first = keep_memory[slot][0], *second = keep_memory[slot][1];
    return (moe_expert_address){{first, first, second}, over_link};
}

static uint32_t keep_slot_of(const moe_expert_address *address)
{
    return (uint32_t)((const uint8_t *)address->parts[1] - keep_memory[0][0]) /
           sizeof keep_memory[0];
}

static void random_keep(uint64_t *seed, uint32_t round, keep_case *k)
{
    memset(k, 0, sizeof *k);
    k->list.n_rows = 1 + round % LIST_ROWS;
    choose_listed(seed, &k->list);
    for (uint32_t s = 0; s < KEEP_SLOTS; s++)
        memset(keep_memory[s], (int)(1 + s), sizeof keep_memory[s]);
    for (uint32_t e = 0; e < 2 * LIST_EXPERTS; e++)
        k->table[e] = keep_address(e, test_below(seed, 2));
    for (uint32_t i = 0; i < KEEP_SPARES; i++) {
        const uint32_t e = (i * 5 + round) % (2 * LIST_EXPERTS); /* distinct */
        k->spares[i].slot = keep_address(2 * LIST_EXPERTS + i, false);
        k->taken[i] = MOE_SPARE_UNTAKEN;
        k->table[e].over_link = e < LIST_EXPERTS && k->table[e].over_link;
        if (k->table[e].over_link || test_below(seed, 4) == 0)
            continue; /* an empty slot */
        k->spares[i].home = keep_address(e, true);
        k->spares[i].entry = &k->table[e];
        k->spares[i].used = test_below(seed, 4) == 0;
    }
    k->range.first = test_below(seed, 3);
    k->range.end = KEEP_SPARES - test_below(seed, 10);
    k->range.early_end = round % 3 == 0 ? k->range.first : k->range.end - test_below(seed, 3);
}

static void run_keep(keep_case *k, bool misses)
{
    static float x[LIST_N], kept[LIST_N];
    list_case *c = &k->list;
    c->resident[c->chosen[0] % LIST_EXPERTS] = !misses;
    moe_cuda_chosen_experts job = {
        .chosen = c->chosen,
        .weights = c->weights,
        .ordered = c->ordered,
        .addresses = k->table,
        .resident = c->resident,
        .n_expert = LIST_EXPERTS,
        .n_used = LIST_USED,
        .n_rows = c->n_rows,
        .gate.n_out = LIST_FF,
        .x = c->x,
        .list = c->list,
        .index = c->index,
        .gate_out = c->gate,
        .up_out = c->up,
        .out = c->out,
        .n_missing = &c->n_missing,
        .stop = {.stopped = &c->stopped, .begins = true, .inputs = {x, x}, .kept = {kept, kept}},
        .keep = {.spares = k->spares,
                 .range = &k->range,
                 .taken = k->taken,
                 .table = k->table,
                 .first_key = 3 * LIST_EXPERTS,
                 .bytes = {keep_bytes[0], keep_bytes[1], keep_bytes[2]}},
        .fetches = {k->fetches, &k->n_fetches}};
    moe_cuda_list_chosen(NULL, &job);
    moe_cuda_fetch_experts(NULL, &job.fetches, c->n_rows * LIST_USED, keep_bytes, 3);
}

static bool is_picked(const keep_case *k, const moe_expert_address *entry)
{
    for (uint32_t i = 0; i < k->list.n_rows * LIST_USED; i++)
        if (entry != NULL && entry == &k->table[k->list.chosen[i] % LIST_EXPERTS] &&
            k->list.chosen[i] != MOE_EXPERT_NONE)
            return true;
    return false;
}

/* The spare that an expert of this layer is put in, by the rules of moe_resident_keep; NULL: none.
 * The table's second half is of a layer to come. */
static moe_expert_spare *expected_spare(keep_case *k)
{
    moe_expert_spare *later = NULL;
    for (uint32_t i = k->range.first; i < k->range.end; i++) {
        moe_expert_spare *spare = &k->spares[i];
        const bool comes = spare->entry >= &k->table[LIST_EXPERTS];
        if (!spare->used && !comes)
            return spare;
        if (!spare->used && later == NULL && i < k->range.early_end)
            later = spare;
    }
    return later;
}

/* Pick by pick: what a spare is taken for. */
static uint32_t expected_keep(keep_case *k, uint8_t first_bytes[KEEP_SLOTS])
{
    uint32_t n = 0;
    for (uint32_t i = k->range.first; i < k->range.end; i++)
        k->spares[i].used |= is_picked(k, k->spares[i].entry);
    for (uint32_t i = 0; i < k->list.n_rows * LIST_USED; i++) {
        const uint32_t e = k->list.chosen[i];
        moe_expert_spare *spare = expected_spare(k);
        if (e == MOE_EXPERT_NONE || !k->table[e].over_link || spare == NULL)
            continue;
        k->taken[spare - k->spares] = 3 * LIST_EXPERTS + e;
        first_bytes[keep_slot_of(&spare->slot)] = first_bytes[keep_slot_of(&k->table[e])];
        if (spare->entry != NULL)
            *spare->entry = spare->home;
        spare->used = 1;
        k->table[e] = spare->slot;
        n++;
    }
    return n;
}

static void experts_over_the_link_are_kept(void **state)
{
    (void)state;
    static keep_case k, expected;
    uint64_t seed = 11;
    uint32_t n_kept = 0, n_left = 0, n_early = 0, n_shut = 0;
    for (uint32_t round = 0; round < 120; round++) {
        uint8_t bytes[KEEP_SLOTS];
        const bool misses = round % 10 == 9;
        random_keep(&seed, round, &k);
        k.list.chosen[0] = round % LIST_EXPERTS;
        for (uint32_t s = 0; s < KEEP_SLOTS; s++)
            bytes[s] = (uint8_t)(1 + s);
        expected = k;
        for (uint32_t i = 0; i < KEEP_SPARES; i++) /* entries of its own */
            if (k.spares[i].entry != NULL)
                expected.spares[i].entry = expected.table + (k.spares[i].entry - k.table);
        uint32_t n = misses ? 0 : expected_keep(&expected, bytes);
        run_keep(&k, misses);
        assert_int_equal(k.list.n_missing > 0, misses);
        assert_int_equal(k.n_fetches, n);
        assert_memory_equal(k.taken, expected.taken, sizeof k.taken);
        assert_memory_equal(k.table, expected.table, sizeof k.table);
        for (uint32_t i = 0; i < KEEP_SPARES; i++) {
            assert_int_equal(k.spares[i].used, expected.spares[i].used);
            const bool has = i >= k.range.first && i < k.range.end && k.spares[i].entry != NULL;
            const bool comes = has && k.spares[i].entry >= &k.table[LIST_EXPERTS];
            n_early += comes && k.taken[i] != MOE_SPARE_UNTAKEN;
            n_shut += comes && !k.spares[i].used && i >= k.range.early_end;
        }
        for (uint32_t s = 0; s < KEEP_SLOTS; s++) {
            const uint8_t *first = keep_memory[s][0], *second = keep_memory[s][1];
            for (size_t b = 0; b < KEEP_BYTES; b++)
                assert_int_equal(first[b], bytes[s]);
            for (size_t b = 0; b < keep_bytes[2]; b++)
                assert_int_equal(second[b], bytes[s]);
            assert_int_equal(first[KEEP_BYTES], 1 + s); /* nothing behind them */
            assert_int_equal(second[keep_bytes[2]], 1 + s);
        }
        for (uint32_t i = 0; i < k.list.n_rows * LIST_USED && !misses; i++)
            if (k.list.list[i].n_rows > 0) {
                const moe_expert_address *at = &k.table[k.list.chosen[i]];
                assert_ptr_equal(k.list.list[i].weights, at->parts[0]);
                n_left += at->over_link != 0;
            }
        n_kept += n;
    }
    printf("%u kept, %u left, %u early, %u shut\n", n_kept, n_left, n_early, n_shut);
    assert_true(n_kept > 100 && n_left > 20 && n_early > 20 && n_shut > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_on_residents),
        cmocka_unit_test(buddies_of_the_missing),
        cmocka_unit_test(each_pick_is_a_row_of_its_expert),
        cmocka_unit_test(a_row_is_routed_and_listed_at_once),
        cmocka_unit_test(the_first_miss_stops_the_pass),
        cmocka_unit_test(experts_over_the_link_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
