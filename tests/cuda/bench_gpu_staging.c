/* SPDX-License-Identifier: MIT */
/* Two things that the host waits for. Page-locking: how long host memory takes to become the
 * GPU's, by size. Small copies: how long an operation's arrays take to arrive and be waited for,
 * alone and behind experts that are being copied over the same link. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_gpu.h"
#include "runtime/base/clock.h"

#define SMALL_BYTES  4096u
#define EXPERT_BYTES ((size_t)4 << 20)
#define N_TIMES      301u

/* Memory that the system can give without swapping; 0 if it does not say. */
static uint64_t available_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long long kib = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return (uint64_t)kib << 10;
}

int bench_pinning(bench *b)
{
    static const size_t sizes_mib[] = {16, 64, 256, 1024, 4096, 16384};
    const moe_link_ops *link = b->device->link;
    size_t n = b->quick ? 1 : sizeof sizes_mib / sizeof sizes_mib[0];
    for (size_t i = 0; i < n; i++) {
        size_t bytes = b->quick ? SMALL_BYTES : sizes_mib[i] << 20;
        if (bytes > available_bytes() / 2) {
            break;
        }
        void *memory = NULL;
        uint64_t begin = moe_now_ns();
        if (link->host_alloc(b->device, bytes, &memory, &b->err) != MOE_OK) {
            printf("pinning of %zu MiB refused: %s\n", sizes_mib[i], b->err.message);
            return 0; /* an answer too */
        }
        uint64_t locked = moe_now_ns();
        link->host_free(b->device, memory, bytes);
        uint64_t freed = moe_now_ns();
        char of[64];
        snprintf(of, sizeof of, "%zu MiB in one piece", sizes_mib[i]);
        bench_figure figure = {.subject = "pinning",
                               .of = of,
                               .value = (double)bytes / (double)(locked - begin),
                               .unit = "GB/s"};
        bench_figure_put(b->json, &figure);
        snprintf(of, sizeof of, "%zu MiB given back", sizes_mib[i]);
        figure.value = (double)bytes / (double)(freed - locked);
        bench_figure_put(b->json, &figure);
    }
    return 0;
}

typedef struct staging_bench {
    bench *b;
    uint8_t *experts; /* host, EXPERT_BYTES */
    uint8_t *slots;   /* device, EXPERT_BYTES */
    uint8_t *target;  /* device, SMALL_BYTES */
    uint64_t tickets[MOE_MAX_COPIES];
} staging_bench;

/* Times one small copy with a wait, with n_queued experts begun just before it. */
static int time_small(staging_bench *s, uint32_t n_queued, double *us)
{
    static const uint8_t small[SMALL_BYTES];
    bench *b = s->b;
    const moe_link_ops *link = b->device->link;
    moe_copy_range range = {s->slots, s->experts, b->quick ? SMALL_BYTES : EXPERT_BYTES};
    for (uint32_t i = 0; i < n_queued; i++) {
        if (link->copy_begin(b->device, &range, 1, &s->tickets[i], &b->err) != MOE_OK) {
            return bench_failed(b);
        }
    }
    uint64_t end;
    uint64_t begin = moe_now_ns();
    if (b->ops->upload(b->device, s->target, small, SMALL_BYTES, &b->err) != MOE_OK) {
        return bench_failed(b);
    }
    int code = bench_sync(b, &end);
    *us = (double)(end - begin) * 1e-3;
    for (uint32_t i = 0; i < n_queued && code == 0; i++) {
        code = link->copy_wait(b->device, s->tickets[i], &b->err) != MOE_OK ? bench_failed(b) : 0;
    }
    return code;
}

static int measure_small(staging_bench *s, uint32_t n_queued)
{
    double times[N_TIMES];
    uint32_t n = s->b->quick ? 1 : N_TIMES;
    for (uint32_t i = 0; i < n; i++) {
        if (time_small(s, n_queued, &times[i]) != 0) {
            return 1;
        }
    }
    for (int worst = 0; worst <= 1; worst++) {
        char of[64];
        snprintf(of, sizeof of, "4 KiB and a wait, behind %u experts, %s", n_queued,
                 worst != 0 ? "99th of 100" : "median");
        bench_figure_put(s->b->json,
                         &(bench_figure){.subject = "staging",
                                         .of = of,
                                         .value = bench_at_share(times, n, worst != 0 ? 0.99 : 0.5),
                                         .unit = "us"});
    }
    return 0;
}

int bench_staging(bench *b)
{
    static const uint32_t queues[] = {0, 1, 4, 8};
    staging_bench s = {.b = b};
    void *experts = NULL;
    void *slots = NULL;
    void *target = NULL;
    int code = 0;
    if (b->device->link->host_alloc(b->device, EXPERT_BYTES, &experts, &b->err) != MOE_OK ||
        b->ops->alloc(b->device, EXPERT_BYTES, &slots, &b->err) != MOE_OK ||
        b->ops->alloc(b->device, SMALL_BYTES, &target, &b->err) != MOE_OK) {
        code = bench_failed(b);
    } else {
        memset(experts, 0x5a, EXPERT_BYTES);
    }
    s.experts = experts;
    s.slots = slots;
    s.target = target;
    for (size_t i = 0; i < sizeof queues / sizeof queues[0] && code == 0; i++) {
        if (queues[i] <= MOE_MAX_COPIES) {
            code = measure_small(&s, queues[i]);
        }
    }
    b->ops->free(b->device, slots, EXPERT_BYTES);
    b->ops->free(b->device, target, SMALL_BYTES);
    if (experts != NULL) {
        b->device->link->host_free(b->device, experts, EXPERT_BYTES);
    }
    return code;
}
