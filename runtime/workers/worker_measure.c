/* SPDX-License-Identifier: MIT */
#include "runtime/workers/worker_measure.h"

#include <stdlib.h>
#include <string.h>

#include "offload/layer_plan.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/random.h"
#include "runtime/workers/worker_jobs.h"

#define N_UNTIMED 3u /* the first jobs may read experts from the worker's disk */
#define N_TIMED   15u
#define N_TOKENS  64u /* that are drawn for an estimate */

/* ---- Measuring ---- */

/* The layer of which the worker has most experts; their number in *n, 0: it has none. */
static uint32_t best_layer(const moe_worker_links *links, const moe_tensor_map *map,
                           const moe_worker_link *link, uint32_t *n)
{
    uint32_t best = 0;
    *n = 0;
    for (uint32_t l = 0; l < links->identity.n_layer; l++) {
        uint32_t has = 0;
        for (uint32_t e = 0; e < links->identity.n_expert && map->layers[l].experts != NULL; e++) {
            has += moe_worker_has(links, link, l, e);
        }
        if (has > *n) {
            *n = has;
            best = l;
        }
    }
    return best;
}

/* Sends one row of zeros, for the first n experts that the worker has. */
static bool send_row(moe_worker_links *links, const moe_tensor_map *map,
                     const moe_worker_link *link, uint32_t layer, uint32_t n, uint64_t id)
{
    const moe_worker_identity *m = &links->identity;
    const moe_job_head head = {
        .layer = layer, .n_rows = 1, .form = moe_workers_form(map, layer, m->n_in)};
    uint8_t *payload;
    size_t n_bytes;
    uint8_t *message =
        moe_message_new(MOE_MESSAGE_JOB, id, moe_job_bytes(m, head.form, 1), &payload, &n_bytes);
    if (message == NULL) {
        return false;
    }
    uint8_t *chosen = payload + sizeof head + moe_rows_bytes(head.form, 1, m->n_in);
    memset(payload, 0, moe_job_bytes(m, head.form, 1));
    memcpy(payload, &head, sizeof head);
    for (uint32_t k = 0, e = 0; k < m->n_used; k++) {
        while (k < n && !moe_worker_has(links, link, layer, e)) {
            e++;
        }
        const uint32_t expert = k < n ? e++ : MOE_PLAN_NO_EXPERT;
        memcpy(chosen + k * sizeof expert, &expert, sizeof expert);
    }
    moe_message_seal(message, n_bytes);
    links->wire->ops->send(links->wire, link->peer, message, n_bytes);
    return true;
}

