/* SPDX-License-Identifier: MIT */
/* What an engine and a session are made of; for the files of this folder only. */
#ifndef MOE_ENGINE_INTERNAL_H
#define MOE_ENGINE_INTERNAL_H

#include <stdatomic.h>

#include <moe/calibrate.h>
#include <moe/chat.h>
#include <moe/moe.h>
#include <moe/trace.h>

#include "offload/expert_store.h"
#include "offload/file_watch.h"
#include "offload/model_reader.h"
#include "runtime/sidecar/calibration.h"
#include "runtime/engine/draft_model.h"
#include "runtime/engine/learning.h"
#include "runtime/lab/budget_exact.h"
#include "runtime/lab/overlap_oracle.h"
#include "runtime/lab/route_replay.h"
#include "runtime/sampling/sampler.h"
#include "runtime/engine/trace_recorder.h"
#include "runtime/draft/speculation.h"
#include "runtime/host/team.h"
#include "runtime/lossy/lossy.h"
#include "runtime/model/chat_template.h"
#include "runtime/model/tokenizer.h"
#include "runtime/pass/memory_border.h"
#include "runtime/pass/route_observer.h"
#include "runtime/pass/runner.h"
#include "runtime/recorded/recorded_pass.h"

typedef enum moe_offload_mode {
    MOE_OFFLOAD_AUTO,
    MOE_OFFLOAD_ON_DEMAND,
    MOE_OFFLOAD_OVERLAP,
    MOE_OFFLOAD_CACHING
} moe_offload_mode;

struct moe_engine {
    /* Sessions and text streams that are open, and the program's handle, less one. */
    _Atomic uint32_t n_users;
    void (*destroy)(moe_engine *engine); /* when the last one lets go */
    /* Set at open, never changed. */
    char *model_path;
    char *model_name;
    char kernels[128];
    moe_gguf *gguf;
    moe_model_config config;
    moe_tensor_map map;
    moe_tokenizer *tokenizer; /* NULL when the file has none */
    char *chat_template;      /* tokenizer.chat_template; NULL when the file has none */
    uint32_t context;
    uint32_t prefill_chunk;
    uint64_t fingerprint;
    moe_model_identity identity;
    char *sidecar_path;               /* read, or where moe_learn_save() would write */
    moe_calibration *calibration;     /* NULL: there is none */
    float *hotness;                   /* [n_layer][n_expert], or NULL without calibration */
    moe_model_reader_options reading; /* how files are read outside of passes */
    moe_progress_fn progress;         /* while opening, else NULL */
    moe_log_fn log;
    void *user;
    const moe_policy *policy;
    void *policy_plugin;
    char io[128]; /* how experts are read, in words */
    moe_offload_mode offload;
    bool warms; /* empty slots are filled with the hottest experts while nothing is asked for */
    uint64_t session_bytes; /* of a session's logits, sampler and drafts */
    uint64_t token_bytes;   /* ... of each token of its timeline, KV pages apart */
    moe_memory_plan plan;
    moe_team *team;
    moe_device *device;
    moe_weights weights;
    float *rope_frequencies; /* [n_rot / 2] */

    /* Changed by passes; one runs at a time. */
    moe_overlap_oracle *oracle; /* of offload mode overlap, else NULL */
    moe_kv_pool kv;
    moe_state_pool states;
    moe_runner runner;
    moe_memory_border border;
    moe_file_watch files;
    moe_wait_cancel cancel; /* of steps, beside their sessions'; is_cancelled may be NULL */
    uint64_t n_prompt_tokens, n_decode_tokens;
    uint64_t n_sessions;            /* created so far */
    moe_route_replay *route_replay; /* NULL unless routing is replayed */
    moe_trace_recorder *trace;      /* NULL when none was asked for */
    moe_learning *learning;         /* NULL until it is asked for */
    moe_draft_model *draft_model;   /* NULL: none */
    moe_speculation *speculation;   /* NULL: off */
    moe_lossy *lossy;               /* NULL: off */
    moe_budget_exact *budget_exact; /* NULL unless a budget is measured */
    moe_route_rules *rules;         /* NULL when both are off */
    moe_recorded_passes *recorded;  /* NULL: the device records none */
};

/* Of a session's allocations: what rounding each to whole pages takes. */
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
    /* Tokens before this position have been evaluated once, and are again where n_evaluated stands
     * before it: the timeline was cut back to where there is a state, not to where it was asked. */
    uint32_t replay_end;
    float *logits;            /* [n_vocab]; NULL before the first */
    bool has_logits;          /* they are those of position max(n_evaluated, replay_end) - 1 */
    _Atomic bool cancelled;   /* asked for, and no step has answered yet */
    bool was_cancelled;       /* the last step did without this session */
    moe_session_draft *draft; /* NULL without speculation */
    uint64_t n_lossy;         /* rows evaluated under lossy modes */
    uint64_t granted_tokens;  /* for which memory has been granted */
};

