/* SPDX-License-Identifier: MIT */
/* Routing traces: which experts each token chose in each layer. A trace is recorded by `run
 * --trace` or generated; it can be replayed against cache policies, and analysed. Nothing here
 * needs a model. Apart from reading and writing files, nothing depends on the machine: the same
 * trace and options give the same numbers everywhere.
 *
 * A trace never changes once it is made. Errors, ownership and sizes of structs are as in moe.h.
 *
 * Threads (the groups are explained in moe.h; the objects are traces and analyses):
 *  free:    moe_trace_open_options_init_sized, moe_trace_open_options_init, moe_trace_open,
 *           moe_trace_generator_init_sized, moe_trace_generator_init, moe_trace_generate,
 *           moe_policy_name, moe_policy_needs, moe_simulation_init_sized, moe_simulation_init
 *  reading: moe_trace_save, moe_trace_get_info, moe_simulate, moe_analyze, moe_analysis_amdahl
 *  last:    moe_trace_close, moe_analysis_free */
#ifndef MOE_TRACE_H
#define MOE_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/policy.h>
#include <moe/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_trace moe_trace;

/* ---- Files -------------------------------------------------------------------------------- */

typedef enum moe_trace_format {
    MOE_TRACE_AUTO = 0, /* by the name: *.oracleGeneral* is libCacheSim's format, all else JSON
                         * lines */
    MOE_TRACE_JSONL =
        1, /* one row a line: {"tok": 7, "layers": [[3, 9], [0, 4]]}; cache/README.md */
    MOE_TRACE_ORACLE_GENERAL = 2 /* of libCacheSim: 24-byte records, one a (pass, layer, expert) */
} moe_trace_format;

typedef struct moe_trace_open_options {
    size_t struct_size; /* set by moe_trace_open_options_init() */
    const char *path;   /* required */
    moe_trace_format format;
    uint32_t n_expert; /* a layer's experts; 0: as the file says, else the largest id + 1.
                          oracleGeneral records do not say: required */
    uint32_t n_layer;  /* required for oracleGeneral, where an id is layer * n_expert + expert;
                          otherwise 0, or what the file must have */
    uint32_t reserved; /* must be 0 */
} moe_trace_open_options;

MOE_API void moe_trace_open_options_init_sized(moe_trace_open_options *options, size_t struct_size);
static inline void moe_trace_open_options_init(moe_trace_open_options *options)
{
    moe_trace_open_options_init_sized(options, sizeof *options);
}
/* MOE_ERR_FORMAT names the line (or record) and the fault. Memory stays within a small multiple of
 * the file. */
MOE_API int moe_trace_open(moe_trace **out, const moe_trace_open_options *options, moe_error *err);
MOE_API void moe_trace_close(moe_trace **trace);
/* Writes the trace to a new file. expert_bytes is the size in oracleGeneral records (0: 1). */
MOE_API int moe_trace_save(const moe_trace *trace, const char *path, moe_trace_format format,
                           uint32_t expert_bytes, moe_error *err);

typedef struct moe_trace_info {
    size_t struct_size;     /* set by the program: sizeof(moe_trace_info) */
    uint32_t n_layer;       /* also those without experts */
    uint32_t n_expert;      /* per layer */
    uint32_t n_expert_used; /* the most that a row chose in a layer */
    uint32_t n_sequences;
    uint64_t n_rows;      /* tokens */
    uint64_t n_passes;    /* a pass holds one row or more */
    uint64_t n_choices;   /* (row, layer, expert) */
    uint64_t n_accesses;  /* (pass, layer, distinct expert): what a cache sees */
    bool has_gates;       /* router probabilities are recorded */
    bool has_forecasts;   /* what a draft expected of coming passes is recorded */
    uint8_t reserved[30]; /* 0 */
} moe_trace_info;

MOE_API int moe_trace_get_info(const moe_trace *trace, moe_trace_info *info);

/* ---- Synthetic traces --------------------------------------------------------------------- */

/* A generated trace. In each layer and sequence, expert e of a row has the logit
 *     popular * P_e + slow * S_e + fast * F_e + noise * N_e
 * with P_e fixed, S_e and F_e first-order autoregressions from row to row (coefficients slow_rho
 * and fast_rho; S_e begins anew at each prompt) and N_e fresh, all standard normal. The row chooses
 * the n_expert_used largest; gates are the softmax of gate_scale * logit. */
typedef struct moe_trace_generator {
    size_t struct_size; /* set by moe_trace_generator_init() */
    uint32_t n_layer;
    uint32_t n_expert;
    uint32_t n_expert_used;
    double popular, slow, slow_rho, fast, fast_rho, noise;
    double gate_scale;
    uint32_t n_sequences; /* decoded together, a row of each a pass; default 1 */
    uint32_t n_prompts;   /* per sequence; default 1 */
    uint32_t prompt_rows; /* rows of the pass that begins a prompt; 0 or 1: none such; default 0 */
    uint32_t decode_passes; /* passes after it, per prompt; default 512 */
    uint64_t seed;
} moe_trace_generator;

