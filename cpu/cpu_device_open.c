/* SPDX-License-Identifier: MIT */
/* Opens the CPU device, and manages its memory and scratch. Arithmetic is in cpu_linear.c
 * (products), cpu_experts.c (feed-forward networks), cpu_attention.c and cpu_elementwise.c. */
#include "cpu/cpu_device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu/cpu_internal.h"
#include "cpu/kernels/cpu_features.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/host/numa_memory.h"

#define HUGE_PAGE (2u << 20)

static void cpu_close(moe_device *device)
{
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    free(cpu->scratch);
    free(cpu);
}

/* Large buffers are mapped: untouched pages cost nothing, and huge pages need fewer TLB entries. */
static int cpu_alloc(moe_device *device, size_t bytes, void **memory, moe_error *err)
{
    (void)device;
    *memory = NULL;
    void *p = mmap(NULL, bytes == 0 ? 1 : bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        return moe_fail(err, MOE_ERR_MEMORY, "cannot map %zu bytes: %s", bytes, strerror(errno));
    }
    if (bytes >= HUGE_PAGE) {
        (void)madvise(p, bytes, MADV_HUGEPAGE);
        (void)moe_numa_interleave(p, bytes);
    }
    *memory = p;
    return MOE_OK;
}

static void cpu_free(moe_device *device, void *memory, size_t bytes)
{
    (void)device;
    munmap(memory, bytes == 0 ? 1 : bytes);
}

/* First takes the part out of huge pages: when the part's neighbours are used, a huge page would
 * bring the part's memory back, too. */
static bool cpu_give_up(moe_device *device, void *memory, size_t bytes)
{
    (void)device;
    return madvise(memory, bytes, MADV_NOHUGEPAGE) == 0 &&
           madvise(memory, bytes, MADV_DONTNEED) == 0;
}

static void cpu_take_back(moe_device *device, void *memory, size_t bytes)
{
    (void)device;
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
}

static int cpu_move(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err)
{
    (void)device;
    (void)err;
    memcpy(dst, src, bytes);
    return MOE_OK;
}

static int cpu_sync(moe_device *device, moe_error *err)
{
    (void)device;
    (void)err;
    return MOE_OK;
}

/* Has nothing to send: the kernels read host arrays in place. */
static int cpu_begin_step(moe_device *device, const moe_step_inputs *inputs, moe_error *err)
{
    (void)device;
    (void)inputs;
    (void)err;
    return MOE_OK;
}

typedef struct scratch_sizes {
    size_t x_q8, h_q8, ff, attention_state_floats, attention_parts_floats, tiles, total;
} scratch_sizes;

static scratch_sizes measure_scratch(const moe_cpu_device *cpu, const moe_device_limits *limits)
{
    scratch_sizes sizes = {0};
    size_t head_bytes =
        moe_align64(moe_q8_rows_bytes(limits->head_linear.n_rows, limits->head_linear.n));
    sizes.x_q8 = moe_align64(moe_q8_rows_bytes(limits->linear.n_rows, limits->linear.n));
    sizes.x_q8 = sizes.x_q8 > head_bytes ? sizes.x_q8 : head_bytes;
    for (int i = 0; i < MOE_MAX_FF_LIMITS; i++) {
        const moe_rows_limit *ff = &limits->ff[i];
        size_t values = moe_align64((size_t)ff->n_rows * ff->n * sizeof(float));
        size_t bytes = moe_align64(moe_q8_rows_bytes(ff->n_rows, ff->n));
        sizes.ff = values > sizes.ff ? values : sizes.ff;
        sizes.h_q8 = bytes > sizes.h_q8 ? bytes : sizes.h_q8;
    }
    size_t queries = (size_t)limits->linear.n_rows * limits->max_head_group;
    queries = queries < MOE_CPU_ATTENTION_TILE ? queries : MOE_CPU_ATTENTION_TILE;
    sizes.attention_state_floats = moe_align64(2 * queries * limits->max_v_dim);
    const size_t n_workers = moe_team_size(cpu->team);
    if (n_workers > 1) {
        sizes.attention_parts_floats =
            moe_align64(n_workers * moe_cpu_attention_parts((uint32_t)queries, limits->max_v_dim));
    }
    sizes.tiles = cpu->matmul.tile_products != NULL ? MOE_TILE_SCRATCH_BYTES * n_workers : 0;
    sizes.total = sizes.x_q8 + sizes.h_q8 + 2 * sizes.ff +
                  sizes.attention_state_floats * sizeof(float) * n_workers +
                  sizes.attention_parts_floats * sizeof(float) + sizes.tiles;
    return sizes;
}

static uint64_t cpu_scratch_need(const moe_device *device, const moe_device_limits *limits)
{
    return measure_scratch((const moe_cpu_device *)device, limits).total;
}

static int cpu_reserve(moe_device *device, const moe_device_limits *limits, moe_error *err)
{
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    scratch_sizes sizes = measure_scratch(cpu, limits);
    cpu->scratch = moe_calloc_aligned(sizes.total, 1);
    if (cpu->scratch == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY,
                        "no memory for %zu bytes of scratch; a smaller prefill chunk needs less",
                        sizes.total);
    }
    uint8_t *p = cpu->scratch;
    cpu->x_q8_memory = p;
    cpu->h_q8_memory = p += sizes.x_q8;
    cpu->ff_gate = (float *)(p += sizes.h_q8);
    cpu->ff_up = (float *)(p += sizes.ff);
    cpu->tile_scratch = sizes.tiles > 0 ? p + sizes.ff : NULL;
    cpu->attention_state = (float *)(p + sizes.ff + sizes.tiles);
    cpu->attention_state_size = sizes.attention_state_floats;
    cpu->attention_parts =
        cpu->attention_state + sizes.attention_state_floats * moe_team_size(cpu->team);
    cpu->attention_parts_size = sizes.attention_parts_floats;
    return MOE_OK;
}

