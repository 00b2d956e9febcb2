/* SPDX-License-Identifier: MIT */
/* Features for experiments: baselines, recorded and replayed routing, ablations of speculation,
 * measurements of storage and memory, a cold page cache.
 *
 * This header may change in every version. Its functions have a separate symbol version (MOE_LAB_
 * and the library's version), so a program that calls one of them only starts with the library
 * version that it was linked with. Programs that use moe.h alone are not affected. Errors,
 * ownership and sizes of structs are as in moe.h.
 *
 * Threads (the groups are explained in moe.h):
 *  free:    moe_lab_options_init_sized, moe_lab_options_init, moe_storage_test_init_sized,
 *           moe_storage_test_init, moe_storage_measure, moe_file_cache_drop
 *  in turn: moe_engine_measure_bandwidth, moe_engine_get_tiers */
#ifndef MOE_LAB_H
#define MOE_LAB_H

#include <moe/status.h>
#include <moe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Options of an engine ------------------------------------------------------------------ */

/* A simulated device: options.device = "sim:memory=2G,link=16GB/s,latency=10us". Its memory is in
 * this machine's RAM, and moving experts there takes the time that the link and its latency say. */

/* How experts are loaded: the engine's way, and the baselines of the papers. */
typedef enum moe_offload_mode {
    MOE_OFFLOAD_AUTO = 0,      /* cache, prefetch, host computing */
    MOE_OFFLOAD_ON_DEMAND = 1, /* fetched when used, and not kept on the device */
    /* As on demand, but an oracle names the next layer's experts, which move while this layer is
     * computed. For the oracle every pass runs twice; moe_engine_stats.oracle_ns is the time of the
     * first runs. */
    MOE_OFFLOAD_OVERLAP = 2,
    /* Keeps the tenth of each layer's experts that calibration found hottest, at least one, and no
     * others. */
    MOE_OFFLOAD_CACHING = 3
} moe_offload_mode;

/* The instruction sets of the CPU that the kernels may use. The text does not depend on it. */
typedef enum moe_kernels {
    MOE_KERNELS_NATIVE = 0,    /* all that the CPU has */
    MOE_KERNELS_REFERENCE = 1, /* portable C */
    MOE_KERNELS_AVX2 = 2,
    MOE_KERNELS_AVX512 = 3
} moe_kernels;

/* How long drafts are. */
typedef enum moe_length_kind {
    MOE_LENGTH_SURVIVAL = 0, /* priced by measured costs */
    MOE_LENGTH_CASCADE = 1,  /* the Cascade paper's controller */
    MOE_LENGTH_STATIC = 2    /* always draft_max */
} moe_length_kind;

/* Which experts the self draft keeps. */
typedef enum moe_draft_pin {
    MOE_DRAFT_PIN_HOT_TEMPORAL = 0, /* the most used of the last verification pass */
    MOE_DRAFT_PIN_HOT_GLOBAL = 1,   /* the hottest of the calibration */
    MOE_DRAFT_PIN_RANDOM = 2
} moe_draft_pin;

/* Which expert replaces one that the self draft does not have. */
typedef enum moe_stand_in {
    MOE_STAND_IN_TOPK = 0,     /* the router's next best in memory: better than all affinities where
                                  that was measured (bench/results) */
    MOE_STAND_IN_OUTPUT = 1,   /* the nearest by SpecMoE's affinity of outputs (calibration) */
    MOE_STAND_IN_WEIGHT = 2,   /* the nearest by affinity of weights */
    MOE_STAND_IN_COACT = 3,    /* the nearest by co-activation */
    MOE_STAND_IN_ROUTER = 4,   /* the nearest by rows of the router */
    MOE_STAND_IN_SHUFFLED = 5, /* the nearest of a random table, for comparison */
    MOE_STAND_IN_RANDOM = 6,   /* any expert in memory */
    MOE_STAND_IN_NONE = 7      /* nothing replaces it */
} moe_stand_in;

/* Attached to an engine's options (options.lab); opening copies what it needs. The default of every
 * field is 0. */
