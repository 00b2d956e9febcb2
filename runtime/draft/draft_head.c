/* SPDX-License-Identifier: MIT */
/* The drafting layer itself: its program and weights, its memory, and its passes. */
#include "runtime/draft/draft_head.h"

#include <stdlib.h>
#include <string.h>

#include "cache/expert_cache.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/program_run.h"

/* The policy of the expert slots. They hold all experts of the layer, so it never evicts one. */
#define POLICY "lru"

static int read_layer(moe_draft_head *head, const moe_model_config *trunk, const char *path,
                      moe_error *err)
{
    if (!moe_gguf_is_eagle(head->gguf)) {
        head->config = *trunk;
        return moe_program_build_draft(&head->program, &head->map, &head->config, head->gguf, err);
    }
    MOE_TRY(moe_draft_eagle_open(&head->eagle, trunk, head->gguf, path, err));
    head->config = head->eagle->config.config;
    return moe_program_build_eagle(&head->program, &head->map, &head->eagle->config, head->gguf,
                                   err);
}

int moe_draft_head_open(moe_draft_head **out, const moe_model_config *trunk, const moe_gguf *gguf,
                        const char *path, moe_error *err)
{
    *out = NULL;
    moe_draft_head *head = moe_calloc(1, sizeof *head);
    if (head == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a drafting layer");
    }
    head->gguf = gguf;
    int status = read_layer(head, trunk, path, err);
    if (status != MOE_OK) {
        moe_tensor_map_free(&head->map);
        moe_draft_eagle_close(&head->eagle, NULL);
        free(head);
        return status;
    }
    const uint32_t n_streams = head->config.n_streams;
    head->width = head->config.n_embd * (n_streams > 1 ? n_streams : 1);
    uint64_t used = head->map.expert_bytes / head->config.n_expert * head->config.n_expert_used;
    head->layer_bytes =
        head->map.resident_bytes - head->map.token_embedding.size - head->map.output.size + used;
    *out = head;
    return MOE_OK;
}

void moe_draft_head_close(moe_draft_head **head_ptr)
{
    moe_draft_head *head = *head_ptr;
    if (head == NULL) {
        return;
    }
    moe_expert_store_close(&head->runner.experts);
    if (head->is_open) {
        moe_weights_free(&head->weights, head->device);
        moe_pass_buffers_free(&head->runner.buffers, head->device);
    }
    if (head->device != NULL) {
        moe_kv_pool_free(&head->kv);
    }
    moe_draft_eagle_close(&head->eagle, head->device);
    free(head->rows_hidden);
    free(head->streams);
    moe_program_free(&head->program);
    moe_tensor_map_free(&head->map);
    free(head);
    *head_ptr = NULL;
}

int moe_draft_head_layout(moe_draft_head *head, moe_device *device, moe_kv_type type,
                          moe_error *err)
{
    if (device->memory_bytes != 0 || device->link != NULL) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "options.speculate: a drafting layer runs on the CPU alone so far, and the "
                        "device is '%s'; draft in another way, or open the model on the CPU",
                        device->name);
    }
    int status = moe_kv_pool_init(&head->kv, device, &head->config, type, MOE_HEAD_ROWS, err);
    head->device = status == MOE_OK ? device : NULL;
    return status;
}

int moe_draft_head_resident_bytes(const moe_draft_head *head, uint64_t *bytes, moe_error *err)
{
    moe_expert_slot_sizes sizes = {0};
    int status = head->map.expert_bytes > 0 ? moe_expert_store_sizes(&head->map, false, &sizes, err)
                                            : MOE_OK;
    *bytes = moe_weights_bytes(&head->config, &head->map, false) + sizes.full_bytes;
    return status;
}

uint64_t moe_draft_head_scratch_bytes(const moe_draft_head *head, uint32_t max_rows)
{
    const moe_model_config *c = &head->config;
    uint64_t eagle = head->eagle != NULL ? moe_draft_eagle_bytes(head->eagle, max_rows) : 0;
    return eagle + moe_pass_buffers_host_bytes(&head->program, MOE_HEAD_ROWS) +
           moe_pass_buffers_device_bytes(&head->program, MOE_HEAD_ROWS) + sizeof *head +
           (MOE_HEAD_ROWS + (head->width > c->n_embd ? MOE_LOGIT_ROWS : 0ull)) * head->width *
               sizeof(float);
}

