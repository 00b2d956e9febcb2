/* SPDX-License-Identifier: MIT */
/* The parts of an engine and a session, and the functions on them; for the files of this folder
 * only. */
#ifndef MOE_ENGINE_STATE_H
#define MOE_ENGINE_STATE_H

#include <stdatomic.h>

#include <moe/calibrate.h>
#include <moe/chat.h>
#include <moe/lab.h>
#include <moe/lossy_modes.h>
#include <moe/moe.h>
#include <moe/trace.h>

#include "offload/expert_store.h"
#include "offload/file_watch.h"
#include "offload/model_reader.h"
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
#include "runtime/model/chat_template.h"
#include "runtime/model/tokenizer.h"
#include "runtime/pass/memory_border.h"
#include "runtime/pass/route_observer.h"
#include "runtime/pass/runner.h"
#include "runtime/recorded/recorded_pass.h"

typedef struct moe_draft_model moe_draft_model; /* draft_model.h */

struct moe_engine {
    /* Number of open sessions, text streams and the program's handle, minus one. */
    _Atomic uint32_t n_users;
    void (*destroy)(moe_engine *engine); /* called when the last user lets go */
    /* Set at open, never changed. */
    char *model_path;
    char *model_name;
    char kernels[128];
    moe_gguf *gguf;
    moe_model_config config;
    moe_tensor_map map;
    moe_tokenizer *tokenizer;   /* NULL if the file has none */
    char *chat_template;        /* tokenizer.chat_template; NULL if the file has none */
    moe_token_keys *token_keys; /* for grammars; NULL until a session has one */
    uint32_t context;
    uint32_t prefill_chunk;
    uint64_t fingerprint;
    moe_model_identity identity;
    moe_sidecar sidecar;
    moe_model_reader_options reading; /* how files are read outside of passes */
    moe_progress_fn progress;         /* while opening, else NULL */
    moe_log_fn log;
    void *user;
    const moe_policy *policy;
    void *policy_plugin;
    char io[128]; /* how experts are read, in words */
    moe_offload_mode offload;
    bool warms; /* the engine fills empty slots with the hottest experts while nothing is requested
                 */
    uint64_t session_bytes; /* for a session's logits, sampler and drafts */
    uint64_t token_bytes;   /* ... for each token of its timeline, without KV pages */
    moe_memory_plan plan;
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
    moe_memory_border border;
    moe_file_watch files;
    moe_wait_cancel cancel; /* of steps, besides their sessions'; is_cancelled may be NULL */
    uint64_t n_prompt_tokens, n_decode_tokens;
    uint64_t n_sessions;            /* created so far */
    moe_route_replay *route_replay; /* NULL unless routing is replayed */
    moe_trace_recorder *trace;      /* NULL unless requested */
    moe_learning *learning;         /* NULL until requested */
    moe_draft_model *draft_model;   /* NULL: none */
    moe_speculation *speculation;   /* NULL: off */
    moe_lossy *lossy;               /* NULL: off */
    moe_budget_exact *budget_exact; /* NULL unless a budget is measured */
    moe_route_rules *rules;         /* NULL when both are off */
    moe_recorded_passes *recorded;  /* NULL: the device does not record */
};

/* The rounding of a session's allocations to whole pages. */
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
    moe_kv_table kv;
    moe_state_table states; /* of recurrent layers, at n_evaluated */
    /* Tokens before this position have been evaluated once. Those from n_evaluated on are evaluated
     * again: the timeline was cut back to the nearest state, before the requested place. */
    uint32_t replay_end;
    float *logits;            /* [n_vocab]; NULL before the first */
    bool has_logits;          /* of position max(n_evaluated, replay_end) - 1 */
    _Atomic bool cancelled;   /* requested, and not yet answered by a step */
    bool was_cancelled;       /* the last step left this session out */
    moe_session_draft *draft; /* NULL without speculation */
    uint64_t n_lossy;         /* rows evaluated under lossy modes */
    uint64_t granted_tokens;  /* tokens for which memory has been granted */
    uint64_t grammar_bytes;   /* granted for the sampler's grammar */
};

