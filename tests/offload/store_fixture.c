/* SPDX-License-Identifier: MIT */
#include "tests/offload/store_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

uint64_t store_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    *state = x;
    return x;
}

void store_sleep_ms(uint32_t ms)
{
    struct timespec delay = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&delay, NULL);
}

/* The one whose part lies in what is read: an aligned superset of it. */
static bool find_expert(const store_fixture *f, const moe_io_read *read, expert_name *name)
{
    for (uint32_t l = 0; l < f->map->n_layer; l++) {
        for (uint32_t e = 0; f->map->layers[l].experts != NULL && e < f->map->n_expert; e++) {
            for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
                const moe_tensor_ref *ref = &f->map->layers[l].experts[e].parts[p];
                if (ref->offset >= read->offset &&
                    ref->offset + ref->size <= read->offset + read->size) {
                    *name = (expert_name){l, e};
                    return true;
                }
            }
        }
    }
    return false;
}

static bool is_chosen(store_fixture *f, const moe_io_read *read)
{
    expert_name name;
    if (!find_expert(f, read, &name)) {
        return false;
    }
    if (atomic_load(&f->choose_next) && name.layer == f->chosen.layer) {
        f->chosen.expert = name.expert;
        atomic_store(&f->choose_next, false);
    }
    return !atomic_load(&f->choose_next) && name.layer == f->chosen.layer &&
           name.expert == f->chosen.expert;
}

static moe_fault choose_by_dice(store_fixture *f)
{
    const struct {
        uint32_t per_mille;
        moe_fault fault;
    } kinds[] = {
        {f->short_per_mille, {MOE_FAULT_SHORT, (uint32_t)(store_random(&f->dice) % 2048)}},
        {f->transient_per_mille,
         {MOE_FAULT_ERROR, store_random(&f->dice) % 2 == 0 ? EAGAIN : EINTR}},
        {f->delay_per_mille,
         {MOE_FAULT_DELAY, (uint32_t)(store_random(&f->dice) % (f->max_delay_ns + 1u))}},
        {f->flip_per_mille, {MOE_FAULT_FLIP, (uint32_t)(store_random(&f->dice) >> 33)}},
        {f->hard_per_mille, {MOE_FAULT_ERROR, EIO}},
    };
    uint32_t draw = (uint32_t)(store_random(&f->dice) >> 20) % 1000;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (draw < kinds[i].per_mille) {
            atomic_fetch_add(&f->n_injected, 1);
            return kinds[i].fault;
        }
        draw -= kinds[i].per_mille;
    }
    return (moe_fault){MOE_FAULT_NONE, 0};
}

static moe_fault decide(store_fixture *f, const moe_io_read *read)
{
    atomic_fetch_add(&f->n_held, atomic_load(&f->hold));
    while (atomic_load(&f->hold)) {
        store_sleep_ms(1);
    }
    bool chosen = is_chosen(f, read);
    if (atomic_load(&f->fail_all) || (chosen && atomic_load(&f->fail_chosen))) {
        atomic_fetch_add(&f->n_failed, 1);
        return (moe_fault){MOE_FAULT_ERROR, EIO};
    }
    if (chosen && atomic_load(&f->stick_chosen)) {
        atomic_store(&f->stuck_at, read->dst);
        return (moe_fault){MOE_FAULT_STUCK, 0};
    }
    if (chosen && atomic_load(&f->flip_chosen)) {
        return (moe_fault){MOE_FAULT_FLIP, 12345};
    }
    return choose_by_dice(f);
}

static moe_fault choose(void *user, const moe_io_read *read, uint64_t n)
{
    (void)n;
    store_fixture *f = user;
    moe_fault fault = decide(f, read);
    atomic_fetch_add(&f->n_chosen, 1);
    return fault;
}

static void read_whole(store_fixture *f, const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    f->file_bytes = (size_t)ftell(file);
    rewind(file);
    f->file = malloc(f->file_bytes);
    assert_int_equal(fread(f->file, 1, f->file_bytes, file), f->file_bytes);
    fclose(file);
}

