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
} flags[] = {
    {"acceptance", "--acceptance"},
    {"affinity", "--affinity"},
    {"budget_error", "--expert-budget-mode"},
    {"budget_free_resident", "--expert-budget-mode"},
    {"budget_oracle", "--expert-budget-mode"},
    {"budget_order", "--expert-budget-mode"},
    {"buddies", "--buddy"},
    {"device_memory", "--device-memory"},
    {"device", "--device"},
    {"draft_experts", "--draft-experts"},
    {"draft_model", "--speculate"},
    {"draft_max", "--draft-max"},
    {"draft_pin", "--draft-pin"},
    {"expert_budget", "--expert-budget"},
    {"expert_cache", "--expert-cache"},
    {"float_gemm", "--float-gemm"},
    {"foresight", "--foresight"},
    {"host_compute", "--host-compute"},
    {"host_memory", "--host-memory"},
    {"io", "--io"},
    {"io_block_bytes", "--io-block"},
    {"io_depth", "--io-depth"},
    {"io_timeout", "--io-timeout"},
    {"kernels", "--kernels"},
    {"kv_cache", "--kv"},
    {"length_control", "--length-control"},
    {"model_path", "-m"},
    {"n_threads", "-t"},
    {"prefill_chunk", "-b"},
    {"quality_limit", "--quality-limit"},
    {"quality_share", "--quality-share"},
    {"route_trace", "--route-trace"},
    {"offload", "--offload"},
    {"speculate", "--speculate"},
    {"template_arguments", "--chat-template-kwargs"},
    {"template_name", "--chat-template"},
    {"thinking", "--think"},
    {"trace_gates", "--trace"},
    {"trace_path", "--trace"},
    {"tree_nodes", "--tree"},
    {"verify_bytes", "--verify-bytes"},
    {"warm_start", "--warm-start"},
};

static const char *flag_of(const char *words, size_t size)
{
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (strlen(flags[i].words) == size && memcmp(flags[i].words, words, size) == 0) {
            return flags[i].flag;
        }
    }
    return NULL;
}

/* The size of "lossy." or "lab.", the struct in which a field is; else 0. */
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