/* Tokens that the next passes evaluate, including repeated ones, which moe_session_n_pending()
 * leaves out. */
static inline uint32_t moe_session_n_unevaluated(const moe_session *session)
{
    return session->n_tokens - session->n_evaluated;
}

/* Grants the memory for a timeline of n_tokens, evaluated up to `end`. MOE_ERR_BUDGET when there is
 * not enough; nothing has then changed. */
int moe_session_grant(moe_session *session, uint64_t n_tokens, uint32_t end, moe_error *err);
/* Computes what a session takes besides its KV pages: engine->session_bytes and token_bytes. */
void moe_engine_measure_session(moe_engine *engine, const moe_engine_options *options);
int moe_session_take_state(moe_engine *engine, moe_error *err);
/* What a session takes more while its text is held to a grammar. */
int moe_session_take_grammar(moe_session *session, bool wanted, moe_error *err);
/* Returns everything that the session was granted; its memory has been freed. */
void moe_session_give_memory(moe_session *session);
/* Returns idle KV pages and free memory to the slots. */
void moe_session_give_back_pages(moe_engine *engine);
/* RAM of one session with so many tokens, without KV pages. */
uint64_t moe_engine_session_state(const moe_engine *engine, uint64_t n_tokens);
/* Each object that points into an engine holds it; the last one to let go frees it. */
void moe_engine_hold(const moe_engine *engine);
void moe_engine_release(const moe_engine *engine);

/* Makes room for n more tokens, so that appending them cannot fail. */
int moe_session_reserve(moe_session *session, uint32_t n, moe_error *err);
/* Makes room for the places of `needed` sampled tokens in all. */
int moe_session_grow_sampled(moe_session *session, uint64_t needed, moe_error *err);
/* Appends one token that the sampler chose. */
int moe_session_append_sampled(moe_session *session, int32_t token, moe_error *err);

/* Opening in parts, each undone by moe_engine_close(). open_model: everything from the file except
 * weights; open_device: threads and kernels, and no memory yet; plan: engine->plan. */
int moe_engine_check_options(const moe_engine_options *options, unsigned *cpu_features,
                             moe_error *err);
int moe_engine_open_model(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* Name, tokenizer, chat template, for open_model. The file may lack tokenizer and template. */
int moe_engine_open_texts(moe_engine *engine, moe_error *err);
int moe_engine_need_tokenizer(const moe_engine *engine, moe_error *err);
/* In place of all the others. */
/* How the engine's files are read (engine_reading.c). */
void moe_engine_set_reading(moe_engine *engine, const moe_engine_options *options);
int moe_engine_check_timeout(const moe_engine_options *options, moe_error *err);
int moe_engine_open_vocabulary(moe_engine *engine, const moe_engine_options *options,
                               moe_error *err);
/* MOE_ERR_UNSUPPORTED, naming what needs a model, if only the vocabulary was opened. */
int moe_engine_need_model(const moe_engine *engine, const char *what, moe_error *err);
int moe_engine_open_device(moe_engine *engine, const moe_engine_options *options,
                           unsigned cpu_features, moe_error *err);
int moe_engine_open_sidecar(moe_engine *engine, const moe_engine_options *options, moe_error *err);
int moe_engine_plan(moe_engine *engine, const moe_engine_options *options, moe_error *err);
int moe_engine_open_memory(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* For a planned engine: checks that the parts which opening would find by name, and those which
 * need a calibration, are available: the cache policy, speculation, lossy modes. */
int moe_engine_check_parts(moe_engine *engine, const moe_engine_options *options, moe_error *err);

/* Decides by the options and the calibration whether to fill slots ahead; sets engine->warms.
 * MOE_ERR_ARGUMENT when the option is set and cannot act. Call after the calibration is open. */
int moe_engine_open_warm_start(moe_engine *engine, const moe_engine_options *options,
                               moe_error *err);
/* If all experts fit the memory of a device that replays passes, loads them all. */
int moe_engine_fill(moe_engine *engine, const moe_engine_options *options, moe_error *err);

#endif