/* preset: "olmoe", "qwen3" or "512": the geometry and the coefficients fitted to that model's
 * routing; "kimi" or "flame": the geometry of Kimi-K2 or FLAME-MoE-1.7B with the coefficients of
 * "512" or "olmoe". MOE_ERR_ARGUMENT for another name. */
MOE_API int moe_trace_generator_init_sized(moe_trace_generator *generator, size_t struct_size,
                                           const char *preset, moe_error *err);
static inline int moe_trace_generator_init(moe_trace_generator *generator, const char *preset,
                                           moe_error *err)
{
    return moe_trace_generator_init_sized(generator, sizeof *generator, preset, err);
}
MOE_API int moe_trace_generate(moe_trace **out, const moe_trace_generator *generator,
                               moe_error *err);

/* ---- Simulation --------------------------------------------------------------------------- */

/* The n-th built-in cache policy's name, NULL past the last. */
MOE_API const char *moe_policy_name(uint32_t index);
/* What the policy needs: MOE_POLICY_NEEDS_..., or-ed; 0 past the last. belady needs the future: it
 * is the bound that simulations compare with. */
MOE_API uint32_t moe_policy_needs(uint32_t index);

enum { MOE_LOOKAHEAD_NONE = -1, MOE_LOOKAHEAD_RECORDED = -2 };

/* How host slots are used below a device's slots. */
typedef enum moe_tier_use {
    MOE_TIERS_ENGINE = 0, /* as the engine does: the host keeps what it reads, and saves what leaves
                           * the device while that pays; experts that both hold leave it first */
    MOE_TIERS_INCLUSIVE = 1, /* the host holds all that the device holds */
    MOE_TIERS_EXCLUSIVE = 2, /* an expert is in one of them; what leaves the device goes to the host
                              */
} moe_tier_use;

/* One cache, one pass over a trace. The cache, its policies and the order of accesses are the
 * engine's own code, so that the hits and misses of a recorded run are reproduced exactly. */
typedef struct moe_simulation {
    size_t struct_size; /* set by moe_simulation_init() */
    const char *policy; /* a built-in name or a plug-in's path; default "lfru" */
    double cache_share; /* (0, 1] of all experts of layers that have any; used when n_slots is 0 */
    uint32_t n_slots;   /* default 0 */
    bool per_layer;     /* the slots split evenly between layers; default: one pool */
    /* Simulates accesses one by one, as other simulators do: an access may evict another expert of
     * its layer. Belady's bound is then MIN, and next_use is the number of the next access. Not
     * together with prefetch or lookahead (MOE_ERR_ARGUMENT). Default: as in the engine, all
     * experts of a layer at once, none of which evicts another. */
    bool is_sequential;
    uint64_t seed;
    double calibration; /* [0, 1): this share of the passes only measures hotness for the policies,
                         * and is not simulated. Default 0: hotness is not known */
    uint64_t warm_up;   /* passes simulated but not counted; default 0 */

    /* The prefetch model: during a layer, as many experts of the next one are requested as it will
     * use. Each expert that it will use is among them with probability prefetch_recall; the rest
     * are wrong. Negative: no prefetch; default -1. */
    double prefetch_recall;

    /* The disk model. n reads take n * expert_bytes / bytes_per_s + ceil(n / depth) * latency_s. A
     * layer computes for compute_s: on resident experts while it waits for the others. */
    uint64_t expert_bytes; /* default 1 MiB */
    double bytes_per_s;    /* default 3e9 */
    double latency_s;      /* default 100e-6 */
    uint32_t depth;        /* default 16 */
    double compute_s;      /* default 0 */

    /* The lookahead model: before each pass a draft names the experts of that pass and of
     * `lookahead` more, and the policy gets the probability that each is used. The policy must
     * support lookahead (MOE_ERR_UNSUPPORTED). MOE_LOOKAHEAD_RECORDED: the policy gets the
     * forecasts that the trace recorded, as in the recorded run (MOE_ERR_UNSUPPORTED when it
     * recorded none). */
    int32_t lookahead;       /* at most 31; 0: only the current pass; default MOE_LOOKAHEAD_NONE */
    double lookahead_stands; /* probability that a further token is right if those before are; 0.69
                              */
    double lookahead_recall; /* share of a right token's experts that are named; 0.91 */
    double lookahead_recall_wrong; /* of a wrong token's; 0.56 */
    /* A policy of the program, in place of `policy`; default NULL: none. */
    const moe_policy *own_policy;

    /* A second tier: slots in host memory, with the same policy, between the n_slots of a device
     * and the disk. A miss moves an expert from host memory over the link, if it is there; if not,
     * it is read from the disk first. Moves follow each other: each takes link_latency_s +
     * expert_bytes / link_bytes_per_s. Copies back to the host are not timed. MOE_ERR_ARGUMENT for
     * policies that need the future. */
    uint32_t host_slots;     /* default 0: no second tier */
    moe_tier_use tiers;      /* default MOE_TIERS_ENGINE */
    double link_bytes_per_s; /* default 25e9 */
    double link_latency_s;   /* default 10e-6 */
} moe_simulation;

