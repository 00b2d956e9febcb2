/* SPDX-License-Identifier: MIT */
/* The counters of an engine, which moe_engine_get_stats() of moe.h fills in; moe.h includes this
 * header. */
#ifndef MOE_STATISTICS_H
#define MOE_STATISTICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Speculation, since the engine was opened. Positions are places in a draft, from 0; the last
 * element of an array counts all deeper ones. */
#define MOE_DRAFT_POSITIONS  16
#define MOE_DRAFT_KINDS      3   /* n-gram, self, model; a drafting layer has fields of its own */
#define MOE_FORESIGHT_LAYERS 128 /* layers of the model; the last counts all deeper ones */

typedef struct moe_speculation_stats {
    uint64_t drafted;               /* drafted tokens that were verified */
    uint64_t accepted;              /* ... and accepted */
    uint64_t passes;                /* verification passes */
    uint64_t emitted;               /* tokens that those passes wrote, all sequences */
    uint64_t sequences;             /* sequences with a draft, summed over those passes */
    uint64_t draft_passes;          /* model passes of drafts */
    uint64_t draft_passes_recorded; /* ... that a GPU ran without the host between layers */
    uint64_t draft_recordings;      /* passes recorded for them */
    uint64_t draft_moves;           /* experts that a self draft itself moved: always 0 */
    uint64_t drafted_by[MOE_DRAFT_KINDS], accepted_by[MOE_DRAFT_KINDS];
    uint64_t drafted_at[MOE_DRAFT_POSITIONS], accepted_at[MOE_DRAFT_POSITIONS];
    uint64_t draft_ns, verify_ns; /* time of steps with a draft */
    uint64_t cut_by_budget;       /* drafted tokens not verified because of verify_bytes */
    /* Foresight: distinct experts that verification requested; how many of these had been foreseen;
     * all experts that were foreseen. */
    uint64_t foresight_asked, foresight_right, foresight_all;
    /* Recall by layer: experts requested, and how many of these had been foreseen. */
    uint64_t foresight_asked_of[MOE_FORESIGHT_LAYERS], foresight_right_of[MOE_FORESIGHT_LAYERS];
    /* Recall by position in the draft: choices of verification's rows, and how many of these some
     * row of the draft had foreseen. Position 0 is the token that the draft began from. The draft's
     * passes evaluate all positions except the last. */
    uint64_t foresight_picks_at[MOE_DRAFT_POSITIONS], foresight_right_at[MOE_DRAFT_POSITIONS];
    /* Expert bytes that verifications after a self draft needed and that were not in memory when
     * the draft began. Counted by their state when verification requested them: loaded, being read,
     * requested but not begun; loaded by a prediction (prefetch); not requested. */
    uint64_t verify_bytes_ready, verify_bytes_loading, verify_bytes_queued;
    uint64_t verify_bytes_predicted, verify_bytes_missed;
    uint64_t bytes_foresight;      /* expert bytes moved because of foresight */
    uint64_t bytes_disk_foresight; /* ... read from the disk */
    /* If costs are bytes (moe_lab_options.cost_by_bytes), over all passes that wrote and their
     * drafts: bytes from memory, plus 16 times the bytes of experts missing from a modelled cache;
     * and an estimate of the cost of plain decoding, which is exact for one sequence. Else 0. */
    double modelled_cost, modelled_plain_cost;
    double utility;        /* of the last iterations (Cascade, section 3); 1: unknown */
    double utility_mean;   /* harmonic mean over runs of 16 iterations: the time of plain decoding
                            * divided by it is the time taken */
    double utility_worst;  /* the lowest of those runs */
    uint32_t draft_length; /* K now */
    uint32_t reserved32;   /* 0 */
    /* Lookahead: draft passes, and their time; drafted tokens whose place in the text was reached,
     * and how many of these were right; experts named for the current token, and how many of these
     * it used. */
    uint64_t lookahead_passes, lookahead_ns;
    uint64_t lookahead_tokens, lookahead_stood;
    uint64_t lookahead_named, lookahead_used;
    uint64_t lookahead_hidden_ns; /* part of lookahead_ns: while passes waited for experts anyway */
    uint64_t drafted_by_head, accepted_by_head; /* as drafted_by, of a drafting layer */
    uint64_t reserved[7];                       /* 0 */
} moe_speculation_stats;

/* Lossy modes. */
typedef struct moe_lossy_stats {
    bool on;                                /* requested, and not turned off by the quality limit */
    uint64_t picks;                         /* choices of routers seen: (row, rank) */
    uint64_t replaced;                      /* ... that another expert served */
    uint64_t dropped;                       /* ... that none served */
    uint64_t experts_natural, experts_used; /* sums of distinct experts in each layer (budget) */
    double mass_kept; /* of the natural picks' router probability, the share kept (budget) */
    /* With moe_lab_options.budget_error or budget_oracle: mean over passes and layers of |output -
     * exact|^2 / |exact|^2 of the routed experts, with the inputs that the lossy layers before
     * gave; otherwise 0. */
    double output_error;
    uint64_t compared;      /* positions compared with the exact pass */
    uint64_t agreed;        /* ... with the same most likely token */
    double mean_kl, max_kl; /* nats; NaN while lossy modes act and compared is 0: not measured */
    /* Low-bit copies. */
    uint64_t low_bit_picks;   /* of picks: computed from the expert's low-bit copy */
    uint64_t low_bit_experts; /* (pass, layer, distinct expert) so computed */
    uint64_t low_bit_hits;    /* ... of which the copy was in memory; */
    uint64_t low_bit_misses;  /* ... had to be read */
    uint64_t low_bit_bytes;   /* expert bytes so read; part of bytes_demand and the like */
    uint64_t low_bit_slots;   /* copies that fit their memory */
    double low_bit_mass;      /* of the picks' router weight, the share of low_bit_picks */
    uint64_t reserved[13];    /* 0 */
} moe_lossy_stats;

