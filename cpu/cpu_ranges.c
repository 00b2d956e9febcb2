/* SPDX-License-Identifier: MIT */
/* Divides ranges of rows or elements among the team. */
#include "cpu/cpu_internal.h"
#include "runtime/base/moe_assert.h"

typedef struct range_job {
    moe_task_queue queue;
    uint32_t n, grain;
    moe_cpu_range_fn body;
    void *context;
} range_job;

static void run_ranges(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)worker;
    (void)n_workers;
    range_job *job = arg;
    for (;;) {
        uint64_t begin = (uint64_t)moe_task_next(&job->queue) * job->grain;
        if (begin >= job->n) {
            return;
        }
        uint64_t end = begin + job->grain;
        job->body(job->context, (uint32_t)begin, end < job->n ? (uint32_t)end : job->n);
    }
}

void moe_cpu_for(moe_cpu_device *cpu, uint32_t n, uint32_t grain, moe_cpu_range_fn body,
                 void *context)
{
    MOE_ASSERT(grain > 0);
    if (n <= grain) {
        if (n > 0) {
            body(context, 0, n);
        }
        return;
    }
    range_job job = {.n = n, .grain = grain, .body = body, .context = context};
    moe_team_run(cpu->team, run_ranges, &job);
}