typedef struct moe_lab_options {
    size_t struct_size; /* set by moe_lab_options_init() */
    moe_offload_mode offload;
    moe_kernels kernels;

    /* Routing of every evaluated row, written to this file (which moe_trace_open() reads); NULL:
     * none. The first line holds the geometry, each further line a JSON object:
     *     {"tok": 7, "pass": 3, "seq": 0, "layers": [[3, 9], [], ...], "gates": [[0.6, 0.4], ...]}
     * tok: the position; pass: rows of one pass share it; seq: number of the session; layers: ids
     * of the experts chosen, ascending, an empty list for a layer without experts; gates (with
     * trace_gates): the weights that they are mixed with. */
    const char *trace_path;
    /* This recorded routing (a file of trace_path) replaces the routers' choices; the text is then
     * meaningless. NULL: none */
    const char *route_trace;
    bool trace_gates;
    bool per_layer_cache; /* an equal share of the slots for every layer, instead of one pool */
    /* For the expert budget of lossy modes. With either of these, each layer is also computed
     * exactly, which is slower than no budget. */
    bool budget_oracle; /* ranks experts by their true contributions */
    bool budget_error;  /* fills moe_lossy_stats.output_error */
    /* Models costs by bytes and rows instead of measuring time, so that drafts are equally long in
     * every run and on every machine with the same expert cache. Prefetch, foresight and
     * overlapping lookahead, which depend on when reads arrive, are then off unless switched on.
     * With speculation off, costs are only counted, for comparison. */
    bool cost_by_bytes;

    /* Speculation. */
    bool no_back_off, no_early_exit, no_disable, no_climb; /* rules of Cascade that are left out */
    moe_length_kind length_control;
    /* Constants of Cascade, in iterations, at most 1000000; 0: the paper's. */
    uint32_t trial_iterations;   /* t: 4 */
    uint32_t test_trials;        /* 4 */
    uint32_t set_iterations;     /* S: 16 */
    uint32_t refresh_iterations; /* 100 */
    /* The self draft (SpecMoE): how many experts of a layer it uses and keeps in memory, at least
     * as many as a token uses; 0: all that are in memory. */
    uint32_t draft_experts;
    moe_draft_pin draft_pin;
    moe_stand_in affinity;
    moe_switch foresight; /* prefetch what the self draft's routers chose; auto: on */
    /* Cuts verification to the longest prefix of a draft whose foreseen missing experts have at
     * most this many bytes; 0: no limit. Lossless. */
    uint64_t verify_bytes;
    /* Lookahead's draft runs while a pass waits for experts (on), or before it (off). Auto: on, but
     * off with cost_by_bytes or trace_path, since a draft that overlaps makes cache hits depend on
     * when reads arrive; and off on a device with a link or a queue, which cannot do it. */
    moe_switch lookahead_overlap;
    /* Whether a GPU runs whole tokens without the host and reads experts in host memory over the
     * link. Otherwise a pass goes layer by layer, and such experts are moved or computed on the
     * host. Auto depends on options.host_compute: with off always; with on never; with auto while
     * reading a token's bytes takes less time than the round trips of its layers. The text does not
     * change. */
    moe_switch read_in_place;
    uint64_t row_slots; /* rows of a table on disk that are kept in memory; 0: 65,536, or more */
    /* Answers of workers come this much later, as over a network whose round trip takes so long. */
    uint64_t worker_delay_ns;
} moe_lab_options;

MOE_API void moe_lab_options_init_sized(moe_lab_options *options, size_t struct_size);
static inline void moe_lab_options_init(moe_lab_options *options)
{
    moe_lab_options_init_sized(options, sizeof *options);
}

/* ---- Storage and memory ------------------------------------------------------------------- */