/* Counters since the engine was opened. */
typedef struct moe_engine_stats {
    size_t struct_size; /* set by the caller to sizeof(moe_engine_stats) */
    uint64_t passes;
    uint64_t prompt_tokens; /* evaluated rows of fed tokens */
    uint64_t decode_tokens; /* evaluated rows of sampled tokens */
    uint64_t expert_hits;   /* (pass, layer, distinct expert) found in the device's memory */
    uint64_t expert_misses; /* ... that were not */
    uint64_t expert_evictions;
    uint64_t prefetches;           /* experts requested ahead of need */
    uint64_t prefetches_used;      /* ... that were then needed while still in memory */
    uint64_t prefetches_wasted;    /* ... that were evicted without having been used */
    uint64_t prefetches_cancelled; /* ... that were cancelled before the disk had them */
    uint64_t predicted_experts;    /* predictions of next-layer experts, and how many were right */
    uint64_t predicted_right;
    uint64_t bytes_demand;       /* expert bytes loaded on demand */
    uint64_t bytes_prefetch;     /* expert bytes loaded ahead of need */
    uint64_t bytes_read_disk;    /* read from the disk for experts: aligned supersets, retries */
    uint64_t expert_wait_ns;     /* time that passes spent waiting for experts */
    uint64_t expert_slots;       /* experts that fit the cache */
    uint64_t bytes_moved_link;   /* expert bytes, host to device; 0 on the CPU */
    uint64_t resident_bytes_now; /* weights, experts in memory, KV and scratch */
    /* If the device has its own memory, otherwise 0. */
    uint64_t host_hits;     /* misses that were in host memory: moved, or computed there */
    uint64_t host_misses;   /* ... that had to be read from the disk */
    uint64_t host_computed; /* of host_hits */
    uint64_t host_slots;
    /* Expert bytes read from the disk, by cause (on the CPU: bytes_demand, and so on). */
    uint64_t bytes_disk_demand;
    uint64_t bytes_disk_prefetch;
    /* Offload mode overlap: time of the runs that record each pass's routing for the oracle. No
     * counter above includes them; subtract this from times measured outside. */
    uint64_t oracle_ns;
    moe_speculation_stats speculation;
    moe_lossy_stats lossy;
    /* All 0 unless disk or link have faults. */
    uint64_t disk_retries;    /* repeated reads: whole, for the rest, after a wrong checksum */
    uint64_t expert_failures; /* experts that could not be read or moved; steps that need one fail
                               */
    uint64_t expert_timeouts; /* waits for experts that ended at the I/O time-out */
    /* Passes that a GPU ran without the host between layers; and such passes that had to run again
     * because an expert was missing. After each miss the engine tries less often. */
    uint64_t passes_recorded;
    uint64_t passes_missed;
    /* The current memory of sessions: their KV caches, logits, samplers, tokens. */
    uint64_t session_bytes;
    /* Slots of the device and of the host whose memory sessions currently have, or that are given
     * back to the machine; expert_slots and host_slots do not count them. */
    uint64_t expert_slots_lent;
    uint64_t host_slots_lent;
    /* Victims that the cache policy nominated and that could not be evicted (a plug-in that breaks
     * its contract); the first evictable expert was evicted in their place. */
    uint64_t policy_faults;
    /* If the device has its own memory, otherwise 0. */
    uint64_t experts_demoted; /* evicted from the device, and copied back to a host slot */
    uint64_t demotions_lost;  /* begun, and then given up: a copy failed or was not needed */
    uint64_t demoted_hits;    /* of host_hits: experts that had come back from the device */
    uint64_t bytes_demoted;   /* expert bytes, device to host; bytes_moved_link has none of them */
    /* Passes that a GPU ran without the host until they met an expert that was in no memory: the
     * host computed that layer, or a few, and the GPU went on alone behind it. passes_missed does
     * not count them. */
    uint64_t passes_resumed;
    uint64_t read_in_place;  /* of host_hits: read by kernels of the GPU, and kept there or not */
    uint64_t bytes_in_place; /* expert bytes so read; bytes_moved_link has none of them */
    /* The time of opening until the plan was made (header, vocabulary, sidecar, device); then until
     * memory was allocated; then until the resident weights were read and checked.
     * open_weights_bytes: the bytes of these weights. */
    uint64_t open_plan_ns;
    uint64_t open_memory_ns;
    uint64_t open_weights_ns;
    uint64_t open_weights_bytes;
    /* Rows of a table that stays on disk: rows that passes took; rows among these that a pass
     * waited for, and the time; rows read, some ahead of need, and bytes read from the disk for
     * them; rows that could not be read. 0 for models without such a table. */
    uint64_t rows_taken, rows_waited, rows_wait_ns;
    uint64_t rows_read, rows_bytes_disk, rows_failed;
    /* Workers (moe/workers.h): their number, and how many are ready now; what they computed: jobs,
     * (layer, expert) pairs, and rows of these; bytes of messages; the time that passes waited for
     * workers; pairs that a worker did not deliver, so that this engine computed them; how often a
     * worker was left out. In a worker's own engine: its jobs and rows. */
    uint32_t workers, workers_ready;
    uint64_t worker_jobs, worker_experts, worker_rows;
    uint64_t worker_bytes_sent, worker_bytes_received;
    uint64_t worker_wait_ns;
    uint64_t worker_experts_lost, workers_lost;
} moe_engine_stats;

#endif
