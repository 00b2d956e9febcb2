/* SPDX-License-Identifier: MIT */
#include "cli_plan_workers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_engine.h"
#include "cli_format.h"
#include "cli_json.h"

enum { SHORT_LIST = 40 }; /* characters of a list of experts that is printed */

/* ---- Which experts ---- */

static bool is_set(const uint8_t *bits, size_t bit)
{
    return (bits[bit / 8] >> bit % 8 & 1) != 0;
}

static void put_range(FILE *to, uint32_t first, uint32_t last, const char *before)
{
    fprintf(to, "%s%" PRIu32, before, first);
    if (last > first) {
        fprintf(to, "-%" PRIu32, last);
    }
}

/* Prints the experts of one layer, each range behind the layers' numbers. */
static void put_layer(FILE *to, const uint8_t *bits, uint32_t n_expert, uint32_t layer,
                      const char *layers, bool *any)
{
    for (uint32_t e = 0; e < n_expert; e++) {
        uint32_t last = e;
        if (!is_set(bits, (size_t)layer * n_expert + e)) {
            continue;
        }
        while (last + 1 < n_expert && is_set(bits, (size_t)layer * n_expert + last + 1)) {
            last++;
        }
        fputs(*any ? "," : "", to);
        put_range(to, e, last, layers);
        *any = true;
        e = last;
    }
}

static bool are_alike(const uint8_t *bits, uint32_t n_expert, uint32_t a, uint32_t b)
{
    bool alike = true;
    for (uint32_t e = 0; e < n_expert && alike; e++) {
        alike = is_set(bits, (size_t)a * n_expert + e) == is_set(bits, (size_t)b * n_expert + e);
    }
    return alike;
}

/* Lists experts as --experts takes them. Neighbouring layers with the same experts stand
 * together. */