/* The time of a job, in seconds; 0: the worker is gone. */
static double time_row(moe_worker_links *links, const moe_tensor_map *map, moe_worker_link *link,
                       uint32_t layer, uint32_t n, uint64_t id)
{
    const uint64_t begin = moe_now_ns(), until = begin + links->timeout_ns;
    moe_worker_answer answer;
    if (link->state != MOE_WORKER_READY || !send_row(links, map, link, layer, n, id)) {
        return 0.0;
    }
    while (link->state == MOE_WORKER_READY && moe_now_ns() < until) {
        if (moe_worker_links_next(links, 10000000, &answer) != MOE_WORKERS_ANSWER) {
            continue;
        }
        const bool is_it = answer.from == link && answer.message.id == id &&
                           answer.message.kind == MOE_MESSAGE_RESULT;
        const uint64_t end = answer.time_ns;
        moe_worker_answer_free(&answer);
        if (is_it) {
            return (double)(end - begin) * 1e-9;
        }
    }
    moe_worker_leave_out(links, link, "it does not answer");
    return 0.0;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time of a job with n experts. */
static double time_rows(moe_worker_links *links, const moe_tensor_map *map, moe_worker_link *link,
                        uint32_t layer, uint32_t n, uint64_t *id)
{
    double times[N_TIMED];
    for (uint32_t i = 0; i < N_UNTIMED; i++) {
        (void)time_row(links, map, link, layer, n, ++*id);
    }
    for (uint32_t i = 0; i < N_TIMED; i++) {
        times[i] = time_row(links, map, link, layer, n, ++*id);
    }
    qsort(times, N_TIMED, sizeof *times, compare);
    return times[N_TIMED / 2];
}

void moe_worker_measure(moe_worker_links *links, const moe_tensor_map *map, uint32_t worker,
                        moe_worker_speed *speed)
{
    moe_worker_link *link = &links->list[worker];
    uint32_t n;
    uint64_t id = 0;
    const uint32_t layer = best_layer(links, map, link, &n);
    *speed = (moe_worker_speed){0};
    if (n == 0) {
        return;
    }
    n = n < links->identity.n_used ? n : links->identity.n_used;
    const double most = time_rows(links, map, link, layer, n, &id);
    const double least = time_rows(links, map, link, layer, 1, &id);
    speed->expert_s = n > 1 && most > least ? (most - least) / (n - 1) : 0.0;
    speed->job_s = least > speed->expert_s ? least - speed->expert_s : 0.0;
}

/* ---- Estimating ---- */

typedef struct estimate {
    const moe_worker_links *links;
    const moe_tensor_map *map;
    const moe_worker_speed *speeds;
    double hit_rate, read_s;
    moe_random random;
    uint32_t *holders; /* [n_used], as in moe_worker_layer */
    uint8_t *owners;   /* [n_used] */
    moe_worker_choice choice;
    moe_worker_costs costs[MOE_MOST_WORKERS];
    const moe_worker_costs *list[MOE_MOST_WORKERS];
} estimate;

static double job_time(const moe_worker_speed *speed, uint32_t n)
{
    return n > 0 ? speed->job_s + n * speed->expert_s : 0.0;
}

/* Tells the choice the times that it would have measured. */
static void note_times(estimate *e)
{
    for (uint32_t n = 1; n <= e->links->identity.n_used + 1; n++) {
        const double here_s = (n - 1) * e->read_s;
        moe_worker_costs_note(&e->choice.here, 1, n, 1 + (uint64_t)(here_s * 1e9));
        for (uint32_t w = 0; w < e->links->n; w++) {
            moe_worker_costs_note(&e->costs[w], 1, n,
                                  1 + (uint64_t)(job_time(&e->speeds[w], n) * 1e9));
        }
    }
    for (uint32_t w = 0; w < e->links->n; w++) {
        e->list[w] = &e->costs[w];
    }
}

/* The time until the slowest owner has done its experts; this engine reads n_read more. */
static double slowest(const estimate *e, const uint8_t *owners, uint32_t n, uint32_t n_read,
                      uint32_t *counts)
{
    uint32_t n_here = n_read;
    double most = 0.0;
    memset(counts, 0, MOE_MOST_WORKERS * sizeof *counts);
    for (uint32_t i = 0; i < n; i++) {
        if (owners[i] == MOE_WORKER_HERE) {
            n_here++;
        } else {
            counts[owners[i]]++;
        }
    }
    for (uint32_t w = 0; w < e->links->n; w++) {
        const double s = job_time(&e->speeds[w], counts[w]);
        most = s > most ? s : most;
    }
    return n_here * e->read_s > most ? n_here * e->read_s : most;
}

/* Draws n_used experts of a layer; lists the missing ones that workers have. */
static moe_worker_layer draw_layer(estimate *e, uint32_t layer)
{
    const moe_worker_identity *m = &e->links->identity;
    moe_worker_layer list = {
        .n_pass_rows = 1, .holders = e->holders, .workers = e->list, .n_workers = e->links->n};
    uint32_t n_left = m->n_used;
    for (uint32_t x = 0; x < m->n_expert && n_left > 0; x++) {
        if (moe_random_uniform(&e->random) * (m->n_expert - x) >= n_left) {
            continue;
        }
        n_left--;
        if (moe_random_uniform(&e->random) < e->hit_rate) {
            continue;
        }
        uint32_t has = 0;
        for (uint32_t w = 0; w < e->links->n; w++) {
            has |= (uint32_t)moe_worker_has(e->links, &e->links->list[w], layer, x) << w;
        }
        if (has == 0) {
            list.n_read++;
        } else {
            e->holders[list.n++] = has;
        }
    }
    return list;
}

static void add_layer(estimate *e, uint32_t layer, moe_worker_token *token)
{
    const moe_worker_identity *m = &e->links->identity;
    const moe_rows_form form = moe_workers_form(e->map, layer, m->n_in);
    uint32_t counts[MOE_MOST_WORKERS];
    const moe_worker_layer list = draw_layer(e, layer);
    moe_worker_choose(&e->choice, &list, true, e->owners);
    token->workers_s += slowest(e, e->owners, list.n, 0, counts);
    token->saved_s += list.n * e->read_s;
    for (uint32_t w = 0; w < e->links->n; w++) {
        if (counts[w] > 0) {
            token->jobs += 1;
            token->bytes_sent += (double)moe_job_bytes(m, form, 1);
            token->bytes_received += (double)moe_result_bytes(m, counts[w]);
        }
    }
    moe_worker_choose(&e->choice, &list, false, e->owners);
    token->wait_s += slowest(e, e->owners, list.n, list.n_read, counts);
}

int moe_worker_token_estimate(const moe_worker_links *links, const moe_tensor_map *map,
                              const moe_worker_speed *speeds, double hit_rate, double read_s,
                              moe_worker_token *token, moe_error *err)
{
    const uint32_t n_used = links->identity.n_used;
    estimate e = {.links = links,
                  .map = map,
                  .speeds = speeds,
                  .hit_rate = hit_rate,
                  .read_s = read_s,
                  .holders = moe_calloc(n_used, sizeof *e.holders),
                  .owners = moe_calloc(n_used, sizeof *e.owners)};
    *token = (moe_worker_token){0};
    if (e.holders == NULL || e.owners == NULL) {
        free(e.holders);
        free(e.owners);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for an estimate");
    }
    note_times(&e);
    moe_random_seed(&e.random, 1);
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        for (uint32_t l = 0; l < links->identity.n_layer; l++) {
            if (map->layers[l].experts != NULL) {
                add_layer(&e, l, token);
            }
        }
    }
    double *const sums[] = {&token->jobs,      &token->bytes_sent, &token->bytes_received,
                            &token->workers_s, &token->saved_s,    &token->wait_s};
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
        *sums[i] /= N_TOKENS;
    }
    free(e.holders);
    free(e.owners);
    return MOE_OK;
}
