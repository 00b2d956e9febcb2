/* SPDX-License-Identifier: MIT */
#include "server_view.h"

#include <stdlib.h>
#include <string.h>

#include <moe/lab.h>

#include "cli_json.h"
#include "server_clock.h"

enum { PICTURE_MS = 400, LOOKED_AT_MS = 5000 };

static bool is_older(uint64_t then_ns, uint64_t now, unsigned milliseconds)
{
    return then_ns == 0 || now - then_ns > (uint64_t)milliseconds * 1000000;
}

void server_view_init(server_view *view, const moe_engine *engine)
{
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    memset(view, 0, sizeof *view);
    view->engine = engine;
    view->n_layer = info.n_layer;
    view->n_expert = info.n_expert;
    view->tiers = calloc((size_t)info.n_layer * info.n_expert + 1, 1);
    pthread_mutex_init(&view->lock, NULL);
}

void server_view_free(server_view *view)
{
    free(view->tiers);
    pthread_mutex_destroy(&view->lock);
}

/* Copies the state of the sessions. The caller holds the lock. */
static void take_slots(server_view *view, server_job *const *active, uint32_t n_active)
{
    view->n_slots = n_active;
    for (uint32_t i = 0; i < n_active; i++) {
        const server_job *job = active[i];
        view->slots[i] = (server_slot){job->n_tokens, job->n_cached, job->n_read, job->n_written};
    }
}

void server_view_take_slots(server_view *view, server_job *const *active, uint32_t n_active)
{
    pthread_mutex_lock(&view->lock);
    take_slots(view, active, n_active);
    pthread_mutex_unlock(&view->lock);
}

void server_view_take(server_view *view, server_job *const *active, uint32_t n_active)
{
    uint64_t now = server_now_ns();
    pthread_mutex_lock(&view->lock);
    bool is_due = !is_older(view->asked_ns, now, LOOKED_AT_MS) &&
                  (is_older(view->taken_ns, now, PICTURE_MS) || n_active == 0);
    if (is_due) {
        view->taken_ns = now;
        take_slots(view, active, n_active);
        if (view->tiers != NULL) {
            (void)moe_engine_get_tiers(view->engine, view->tiers,
                                       (size_t)view->n_layer * view->n_expert, NULL);
        }
    }
    pthread_mutex_unlock(&view->lock);
}

bool server_view_ask(server_view *view)
{
    uint64_t now = server_now_ns();
    pthread_mutex_lock(&view->lock);
    view->asked_ns = now;
    bool is_old = is_older(view->taken_ns, now, PICTURE_MS);
    pthread_mutex_unlock(&view->lock);
    return is_old;
}

/* Returns a text with a digit (a moe_tier) for each expert of the layer. */
static struct json_object *new_layer(const server_view *view, uint32_t layer)
{
    char text[512];
    cli_buffer digits = {NULL, 0, 0};
    const uint8_t *tiers = view->tiers + (size_t)layer * view->n_expert;
    for (uint32_t i = 0; i < view->n_expert; i += sizeof text) {
        size_t n = view->n_expert - i < sizeof text ? view->n_expert - i : sizeof text;
        for (size_t k = 0; k < n; k++) {
            text[k] = (char)('0' + tiers[i + k]);
        }
        (void)cli_buffer_append(&digits, text, n);
    }
    struct json_object *layer_text =
        cli_json_new_text(digits.size == 0 ? "" : digits.data, digits.size);
    cli_buffer_free(&digits);
    return layer_text;
}

static struct json_object *new_workers(const server_counts *c)
{
    struct json_object *list = json_object_new_array();
    for (uint32_t i = 0; i < c->engine.workers && i < SERVER_MOST_WORKERS; i++) {
        const moe_worker_info *info = &c->workers[i];
        struct json_object *worker = json_object_new_object();
        cli_json_text(worker, "address", info->name);
        cli_json_put(worker, "ready", json_object_new_boolean(info->ready != 0));
        cli_json_u64(worker, "experts", info->experts);
        cli_json_u64(worker, "computed", info->computed);
        cli_json_append(list, worker);
    }
    return list;
}

struct json_object *server_view_live(server_view *view, const server_counts *c,
                                     const server_options *options, const moe_engine_info *info)
{
    const moe_engine_stats *engine = &c->engine;
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        {"active", c->active},
        {"idle", c->idle},
        {"waiting", c->waiting},
        {"parallel", options->parallel},
        {"requests", c->submitted},
        {"refused", c->refused},
        {"steps", c->steps},
        {"prompt_tokens", c->prompt_tokens},
        {"cached_tokens", c->cached_tokens},
        {"written_tokens", c->written_tokens},
        {"hits", engine->expert_hits},
        {"misses", engine->expert_misses},
        {"disk_bytes", engine->bytes_read_disk + c->pass.bytes_read},
        {"link_bytes", engine->bytes_moved_link},
        {"wait_ns", engine->expert_wait_ns},
        {"drafted", engine->speculation.drafted},
        {"accepted", engine->speculation.accepted},
        {"session_bytes", engine->session_bytes},
        {"resident_bytes", engine->resident_bytes_now},
        {"budget_bytes", info->memory.budget},
        {"pass_layer", c->pass.layer},
        {"pass_rows", c->pass.n_rows},
        {"pass_bytes", c->pass.bytes_read},
        {"pass_bytes_expected", c->pass.bytes_expected},
        {"pass_ms", (uint64_t)(1e3 * c->pass.seconds)},
        {"pass_ms_expected", (uint64_t)(1e3 * c->pass.seconds_expected)},
        {"n_layer", view->n_layer},
        {"n_expert", view->n_expert},
        {"n_expert_used", info->n_expert_used},
    };
    struct json_object *object = json_object_new_object();
    struct json_object *layers = json_object_new_array();
    cli_json_text(object, "model", options->model);
    cli_json_text(object, "device", info->device);
    cli_json_text(object, "policy", info->policy);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cli_json_u64(object, rows[i].name, rows[i].value);
    }
    pthread_mutex_lock(&view->lock);
    for (uint32_t i = 0; view->tiers != NULL && i < view->n_layer; i++) {
        cli_json_append(layers, new_layer(view, i));
    }
    pthread_mutex_unlock(&view->lock);
    cli_json_put(object, "layers", layers);
    cli_json_put(object, "workers", new_workers(c));
    return object;
}

struct json_object *server_view_slots(server_view *view, const server_counts *c,
                                      const server_options *options, uint32_t context)
{
    struct json_object *slots = json_object_new_array();
    pthread_mutex_lock(&view->lock);
    for (uint32_t i = 0; i < options->parallel; i++) {
        struct json_object *slot = json_object_new_object();
        bool works = i < view->n_slots;
        cli_json_u64(slot, "id", i);
        cli_json_put(slot, "is_processing", json_object_new_boolean(works));
        cli_json_text(slot, "state",
                      works && view->slots[i].n_written > 0 ? "writing"
                      : works                               ? "reading"
                      : i < view->n_slots + c->idle         ? "idle"
                                                            : "free");
        cli_json_u64(slot, "n_ctx", context);
        if (works) {
            cli_json_u64(slot, "prompt_tokens", view->slots[i].n_prompt);
            cli_json_u64(slot, "cached_tokens", view->slots[i].n_cached);
            cli_json_u64(slot, "read_tokens", view->slots[i].n_read);
            cli_json_u64(slot, "written_tokens", view->slots[i].n_written);
        }
        cli_json_append(slots, slot);
    }
    pthread_mutex_unlock(&view->lock);
    return slots;
}