/* Includes the keys and values of a draft, and a partly filled page at either end. */
uint64_t moe_draft_head_session_bytes(const moe_draft_head *head)
{
    uint64_t n_pages = 2 + MOE_MOST_DRAFT / MOE_KV_PAGE;
    return (MOE_HEAD_ROWS + 2ull) * head->width * sizeof(float) +
           n_pages * moe_memory_border_page_cost(head->device, head->kv.page_bytes);
}

uint64_t moe_draft_head_token_bytes(const moe_draft_head *head)
{
    uint64_t page = moe_memory_border_page_cost(head->device, head->kv.page_bytes);
    return (page + 2 * sizeof(void *) + MOE_KV_PAGE - 1) / MOE_KV_PAGE;
}

static void raise_limit(moe_rows_limit *to, moe_rows_limit need)
{
    to->n_rows = to->n_rows > need.n_rows ? to->n_rows : need.n_rows;
    to->n = to->n > need.n ? to->n : need.n;
}

void moe_draft_head_limits(const moe_draft_head *head, moe_device_limits *limits)
{
    moe_device_limits need;
    moe_pass_device_limits(&head->program, MOE_HEAD_ROWS, &need);
    raise_limit(&limits->linear, need.linear);
    raise_limit(&limits->head_linear, need.head_linear);
    for (size_t i = 0; i < sizeof need.ff / sizeof need.ff[0]; i++) {
        raise_limit(&limits->ff[i], need.ff[i]);
    }
}

/* Uses the model's weights for all tensors that the drafting layer does not have itself. */
static void borrow_weights(moe_draft_head *head, const moe_weights *trunk)
{
    moe_weights *w = &head->weights;
    w->output_bias = trunk->output_bias;
    if (w->output_norm.data == NULL) {
        w->output_norm = trunk->output_norm;
        w->output_norm_bias = trunk->output_norm_bias;
    }
    if (w->token_embedding.data == NULL) {
        w->token_embedding = trunk->token_embedding;
    }
    if (w->output.data == NULL) {
        w->output = trunk->output;
    }
    for (int t = 0; t < MOE_STREAMS_TENSORS; t++) {
        if (w->streams[t].data == NULL) {
            w->streams[t] = trunk->streams[t];
        }
    }
}

static int open_experts(moe_draft_head *head, const moe_model_reader_options *reading,
                        moe_weight_sums *sums, moe_error *err)
{
    moe_expert_slot_sizes sizes;
    if (head->map.expert_bytes == 0) {
        return MOE_OK;
    }
    MOE_TRY(moe_expert_store_sizes(&head->map, false, &sizes, err));
    const moe_policy *policy = NULL;
    void *plugin;
    MOE_TRY(moe_policy_load(&policy, &plugin, POLICY, err));
    moe_expert_store_options options = {.device = head->device,
                                        .gguf = head->gguf,
                                        .map = &head->map,
                                        .n_expert_used = head->config.n_expert_used,
                                        .budget_bytes = sizes.full_bytes,
                                        .policy = policy,
                                        .sums = sums,
                                        .io_timeout_ns = reading->io_timeout_ns,
                                        .log = head->runner.log,
                                        .user = head->runner.user};
    return moe_expert_store_open(&head->runner.experts, &options, err);
}

static int open_buffers(moe_draft_head *head, moe_error *err)
{
    int status = moe_pass_buffers_init(&head->runner.buffers, head->device, &head->program,
                                       MOE_HEAD_ROWS, err);
    if (status == MOE_OK) {
        head->rows_hidden =
            moe_calloc((size_t)MOE_HEAD_ROWS * head->width, sizeof *head->rows_hidden);
    }
    const bool several = head->width > head->config.n_embd;
    if (status == MOE_OK && several) {
        head->streams = moe_calloc((size_t)MOE_LOGIT_ROWS * head->width, sizeof *head->streams);
    }
    return status != MOE_OK || (head->rows_hidden != NULL && several == (head->streams != NULL))
               ? status
               : moe_fail(err, MOE_ERR_MEMORY, "no memory for a drafting layer");
}

