/* SPDX-License-Identifier: MIT */
/* Routing traces: u8 format and policy, u8 layers, u8 experts, then the file. What is accepted is
 * simulated and analysed, and the figures must add up. */
#include <stdbool.h>
#include <string.h>

#include <moe/trace.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_support.h"

#define MAX_KEYS    4096u /* layers x experts that are simulated; the tables grow with them */
#define MAX_CHOICES 100000u

static void use(const moe_trace *trace, uint8_t choice)
{
    moe_trace_info info = {.struct_size = sizeof info};
    moe_simulation simulation;
    moe_simulation_result result = {.struct_size = sizeof result};
    moe_analysis *analysis = NULL;
    moe_error err = {""};
    moe_trace_get_info(trace, &info);
    fuzz_expect(info.n_rows > 0 && info.n_passes > 0 && info.n_passes <= info.n_rows);
    fuzz_expect(info.n_accesses <= info.n_choices && info.n_expert_used <= info.n_expert);
    if (info.n_layer * info.n_expert > MAX_KEYS || info.n_choices > MAX_CHOICES) {
        return;
    }
    moe_simulation_init(&simulation);
    uint32_t n_policies = 0;
    while (moe_policy_name(n_policies) != NULL) {
        n_policies++;
    }
    simulation.policy = moe_policy_name((choice >> 1) % n_policies);
    simulation.per_layer = choice >> 7;
    simulation.prefetch_recall = choice % 3 == 0 ? 0.5 : -1;
    int status = moe_simulate(trace, &simulation, &result, &err);
    if (status == MOE_OK) {
        fuzz_expect(result.hits + result.misses == info.n_accesses);
        fuzz_expect(result.policy_faults == 0 && result.n_tokens == info.n_rows);
    } else {
        fuzz_expect(err.message[0] != '\0');
    }
    status = moe_analyze(&analysis, trace, choice % info.n_layer, &err);
    if (status == MOE_OK) {
        fuzz_expect(analysis->mean.skewness >= 0 && analysis->mean.skewness <= 1);
    }
    moe_analysis_free(&analysis);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz_file file;
    if (size < 3) {
        return 0;
    }
    moe_trace_open_options options;
    moe_trace *trace = NULL;
    moe_error err = {""};
    moe_trace_open_options_init(&options);
    options.path = fuzz_file_write(&file, data + 3, size - 3);
    options.format = data[0] & 1 ? MOE_TRACE_ORACLE_GENERAL : MOE_TRACE_JSONL;
    options.n_layer = data[1];
    options.n_expert = data[2];
    if (moe_trace_open(&trace, &options, &err) == MOE_OK) {
        use(trace, data[0]);
    } else {
        fuzz_expect(trace == NULL && err.message[0] != '\0');
    }
    moe_trace_close(&trace);
    return 0;
}