/* Random ranges of one file, read as the engine reads experts. */
typedef struct moe_storage_test {
    size_t struct_size;       /* set by moe_storage_test_init() */
    const char *path;         /* required: any file; of a split model the part that is named */
    moe_io_kind io;           /* default MOE_IO_AUTO */
    uint32_t reserved;        /* must be 0 */
    bool buffered;            /* through the page cache instead of O_DIRECT */
    bool registered;          /* buffers registered with the kernel; the engine's are not */
    bool small_pages;         /* buffers of small pages; default: huge ones where there are any */
    uint32_t block_bytes;     /* the most bytes of a piece in which ranges are read; 0: 1 MiB */
    uint32_t depth;           /* pieces in flight, at most 4096; 0: 16. For "sync" always 1 */
    uint64_t range_min_bytes; /* shortest range; 0: 1 MiB, or less in a small file */
    uint64_t range_max_bytes; /* longest range, below the file's size; 0: 6 MiB */
    uint64_t total_bytes;     /* ends after ranges of so many bytes; 0: 1 GiB */
    double max_seconds;       /* also ends after so many seconds; 0: no limit */
    uint64_t seed;            /* equal seeds give equal ranges */
    /* [n_copies] Copies of the file on other drives, at most 7. Each piece is read from the drive
     * that will deliver it soonest, and `depth` pieces are in flight on each drive. */
    const char *const *copies;
    size_t n_copies;
} moe_storage_test;

typedef struct moe_storage_speed {
    size_t struct_size; /* set by the program: sizeof(moe_storage_speed) */
    double bytes_per_s;
    double cpu_s_per_gb; /* user and system time of the whole process, for 10^9 bytes */
    double seconds;      /* of reading; opening and touching buffers is not in it */
    uint64_t bytes_read; /* aligned supersets of the ranges */
    uint64_t n_ranges;   /* ranges read */
    uint64_t n_reads;    /* pieces read */
    double cached_share; /* of the file, in the page cache when reading began; -1: not known */
    bool direct;         /* read with O_DIRECT: the page cache played no part */
    uint8_t reserved[7]; /* 0 */
    char how[128];       /* "io_uring, O_DIRECT, 16 x 1 MiB" */
} moe_storage_speed;

MOE_API void moe_storage_test_init_sized(moe_storage_test *test, size_t struct_size);
static inline void moe_storage_test_init(moe_storage_test *test)
{
    moe_storage_test_init_sized(test, sizeof *test);
}
/* Drops the file from the page cache as far as the kernel allows, then reads. Allocates buffers of
 * about 2 * depth * block_bytes, or 2 * depth ranges if those are shorter, and runs in the calling
 * thread (and in the I/O engine's). MOE_ERR_ARGUMENT if the ranges do not fit the file, MOE_ERR_IO
 * if the device fails. */
MOE_API int moe_storage_measure(const moe_storage_test *test, moe_storage_speed *speed,
                                moe_error *err);

/* Asks the kernel to drop its cache of a model's files, all parts (posix_fadvise; needs no
 * privileges), so that the next program to open the model begins with a cold page cache. Pages that
 * are dirty or mapped stay. *cached_share (may be NULL): the share that is still cached; -1: not
 * known. */
MOE_API int moe_file_cache_drop(const char *model_path, double *cached_share, moe_error *err);

/* Where an expert is. */
typedef enum moe_tier {
    MOE_TIER_NONE = 0,   /* the layer has no experts */
    MOE_TIER_DISK = 1,   /* in the model's file alone */
    MOE_TIER_COMING = 2, /* on its way to the device */
    MOE_TIER_HOST = 3,   /* in host memory; only if the device has memory of its own */
    MOE_TIER_DEVICE = 4, /* ready for use; on the CPU: in memory */
    MOE_TIER_WORKER = 5  /* not in this machine's memory, but a worker that answers computes it */
} moe_tier;

/* Sets tiers [n_layer][n_expert] (moe_engine_info) to moe_tier values; n: the elements of the
 * array. Changes neither statistics nor the cache. */
MOE_API int moe_engine_get_tiers(const moe_engine *engine, uint8_t *tiers, size_t n,
                                 moe_error *err);

/* Measures the memory bandwidth that the engine's threads reach when they read a buffer of 512 MiB
 * (allocated for this; MOE_ERR_BUDGET if the plan leaves no room), the best of three. Divided by
 * active_bytes it bounds decoding of one sequence from memory. MOE_ERR_UNSUPPORTED on a GPU. */
MOE_API int moe_engine_measure_bandwidth(moe_engine *engine, double *bytes_per_s, moe_error *err);

#ifdef __cplusplus
}
#endif
#endif
