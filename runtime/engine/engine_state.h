/* SPDX-License-Identifier: MIT */
/* The structures of an engine and of a session, for the files of this folder only. Their
 * functions are in engine_parts.h and session_timeline.h. */
#ifndef MOE_ENGINE_STATE_H
#define MOE_ENGINE_STATE_H

#include <stdatomic.h>
#include <stdio.h>

#include <moe/calibrate.h>
#include <moe/chat.h>
#include <moe/embedding.h>
#include <moe/lab.h>
#include <moe/lossy_modes.h>
#include <moe/moe.h>
#include <moe/trace.h>

#include "offload/expert_store.h"
#include "offload/file_watch.h"
#include "offload/model_reader.h"
#include "runtime/sidecar/idle_checksums.h"
#include "runtime/sidecar/learning.h"
#include "runtime/sidecar/model_sidecar.h"
#include "runtime/lab/budget_exact.h"
#include "runtime/lab/overlap_oracle.h"
#include "runtime/lab/route_replay.h"
#include "runtime/lab/trace_recorder.h"
#include "runtime/sampling/sampler.h"
#include "runtime/draft/speculation.h"
#include "runtime/host/team.h"
#include "runtime/lossy/lossy.h"
#include "runtime/sidecar/low_bit_file.h"
#include "runtime/model/chat_template.h"
#include "runtime/model/tokenizer.h"
#include "offload/memory_border.h"
#include "offload/memory_follow.h"
#include "runtime/pass/panel_block.h"
#include "runtime/pass/pass_progress.h"
#include "runtime/pass/route_observer.h"
#include "runtime/pass/runner.h"
#include "runtime/recorded/recorded_pass.h"
#include "runtime/workers/worker_serve.h"
#include "runtime/workers/worker_hook.h"

typedef struct moe_draft_model moe_draft_model; /* draft_model.h */
typedef struct moe_draft_head moe_draft_head;   /* runtime/draft/draft_head.h */

/* A session's rows in a panel. */
typedef struct moe_panel_prompt {
    moe_session *session;   /* NULL: the session has left the panel; its rows are skipped */
    uint32_t first, n_rows; /* the session's rows in the panel: its tokens from n_evaluated on */
    moe_state *state;       /* of recurrent layers; chunks use this state and `next` in turns */
} moe_panel_prompt;

/* Long prompts that go through the model layer by layer (session_panel.h). */
typedef struct moe_panel {
    moe_panel_prompt *prompts;
    uint32_t n_prompts; /* 0: there is no panel */
    uint32_t n_rows;    /* rows of all prompts together */
    uint32_t layer, at; /* the next chunk's layer, and the rows before the chunk */
    /* [n_rows][floats of x] The residual stream: of rows < at behind `layer`, of the others before
     * it. After all rows come the positions that were chosen for each row, if a later layer uses
     * them. */
    float *x;
    uint64_t bytes;
    /* The time that the panel may still use before other sessions have their turn; < 0: it has
     * overrun. */
    int64_t left_ns;
    /* The part of the layer that the next chunk of a block takes. MOE_PANEL_LAYER: there is no
     * block; each chunk takes the whole layer. */
    moe_panel_part part;
    moe_panel_block block; /* open while layers need it */
    uint64_t block_bytes;
} moe_panel;

struct moe_engine {
    /* Number of open sessions, text streams and handles, minus one. */
    _Atomic uint32_t n_users;
    void (*destroy)(moe_engine *engine); /* called when the last user is closed */
    /* Set at open, never changed. */
    char *model_path;
    uint64_t open_plan_ns, open_memory_ns, open_weights_ns; /* as in moe_engine_stats */
    char *model_name;
    char kernels[128];
    moe_gguf *gguf;
    moe_model_config config;
    moe_tensor_map map;
    moe_program program;
    moe_tokenizer *tokenizer;   /* NULL if the file has none */
    char *chat_template;        /* tokenizer.chat_template; NULL if the file has none */
    moe_token_keys *token_keys; /* for grammars; NULL until a session has one */
    uint32_t context;
    uint32_t prefill_chunk;
    uint32_t panel_rows;   /* most rows of a panel; 0: no panels */
    bool panel_is_planned; /* the plan chose panel_rows, not the options */
    uint32_t panel_others; /* percentage of the time that other sessions get beside a panel,
                            * 1..99 */
    uint64_t fingerprint;
    moe_model_identity identity;
    moe_sidecar sidecar;
    moe_checksum_book book;
    moe_checksum_book head_book;        /* checksums of draft_head's experts and of its file's
                                         * tensors */
    moe_idle_checksums *idle_checksums; /* NULL: none */
    moe_model_reader_options reading;   /* how files are read outside of passes */
    moe_progress_fn progress;           /* while opening, else NULL */
    moe_log_fn log;
    void *user;
    bool noted_missing_index; /* moe_note_missing_index() has logged */
    const moe_policy *policy;
    void *policy_plugin;
    char io[128]; /* how experts are read, in words */
    moe_offload_mode offload;
    bool warms; /* the engine fills empty slots with the hottest experts while nothing is requested
                 */
    bool experts_only;      /* there are no resident weights */
    bool reads_all;         /* warms with all experts, also beside steps */
    uint64_t session_bytes; /* RAM for a session's logits, sampler and drafts */
    uint64_t token_bytes;   /* RAM for each token of a timeline, without KV pages */
    moe_memory_plan plan;
    uint64_t memory_reserve; /* what a default budget leaves available to others */
    moe_team *team;
    moe_device *device;
    moe_weights weights;
    float *rope_frequencies;   /* [n_rot / 2] */
    float *window_frequencies; /* [window_n_rot / 2]; NULL: layers with a window have the same */