static char *list_experts(const uint8_t *bits, uint32_t n_layer, uint32_t n_expert)
{
    char *text = NULL, layers[32];
    size_t size;
    bool any = false;
    FILE *to = open_memstream(&text, &size);
    if (to == NULL) {
        return NULL;
    }
    for (uint32_t l = 0, last; l < n_layer; l = last + 1) {
        for (last = l; last + 1 < n_layer && are_alike(bits, n_expert, l, last + 1); last++) {
        }
        snprintf(layers, sizeof layers, "%" PRIu32 "-%" PRIu32 ":", l, last);
        put_layer(to, bits, n_expert, l, l == 0 && last + 1 == n_layer ? "" : layers, &any);
    }
    if (fclose(to) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* ---- Asking ---- */

static void on_worker(const moe_worker_info *info, const uint8_t *experts, uint32_t n_layer,
                      uint32_t n_expert, void *user)
{
    cli_plan_workers *w = user;
    if (w->n < CLI_MOST_WORKERS) {
        w->list[w->n] = *info;
        w->experts[w->n++] = info->ready != 0 ? list_experts(experts, n_layer, n_expert) : NULL;
    }
}

int cli_plan_workers_ask(cli_plan_workers *workers, const moe_engine_options *engine_options,
                         const moe_memory_plan *plan, const moe_speed_rates *rates)
{
    moe_error err = {""};
    *workers =
        (cli_plan_workers){.estimate = {.struct_size = sizeof workers->estimate}, .plan = plan};
    const int status =
        moe_plan_workers(engine_options, plan, rates, &workers->estimate, on_worker, workers, &err);
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

void cli_plan_workers_free(cli_plan_workers *workers)
{
    for (uint32_t i = 0; i < workers->n; i++) {
        free(workers->experts[i]);
    }
    workers->n = 0;
}

/* ---- Printing ---- */

static void print_worker(const cli_plan_workers *w, uint32_t i)
{
    const moe_worker_info *info = &w->list[i];
    if (info->ready == 0) {
        printf("  %s: does not answer\n", info->name);
        return;
    }
    printf("  %s: %" PRIu64 " experts", info->name, info->experts);
    if (w->experts[i] != NULL && strlen(w->experts[i]) <= SHORT_LIST) {
        printf(" (%s)", w->experts[i]);
    }
    printf(", memory for %" PRIu64 "; a row takes %.3f ms, and %.3f ms more an expert\n",
           info->slots, 1e3 * info->job_s, 1e3 * info->expert_s);
}

static void print_verdict(const cli_plan_workers *w)
{
    const moe_worker_estimate *e = &w->estimate;
    const double link_ms = 1e3 * e->workers_s, saved_ms = 1e3 * e->saved_s;
    if (e->jobs == 0) {
        puts("workers do not pay: no expert that they have is missing here");
    } else if (e->saved_s <= 0) {
        printf("workers take %.1f ms a token; --disk GB/S or --measure says whether they pay\n",
               link_ms);
    } else if (link_ms < saved_ms) {
        printf("workers pay: your link and they add %.1f ms a token, the drive saves %.1f ms\n",
               link_ms, saved_ms);
    } else {
        printf("workers do not pay: your link and they add %.1f ms a token, the drive saves %.1f "
               "ms\n",
               link_ms, saved_ms);
    }
}

void cli_plan_workers_print(const cli_plan_workers *w)
{
    const moe_worker_estimate *e = &w->estimate;
    char sent[CLI_FORMAT_SIZE], received[CLI_FORMAT_SIZE];
    printf("\nworkers: %" PRIu64 " of %" PRIu64 " answer, and have %" PRIu64 " of %" PRIu64
           " experts\n",
           e->ready, e->workers, e->experts, w->plan->experts);
    for (uint32_t i = 0; i < w->n; i++) {
        print_worker(w, i);
    }
    if (e->ready == 0) {
        return;
    }
    printf("%-20s%12.1f  messages each way a token, %s there and %s back\n", "on the link", e->jobs,
           cli_format_bytes(sent, (uint64_t)e->bytes_sent),
           cli_format_bytes(received, (uint64_t)e->bytes_received));
    if (e->tokens_per_s > 0) {
        printf("%-20s%8.2f t/s  with these workers, if each layer is divided by these times\n",
               "expected speed", e->tokens_per_s);
    }
    print_verdict(w);
}

static struct json_object *worker_object(const cli_plan_workers *w, uint32_t i)
{
    const moe_worker_info *info = &w->list[i];
    struct json_object *object = json_object_new_object();
    cli_json_text(object, "address", info->name);
    cli_json_put(object, "ready", json_object_new_boolean(info->ready != 0));
    cli_json_u64(object, "experts", info->experts);
    cli_json_u64(object, "slots", info->slots);
    cli_json_real(object, "job_seconds", info->job_s);
    cli_json_real(object, "expert_seconds", info->expert_s);
    if (w->experts[i] != NULL) {
        cli_json_text(object, "expert_list", w->experts[i]);
    }
    return object;
}

void cli_plan_workers_put(struct json_object *object, const cli_plan_workers *w)
{
    const moe_worker_estimate *e = &w->estimate;
    struct json_object *list = json_object_new_array();
    for (uint32_t i = 0; i < w->n; i++) {
        cli_json_append(list, worker_object(w, i));
    }
    cli_json_put(object, "workers", list);
    cli_json_u64(object, "workers_ready", e->ready);
    cli_json_u64(object, "worker_experts", e->experts);
    cli_json_real(object, "worker_token_jobs", e->jobs);
    cli_json_real(object, "worker_token_bytes_sent", e->bytes_sent);
    cli_json_real(object, "worker_token_bytes_received", e->bytes_received);
    cli_json_real(object, "worker_seconds", e->workers_s);
    cli_json_real(object, "worker_saved_seconds", e->saved_s);
    cli_json_real(object, "worker_tokens_per_s", e->tokens_per_s);
}