typedef struct moe_simulation_result {
    size_t struct_size; /* set by the program: sizeof(moe_simulation_result) */
    uint32_t n_slots;
    uint64_t n_tokens; /* rows counted */
    uint64_t n_passes;
    uint64_t hits; /* with hits on prefetched experts */
    uint64_t misses;
    uint64_t evictions;
    uint64_t prefetches;
    uint64_t prefetches_used;
    uint64_t prefetches_wasted;
    uint64_t extra_waves;   /* times that a layer did not fit in its slots at once */
    uint64_t policy_faults; /* nominations of a plug-in that broke the contract */
    double hit_rate;        /* hits / (hits + misses); 0 when nothing was accessed */
    double bytes_per_token; /* by demand and prefetch */
    double stall_s;         /* waiting for the disk, in all */
    double total_s;         /* stall and computation */
    /* Of a second tier; 0 without one. */
    uint64_t host_hits;          /* of misses: found in host memory */
    uint64_t host_misses;        /* ... and read from the disk */
    uint64_t demoted;            /* experts copied back to host memory when they left the device */
    uint64_t demoted_hits;       /* of host_hits: such experts */
    double disk_bytes_per_token; /* read from the disk, by demand and prefetch; with one tier
                                  * bytes_per_token */
} moe_simulation_result;

MOE_API void moe_simulation_init_sized(moe_simulation *simulation, size_t struct_size);
static inline void moe_simulation_init(moe_simulation *simulation)
{
    moe_simulation_init_sized(simulation, sizeof *simulation);
}
/* Runs a simulation. The first one makes a list of the trace's accesses, which the trace keeps: 36
 * bytes for each access. */
MOE_API int moe_simulate(const moe_trace *trace, const moe_simulation *simulation,
                         moe_simulation_result *result, moe_error *err);

/* ---- Analysis ----------------------------------------------------------------------------- */

enum { MOE_ANALYSIS_DISTANCES = 8, MOE_ANALYSIS_TOKENS = 16 };

/* One layer, or the mean over the layers that have experts. "Uniform": all experts equally likely,
 * independent of the past; "independent": each with its own frequency. */
typedef struct moe_layer_analysis {
    /* |E(t) and E(t + j)| / k at distance j = index + 1, within a sequence; -1: too short. */
    double overlap[MOE_ANALYSIS_DISTANCES];
    double overlap_uniform;
    double overlap_independent;
    /* Distinct experts of index + 1 tokens in a row; -1: too short. */
    double unique[MOE_ANALYSIS_TOKENS];
    double unique_independent[MOE_ANALYSIS_TOKENS];
    double unique_uniform[MOE_ANALYSIS_TOKENS];
    double skewness; /* share of the choices that fall on the quarter of experts chosen most */
    /* Largest count of a pair chosen together / its expectation when all pairs are alike; 0 with
     * one expert a token. */
    double concentration;
} moe_layer_analysis;

typedef struct moe_analysis {
    size_t struct_size; /* set by the library: sizeof(moe_analysis), as it knows it */
    moe_trace_info info;
    moe_layer_analysis mean;
    moe_layer_analysis *layers; /* [n_layer]; zeros where a layer has no experts */
    double *coverage;           /* [n_expert] share of the choices on the n + 1 chosen most: mean */
    uint32_t *counts;           /* [n_layer][n_expert] rows that chose it */
    uint32_t pair_layer;        /* pairs are of this layer */
    uint32_t *pairs;            /* [n_expert][n_expert] rows that chose both; diagonal: counts */
} moe_analysis;

/* pair_layer: the layer to count pairs of. Release with moe_analysis_free(). */
MOE_API int moe_analyze(moe_analysis **out, const moe_trace *trace, uint32_t pair_layer,
                        moe_error *err);
MOE_API void moe_analysis_free(moe_analysis **analysis);
/* T(n_tokens) / T(1) of a pass by Amdahl's law, when loading routed weights takes the fraction f of
 * a one-token pass: f * unique(n_tokens) / unique(1) + 1 - f. n_tokens in 1..MOE_ANALYSIS_TOKENS.
 */
MOE_API double moe_analysis_amdahl(const moe_analysis *analysis, double f, uint32_t n_tokens);

#ifdef __cplusplus
}
#endif
#endif