int moe_draft_head_load(moe_draft_head *head, moe_runner *trunk,
                        const moe_model_reader_options *reading, moe_weight_sums *experts,
                        moe_weight_sums *tensors, moe_error *err)
{
    head->runner = (moe_runner){.model_path = trunk->model_path,
                                .device = trunk->device,
                                .config = &head->config,
                                .program = &head->program,
                                .bodies = trunk->bodies,
                                .weights = &head->weights,
                                .rope_frequencies = trunk->rope_frequencies,
                                .window_frequencies = trunk->window_frequencies,
                                .plan = trunk->plan,
                                .kv = &head->kv,
                                .states = trunk->states,
                                .log = trunk->log,
                                .user = trunk->user};
    moe_device_place_init(&head->runner.at_device, trunk->device, head->config.n_expert_in, false);
    head->is_open = true;
    moe_weights_source source = {.gguf = head->gguf,
                                 .config = &head->config,
                                 .map = &head->map,
                                 .sums = tensors,
                                 .reader = *reading};
    int status = open_buffers(head, err);
    status = status == MOE_OK ? open_experts(head, reading, experts, err) : status;
    status =
        status == MOE_OK ? moe_weights_load(&head->weights, head->device, &source, err) : status;
    if (status == MOE_OK) {
        borrow_weights(head, trunk->weights);
    }
    return status != MOE_OK || head->eagle == NULL
               ? status
               : moe_draft_eagle_load(head->eagle, &head->runner, trunk, reading, err);
}

/* ---- A pass of the drafting layer ---- */

static int run_layer(moe_draft_head *head, const moe_pass *pass, moe_error *err)
{
    moe_runner *runner = &head->runner;
    size_t bytes = (size_t)pass->n_rows * head->width * sizeof(float);
    MOE_TRY(head->device->ops->upload(head->device, runner->buffers.values[MOE_VALUE_HIDDEN],
                                      head->rows_hidden, bytes, err));
    MOE_TRY(moe_program_front(runner, pass, err));
    MOE_TRY(moe_layer_front(runner, pass, 0, err));
    return moe_layer_rest(runner, pass, 0, err);
}

/* Keeps the hidden states of the n rows with logits, unless they come with the logits. */
static int keep_states(moe_draft_head *head, uint32_t n, moe_error *err)
{
    if (head->eagle != NULL) {
        return moe_draft_eagle_keep(head->eagle, head->logit_rows, n, err);
    }
    return head->streams == NULL
               ? MOE_OK
               : head->device->ops->download(head->device, head->streams,
                                             head->runner.buffers.values[MOE_VALUE_WANTED_STREAMS],
                                             (size_t)n * head->width * sizeof(float), err);
}

int moe_head_pass(moe_draft_head *head, moe_pass *pass, uint32_t n, moe_error *err)
{
    MOE_ASSERT(n > 0 && n <= MOE_HEAD_ROWS && pass->n_logit_rows <= MOE_LOGIT_ROWS);
    moe_step_inputs inputs;
    bool done;
    pass->kind = MOE_PASS_EXACT;
    pass->n_rows = n;
    pass->tokens = head->tokens;
    pass->kv_rows = head->rows;
    pass->row_ids = head->row_ids;
    pass->logit_rows = head->logit_rows;
    int status = moe_pass_begin_step(&head->runner, pass, &inputs, err);
    if (status == MOE_OK) {
        status = run_layer(head, pass, err);
    }
    status = moe_pass_end_step(&head->runner, status, err);
    if (status == MOE_OK && head->runner.experts != NULL) {
        moe_expert_store_end_pass(head->runner.experts, head->runner.n_passes++);
    }
    if (status == MOE_OK && pass->n_logit_rows > 0) {
        status = moe_pass_queue_logits(&head->runner, head->logit_rows, pass->n_logit_rows, err);
    }
    if (status == MOE_OK && pass->n_logit_rows > 0) {
        status = moe_pass_hand_over(&head->runner, pass, 0, pass->n_logit_rows, &done, err);
    }
    return status != MOE_OK || pass->n_logit_rows == 0 ? status
                                                       : keep_states(head, pass->n_logit_rows, err);
}

const float *moe_head_states(const moe_draft_head *head, uint32_t n, uint32_t i)
{
    size_t n_embd = head->config.n_embd;
    return head->streams != NULL ? head->streams + (size_t)i * head->width
           : head->eagle != NULL ? head->eagle->states + i * n_embd
                                 : head->runner.buffers.logits_host - (n - i) * n_embd;
}