/* Tokens that the next passes evaluate, those again among them that moe_session_n_pending() leaves
 * out. */
static inline uint32_t moe_session_n_unevaluated(const moe_session *session)
{
    return session->n_tokens - session->n_evaluated;
}

/* Gets the memory for a timeline of n_tokens that are evaluated up to `end`: MOE_ERR_BUDGET, and
 * nothing has changed, when it cannot be had. */
int moe_session_grant(moe_session *session, uint64_t n_tokens, uint32_t end, moe_error *err);
/* What a session takes beside its KV pages: engine->session_bytes and token_bytes. */
void moe_engine_measure_session(moe_engine *engine, const moe_engine_options *options);
int moe_session_take_state(moe_engine *engine, moe_error *err);
/* All that the session was granted; its memory has been released. */
void moe_session_give_memory(moe_session *session);
/* Idle KV pages, and what slots lack, go back to the slots. */
void moe_session_give_back_pages(moe_engine *engine);
/* RAM of one session with so many tokens, KV pages apart. */
uint64_t moe_engine_session_state(const moe_engine *engine, uint64_t n_tokens);
/* Whoever points into an engine holds it; the last one to let go frees it. */
void moe_engine_hold(const moe_engine *engine);
void moe_engine_release(const moe_engine *engine);

/* Makes room for n more tokens, so that appending them cannot fail. */
int moe_session_reserve(moe_session *session, uint32_t n, moe_error *err);
/* Appends one token that the sampler wrote. */
int moe_session_append_sampled(moe_session *session, int32_t token, moe_error *err);

/* Opening by parts, each undone by moe_engine_close(). open_model: everything of the file but its
 * weights; open_device: threads and kernels, and no memory yet; plan: engine->plan. */
int moe_engine_check_options(const moe_engine_options *options, unsigned *cpu_features,
                             moe_error *err);
int moe_engine_open_model(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* Name, tokenizer, chat template: of open_model. Tokenizer and template may be missing. */
int moe_engine_open_texts(moe_engine *engine, moe_error *err);
int moe_engine_need_tokenizer(const moe_engine *engine, moe_error *err);
/* Instead of all the others. */
/* How the engine's files are read (engine_reading.c). The kind: false for a name that is not known;
 * NULL is "auto". */
bool moe_find_io_kind(const char *name, moe_io_kind *kind);
/* Likewise. */
bool moe_find_offload_mode(const char *name, moe_offload_mode *mode);
void moe_engine_set_reading(moe_engine *engine, const moe_engine_options *options);
int moe_engine_check_timeout(const moe_engine_options *options, moe_error *err);
int moe_engine_open_vocabulary(moe_engine *engine, const moe_engine_options *options,
                               moe_error *err);
/* MOE_ERR_UNSUPPORTED, naming what needs it, when the vocabulary alone was opened. */
int moe_engine_need_model(const moe_engine *engine, const char *what, moe_error *err);
int moe_engine_open_device(moe_engine *engine, const moe_engine_options *options,
                           unsigned cpu_features, moe_error *err);
int moe_engine_open_calibration(moe_engine *engine, const moe_engine_options *options,
                                moe_error *err);
int moe_engine_plan(moe_engine *engine, const moe_engine_options *options, moe_error *err);
int moe_engine_open_memory(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* Of a planned engine: whether what opening would make of names, and what needs a calibration, can
 * be had: the cache policy, speculation, lossy modes. */
int moe_engine_check_parts(moe_engine *engine, const moe_engine_options *options, moe_error *err);

/* True for options->offload == mode; "auto" when it is NULL. */
bool moe_offload_is(const moe_engine_options *options, const char *mode);
/* Whether the options and what there is to go by call for filling slots ahead; sets engine->warms.
 * MOE_ERR_ARGUMENT when it is asked for and cannot act. After the calibration is open. */
int moe_engine_open_warm_start(moe_engine *engine, const moe_engine_options *options,
                               moe_error *err);
/* Where all experts fit the memory of a device that plays passes, they are brought there. */
int moe_engine_fill(moe_engine *engine, const moe_engine_options *options, moe_error *err);
/* What must hold of every sidecar of the engine's model. */
moe_calibration_shape moe_engine_calibration_shape(const moe_engine *engine);

#endif