    /* Changed by passes; one pass runs at a time. */
    moe_overlap_oracle *oracle; /* of offload mode overlap, else NULL */
    moe_kv_pool kv;
    moe_state_pool states;
    moe_runner runner;
    moe_pass_watch watch; /* tells the program how far passes are */
    moe_memory_border border;
    moe_memory_follow follow;  /* does nothing if the options state a budget */
    moe_pass_hook follow_hook; /* lets `follow` look between layers */
    moe_file_watch files;
    moe_gguf *copies[MOE_RANGE_COPIES]; /* of the model, on other drives */
    moe_file_watch copy_files[MOE_RANGE_COPIES];
    uint32_t n_copies;
    moe_wait_cancel cancel; /* of steps, besides their sessions'; is_cancelled may be NULL */
    uint64_t n_prompt_tokens, n_decode_tokens;
    uint64_t n_sessions; /* created so far */
    moe_panel panel;
    /* session_park.c */
    char *park_folder;     /* NULL: no session is parked */
    moe_session *sessions; /* a list of all that are open */
    uint64_t uses;         /* a clock: counts uses of sessions */
    uint64_t n_parked, n_replayed;
    moe_route_replay *route_replay;  /* NULL unless routing is replayed */
    moe_trace_recorder *trace;       /* NULL unless requested */
    moe_learning *learning;          /* NULL until requested */
    moe_draft_model *draft_model;    /* NULL: none */
    moe_draft_head *draft_head;      /* NULL: none */
    moe_gguf *head_gguf;             /* the drafting layer's own file; NULL: it is in the model's */
    moe_speculation *speculation;    /* NULL: off */
    moe_lossy *lossy;                /* NULL: off */
    moe_workers *workers;            /* NULL: none */
    moe_worker_counts worker_counts; /* of moe_worker_serve() */
    uint32_t marks;                  /* MOE_SESSION_ bits of what this engine computes */
    bool own_attention; /* some layer's attention has an arithmetic of the device's own */
    moe_low_bit_file *low_bit_file; /* copies of experts; NULL: none */
    moe_expert_slot_sizes low_bit_sizes;
    moe_expert_store *low_bit_experts; /* the slots of the copies */
    moe_budget_exact *budget_exact;    /* NULL unless a budget is measured */
    moe_route_rules *rules;            /* NULL when both are off */
    moe_recorded_passes *recorded;     /* NULL: the device does not record */
};

/* The most that rounding a session's allocations up to whole pages may add, in bytes. */
#define MOE_SESSION_SLACK (4u * 4096u)

struct moe_session {
    moe_engine *engine;
    uint64_t number; /* among the engine's sessions, from 0 */
    int32_t *tokens; /* the timeline */
    uint32_t n_tokens;
    uint32_t n_evaluated;
    uint32_t n_sampled_pending; /* 1 when the last token was sampled and is not evaluated yet */
    uint32_t n_tokens_capacity;
    uint32_t *sampled; /* positions of sampled tokens that are not yet taken, ascending */
    uint32_t n_sampled;
    uint32_t n_sampled_capacity;
    bool evaluate_only;
    moe_sampler sampler;
    moe_random random_before; /* the sampler's state when the current step began */
    uint32_t n_tokens_before; /* n_tokens when the current step began */
    moe_kv_table kv;
    moe_state_table states; /* of recurrent layers, at n_evaluated */
    /* Tokens before this position have been evaluated once. The tokens from n_evaluated to here are
     * evaluated again, because a cut went back to a state before the requested position. */
    uint32_t replay_end;
    float *logits;          /* [n_vocab]; NULL before the first */
    bool has_logits;        /* of position max(n_evaluated, replay_end) - 1 */
    _Atomic bool cancelled; /* requested, and not yet answered by a step */
    bool was_cancelled;     /* the last step left this session out */
    moe_position_fn watch;  /* called for evaluated positions, with watch_user; NULL: none */
    void *watch_user;
    moe_session_draft *draft; /* NULL without speculation */
    uint64_t n_lossy;         /* rows evaluated under lossy modes */
    /* MOE_SESSION_ bits that say how the timeline from position marked_from on was computed; see
     * moe_session_marks(). */
    uint32_t marks, marked_from;
    uint64_t granted_tokens;    /* tokens for which memory has been granted */
    uint64_t grammar_bytes;     /* granted for the sampler's grammar */
    FILE *parked;               /* the file with its KV pages and states; NULL: it is not parked */
    uint64_t used;              /* engine->uses when it was last used */
    moe_session *next, *before; /* of the engine's list */
};

/* Reasons why a session's keys, values, states and logits may differ from those of an exact run. */
#define MOE_SESSION_LOSSY      1u /* evaluated under lossy modes */
#define MOE_SESSION_FLOAT_GEMM 2u /* evaluated by an engine with MOE_FLOAT_GEMM_BLAS */
#define MOE_SESSION_MARKS      3u
/* In files only: evaluated on a device with an attention of its own (moe_device_ops.own_attention).
 */
#define MOE_SESSION_OWN_ATTENTION 4u

/* Returns the marks that hold for the timeline as it is now. */
static inline uint32_t moe_session_marks(const moe_session *s)
{
    uint32_t n = s->n_evaluated > s->replay_end ? s->n_evaluated : s->replay_end;
    return s->marked_from < n ? s->marks : 0;
}

/* Tokens that the next passes evaluate, including repeated ones, which moe_session_n_pending()
 * leaves out. */
static inline uint32_t moe_session_n_unevaluated(const moe_session *session)
{
    return session->n_tokens - session->n_evaluated;
}

#endif
