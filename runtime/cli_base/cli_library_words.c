/* SPDX-License-Identifier: MIT */
#include "cli_library_words.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define FIELD_PREFIX "options."

static const struct {
    const char *words; /* a field of moe_engine_options, or the library's name for it */
    const char *flag;
    bool is_advice; /* words from the library's advice about memory, not a field */
} flags[] = {
    {"smaller context", "-c", true},
    {"smaller prefill chunk", "-b", true},
    {"fewer sessions", "--parallel", true},
    {"memory budget", "--host-memory", true},
    {"allow overcommitting", "--overcommit-memory", true},
    {"device memory", "--device-memory", true},
    {"expert cache", "--expert-cache", true},
    {"acceptance", "--acceptance", false},
    {"affinity", "--affinity", false},
    {"budget_error", "--expert-budget-mode", false},
    {"budget_free_resident", "--expert-budget-mode", false},
    {"budget_oracle", "--expert-budget-mode", false},
    {"budget_order", "--expert-budget-mode", false},
    {"buddies", "--buddy", false},
    {"calibration", "--calibration", false},
    {"device_memory", "--device-memory", false},
    {"device", "--device", false},
    {"draft_experts", "--draft-experts", false},
    {"draft_model", "--speculate", false},
    {"draft_max", "--draft-max", false},
    {"draft_pin", "--draft-pin", false},
    {"expert_budget", "--expert-budget", false},
    {"expert_cache", "--expert-cache", false},
    {"expert_cache_share", "--expert-cache", false},
    {"exact_attention", "--exact-attention", false},
    {"float_gemm", "--float-gemm", false},
    {"foresight", "--foresight", false},
    {"listen", "--listen", false},
    {"share", "--share", false},
    {"experts", "--experts", false},
    {"workers", "--workers", false},
    {"worker_compute", "--worker-compute", false},
    {"worker_timeout", "--worker-timeout", false},
    {"worker_key", "--worker-key", false},
    {"worker_rebalance", "--rebalance", false},
    {"host_compute", "--host-compute", false},
    {"host_memory", "--host-memory", false},
    {"checksums", "--checksums", false},
    {"idle_checksums", "--idle-checksums", false},
    {"io", "--io", false},
    {"io_block_bytes", "--io-block", false},
    {"io_depth", "--io-depth", false},
    {"io_timeout", "--io-timeout", false},
    {"kernels", "--kernels", false},
    {"kv_cache", "--kv", false},
    {"length_control", "--length-control", false},
    {"lookahead", "--lookahead", false},
    {"low_bit", "--low-bit", false},
    {"low_bit_below", "--low-bit", false},
    {"low_bit_share", "--low-bit", false},
    {"low_bit_type", "--low-bit-type", false},
    {"lookahead_overlap", "--lookahead-overlap", false},
    {"metadata_overrides", "--override-kv", false},
    {"model_copies", "--model-copy", false},
    {"model_path", "-m", false},
    {"n_threads", "-t", false},
    {"panel", "--panel", false},
    {"panel_others", "--panel-others", false},
    {"policy", "--policy", false},
    {"prefill_chunk", "-b", false},
    {"quality_limit", "--quality-limit", false},
    {"quality_share", "--quality-share", false},
    {"route_trace", "--route-trace", false},
    {"offload", "--offload", false},
    {"speculate", "--speculate", false},
    {"template_arguments", "--chat-template-kwargs", false},
    {"template_name", "--chat-template", false},
    {"thinking", "--think", false},
    {"trace_gates", "--trace", false},
    {"trace_path", "--trace", false},
    {"tree_nodes", "--tree", false},
    {"verify_bytes", "--verify-bytes", false},
    {"warm_start", "--warm-start", false},
};

static const char *flag_of(const char *words, size_t size)
{
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (!flags[i].is_advice && strlen(flags[i].words) == size &&
            memcmp(flags[i].words, words, size) == 0) {
            return flags[i].flag;
        }
    }
    return NULL;
}

/* The length of "lossy." or "lab.", if text begins with a field of that struct; otherwise 0. */
static size_t struct_prefix(const char *text)
{
    return strncmp(text, "lossy.", 6) == 0 ? 6 : strncmp(text, "lab.", 4) == 0 ? 4 : 0;
}

static size_t identifier(const char *text)
{
    size_t n = 0;
    while (isalnum((unsigned char)text[n]) || text[n] == '_' || text[n] == '-') {
        n++;
    }
    return n;
}

void cli_library_words(const char *message, char *out, size_t size)
{
    size_t n = 0;
    size_t colon = strcspn(message, ":");
    const char *flag = message[colon] == ':' ? flag_of(message, colon) : NULL;
    if (flag != NULL) {
        n = (size_t)snprintf(out, size, "%s", flag);
        message += colon;
    }
    while (*message != '\0' && n + 1 < size) {
        bool is_named = strncmp(message, FIELD_PREFIX, sizeof FIELD_PREFIX - 1) == 0;
        message += is_named ? sizeof FIELD_PREFIX - 1 : 0;
        message += is_named ? struct_prefix(message) : 0;
        size_t word = identifier(message);
        bool is_field = word > 0 && (is_named || memchr(message, '_', word) != NULL);
        flag = is_field ? flag_of(message, word) : NULL;
        word = word > 0 ? word : 1;
        int more = flag != NULL ? snprintf(out + n, size - n, "%s", flag)
                                : snprintf(out + n, size - n, "%.*s", (int)word, message);
        n += more > 0 ? (size_t)more : 0;
        message += word;
    }
    out[n < size ? n : size - 1] = '\0';
}

void cli_library_advice(const char *message, char *out, size_t size)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (flags[i].is_advice && strstr(message, flags[i].words) != NULL && n < size) {
            n += (size_t)snprintf(out + n, size - n, "%s%s", n == 0 ? " (" : ", ", flags[i].flag);
        }
    }
    if (n > 0 && n < size) {
        snprintf(out + n, size - n, ")");
    }
}