static void compute_checksums(store_fixture *f)
{
    assert_int_equal(moe_weight_sums_init(&f->sums, f->map, 0, NULL), MOE_OK);
    f->sums.each_time = true;
    for (uint32_t l = 0; l < f->map->n_layer; l++) {
        for (uint32_t e = 0; f->map->layers[l].experts != NULL && e < f->map->n_expert; e++) {
            for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
                const moe_tensor_ref *ref = &f->map->layers[l].experts[e].parts[p];
                moe_weight_sums_give(&f->sums,
                                     moe_weight_sum_of_expert(l * f->map->n_expert + e, p),
                                     XXH3_64bits(f->file + ref->offset, ref->size));
            }
        }
    }
}

void store_fixture_open(store_fixture *f, const char *path, double share, store_change_fn change,
                        void *user)
{
    store_fixture_open_on(f, "cpu", path, share, change, user);
}

void store_fixture_open_on(store_fixture *f, const char *device, const char *path, double share,
                           store_change_fn change, void *user)
{
    memset(f, 0, sizeof *f);
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = path;
    options.device = device;
    options.n_threads = 2;
    options.context = 256;
    options.prefill_chunk = 32;
    options.panel = 1; /* a step is a whole pass */
    options.expert_cache_share = share;
    moe_error error;
    if (moe_engine_open(&f->engine, &options, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    f->map = &f->engine->map;
    f->dice = 88172645463325252u;
    f->max_delay_ns = 200000;
    f->fault = (moe_io_fault){.inner = &moe_io_threads_ops, .choose = choose, .user = f};
    read_whole(f, path);
    compute_checksums(f);
    moe_expert_store_options store = {.device = f->engine->device,
                                      .gguf = f->engine->gguf,
                                      .map = f->map,
                                      .n_expert_used = f->engine->config.n_expert_used,
                                      .budget_bytes = f->engine->plan.expert_cache,
                                      .host_budget_bytes = f->map->expert_bytes / 3,
                                      .policy = f->engine->policy,
                                      .buffered_io = true,
                                      .io_engine = &moe_io_fault_ops,
                                      .io_context = &f->fault};
    if (change != NULL) {
        change(&store, user);
    }
    moe_expert_store_close(&f->engine->runner.experts);
    if (moe_expert_store_open(&f->engine->runner.experts, &store, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
}

void store_fixture_close(store_fixture *f)
{
    moe_engine_close(&f->engine);
    free(f->file);
    moe_weight_sums_free(&f->sums);
}

void store_check_view(const store_fixture *f, uint32_t layer, uint32_t expert,
                      const moe_expert_view *view)
{
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        const moe_tensor_ref *ref = &f->map->layers[layer].experts[expert].parts[p];
        if (memcmp(view->parts[p].data, f->file + ref->offset, ref->size) != 0) {
            fail_msg("layer %u, expert %u, part %d: wrong bytes", layer, expert, p);
        }
    }
}

int store_finish(store_fixture *f, uint32_t layer, const uint32_t *experts, uint32_t n,
                 moe_error *err)
{
    uint32_t *positions = calloc(n, sizeof *positions);
    moe_expert_view *views = calloc(n, sizeof *views);
    uint8_t *delivered = calloc(n, 1);
    uint32_t n_delivered = 0;
    int status = MOE_OK;
    for (uint32_t n_ready = 1; status == MOE_OK && n_ready > 0;) {
        status = moe_expert_store_next(f->engine->runner.experts, positions, views, &n_ready, err);
        for (uint32_t i = 0; status == MOE_OK && i < n_ready; i++) {
            assert_true(positions[i] < n && delivered[positions[i]] == 0);
            delivered[positions[i]] = 1;
            n_delivered++;
            store_check_view(f, layer, experts[positions[i]], &views[i]);
        }
    }
    assert_true(status != MOE_OK || n_delivered == n);
    free(positions);
    free(views);
    free(delivered);
    return status;
}

int store_request(store_fixture *f, uint32_t layer, uint64_t pass, const uint32_t *experts,
                  uint32_t n, moe_error *err)
{
    uint32_t *n_rows = calloc(n, sizeof *n_rows);
    float *gates = calloc(n, sizeof *gates);
    for (uint32_t i = 0; i < n; i++) {
        n_rows[i] = 1;
        gates[i] = 1.0f;
    }
    moe_layer_request request = {
        .layer = layer, .pass = pass, .experts = experts, .n_rows = n_rows, .gates = gates, .n = n};
    int status = moe_expert_store_begin(f->engine->runner.experts, &request, err);
    if (status == MOE_OK) {
        status = store_finish(f, layer, experts, n, err);
    }
    free(n_rows);
    free(gates);
    return status;
}