static const moe_device_ops cpu_ops = {
    .close = cpu_close,
    .reserve = cpu_reserve,
    .scratch_need = cpu_scratch_need,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .give_up = cpu_give_up,
    .take_back = cpu_take_back,
    .upload = cpu_move,
    .download = cpu_move,
    .download_later = cpu_move,
    .copy = cpu_move,
    .copy_rows = moe_cpu_copy_rows,
    .sync = cpu_sync,
    .begin_step = cpu_begin_step,
    .embed = moe_cpu_embed,
    .gather = moe_cpu_gather,
    .scatter = moe_cpu_scatter,
    .rms_norm = moe_cpu_rms_norm,
    .linear = moe_cpu_linear,
    .head_linear = moe_cpu_head_linear,
    .clamp = moe_cpu_clamp,
    .scale = moe_cpu_scale,
    .add = moe_cpu_add,
    .rope = moe_cpu_rope,
    .kv_store = moe_cpu_kv_store,
    .kv_move = moe_cpu_kv_move,
    .attention = moe_cpu_attention,
    .route = moe_cpu_route,
    .experts = moe_cpu_experts,
    .combine = moe_cpu_combine,
    .sigmoid_scale = moe_cpu_sigmoid_scale,
    .gate = moe_cpu_gate,
    .layer_norm = moe_cpu_layer_norm,
    .soft_cap = moe_cpu_soft_cap,
    .delta_rule = moe_cpu_delta_rule,
    .short_conv = moe_cpu_short_conv,
    .state_space = moe_cpu_state_space,
    .selective_scan = moe_cpu_selective_scan,
    .channel_rule = moe_cpu_channel_rule,
    .greatest = moe_cpu_greatest,
    .pool_keys = moe_cpu_pool_keys,
    .score_keys = moe_cpu_score_keys,
    .stream_read = moe_cpu_stream_read,
    .stream_write = moe_cpu_stream_write,
    .stream_match = moe_cpu_stream_match,
};

/* The forms that the CPU carries out with any instruction set. */
#define F(form) MOE_FORM_BIT(MOE_FORM_##form)
static const uint64_t forms =
    F(EMBED) | F(GATHER) | F(RMS_NORM) | F(MEAN_NORM) | F(LINEAR) | F(HEAD_LINEAR) | F(ROPE) |
    F(WINDOW_ROPE) | F(CLAMP) | F(SCALE) | F(SOFT_CAP) | F(ADD) | F(COPY) | F(STREAMS) | F(GATE) |
    F(STREAM_GATES) | F(STREAM_RECALL) | F(NGRAMS) | F(GATE_PLAIN) | F(GATE_SOFTPLUS) |
    F(GATE_ROW) | F(KV_STORE) | F(CHOOSE) | F(CHOOSE_POOLS) | F(ATTEND) | F(ATTEND_CAPPED) |
    F(ATTEND_WINDOW) | F(ATTEND_CHUNK) | F(ATTEND_SINKS) | F(ATTEND_SCALED) | F(SHORT_CONV) |
    F(DELTA_RULE) | F(STATE_SPACE) | F(CHANNEL_RULE) | F(SELECTIVE_SCAN) | F(ROUTE) |
    F(ROUTE_SPARSE_MIXER) | F(ROPE_BACK) | F(ATTEND_BESIDE) | F(ROUTE_SQRT_SOFTPLUS) |
    F(ROUTE_GIVEN) | F(ROUTE_SCALES) | F(EXPERTS) | F(EXPERTS_CLAMPED) | F(EXPERTS_LIMITED) |
    F(EXPERTS_SILU_CLAMPED) | F(EXPERTS_GELU) | F(EXPERTS_RELU) | F(EXPERTS_SITU) |
    F(EXPERTS_ONE_MATRIX) | F(EXPERTS_BIASES) | F(EXPERTS_X_SCALES) | F(COMBINE) | F(APART);
#undef F

int moe_cpu_device_open(moe_device **out, const moe_cpu_device_options *options, moe_error *err)
{
    *out = NULL;
    moe_cpu_device *cpu = moe_calloc(1, sizeof *cpu);
    if (cpu == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the CPU device");
    }
    cpu->base =
        (moe_device){.ops = &cpu_ops,
                     .name = "cpu",
                     .features = MOE_DEVICE_READABLE | MOE_DEVICE_SMALL_KV | MOE_DEVICE_EVERY_TYPE |
                                 MOE_DEVICE_SCALED_WEIGHTS | MOE_DEVICE_KV_GROUPS,
                     .forms = forms};
    cpu->team = options->team;
    if (options->blas_prefill) {
        int status = moe_blas_load(&cpu->blas, err);
        if (status != MOE_OK) {
            free(cpu);
            return status;
        }
    }
    moe_matmul_kernels_init(&cpu->matmul, options->cpu_features);
    moe_vector_kernels_init(&cpu->vector, options->cpu_features);
    *out = &cpu->base;
    return MOE_OK;
}
