/* SPDX-License-Identifier: MIT */
/* moe-offload: run mixture-of-experts language models that are larger than the memory at hand.
 *
 * Two nouns. An *engine* is an opened model: immutable weights, the expert tiers, a team of worker
 * threads. A *session* is one token timeline on an engine: its tokens, its KV cache, its sampler.
 *
 * Threads. Every function of every header belongs to one of five groups. The header that declares
 * it lists it by name:
 *   free     from any thread, at any time, beside anything.
 *   reading  from any thread, beside every call except a `last` one with the same object.
 *   in turn  from any thread; for one engine and all its sessions only one such call at a time.
 *   own      from any thread; for one object only one such call at a time, beside all others.
 *   last     from any thread, after every other call with the object has returned.
 * Callbacks must not make `in turn` or `last` calls with the engine or session that calls them.
 *
 * Threads of this header:
 *   free:    moe_version, moe_free, moe_engine_options_init_sized, moe_engine_options_init,
 *            moe_engine_open, moe_plan_memory, moe_session_options_init_sized,
 *            moe_session_options_init
 *   reading: moe_engine_get_info, moe_tokenize, moe_token_piece, moe_token_is_end,
 *            moe_text_create, moe_session_file_tokens,
 *            moe_session_cancel (also in signal handlers)
 *   in turn: moe_engine_get_stats, moe_engine_set_pass_progress, moe_session_create,
 *            moe_session_close, moe_session_feed, moe_step, moe_session_take,
 *            moe_session_n_tokens, moe_session_n_pending, moe_session_tokens,
 *            moe_session_is_full, moe_session_logits, moe_session_score, moe_session_truncate,
 *            moe_session_fork, moe_session_set_sampling, moe_session_save, moe_session_load,
 *            moe_session_was_cancelled
 *   own:     moe_text_push, moe_text_finish, moe_text_close
 *   last:    moe_engine_close
 * For moe_session_cancel(), moe_session_close() counts as a `last` call: no cancel of that session
 * may run beside it or after it.
 *
 * Errors. Functions return MOE_OK or a negative moe_status; `err` (may be NULL) receives one line
 * that names the thing and the remedy. Constructors write *out on success and NULL otherwise.
 * Release functions take a pointer to the handle, accept NULL handles, and null it. If a required
 * argument is NULL, a function returns MOE_ERR_ARGUMENT; a function without a status returns 0,
 * NULL, false or "" instead, or does nothing.
 *
 * Ownership. What a function returns by pointer to const belongs to the engine or session and lives
 * as long as the comment says; arrays returned through `**` are released with moe_free(). Nothing
 * in the library prints, exits or aborts.
 *
 * Sizes. A struct whose first field is struct_size may get more fields at its end in later
 * versions. A program still works with older and newer libraries than the one it was compiled for.
 * struct_size is the size of the struct as the program knows it. If the program hands the struct
 * over, the struct's _init function sets struct_size (moe_..._init_sized() is for other languages);
 * if the library fills the struct, the program sets it before the call: info.struct_size = sizeof
 * info.
 *   - The struct of an older program is smaller than the library's. The library uses the defaults
 *     of the fields that it lacks, and writes no more than struct_size bytes.
 *   - The struct of a newer program is larger. If the program hands it over, the bytes that the
 *     library does not know must be 0; otherwise the call fails and names the struct. If the
 *     library fills it, it sets these bytes to 0.
 *   - A size below that of the struct's first required fields, above 64 KiB, or no multiple of
 *     sizeof(size_t), is MOE_ERR_ARGUMENT, and nothing is written.
 * Structs that have no struct_size, or that stand inside another struct, keep their size for ever.
 *
 * Exactness. With lossy modes off, the logits of a position depend on the model and the tokens
 * before it, and on nothing else: not on threads, batch neighbours, prefill chunk or instruction
 * set. At temperature 0 the tokens are therefore the same in every configuration with the same KV
 * cache type, with two exceptions: MOE_FLOAT_GEMM_BLAS, which a program must ask for, and GPUs with
 * matrix units, whose attention has its own last bits (moe_engine_options.exact_attention). */
#ifndef MOE_MOE_H
#define MOE_MOE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/plan.h>
#include <moe/sampling.h>
#include <moe/statistics.h>
#include <moe/status.h>
#include <moe/types.h>
#include <moe/version.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library linked, e.g. "0.2.0". */
MOE_API const char *moe_version(void);
/* Releases an array that the library returned; NULL is allowed. */
MOE_API void moe_free(void *array);

/* ---- Engine ------------------------------------------------------------------------------- */

/* Reads bytes of a file like pread(), and may block. Returns how many bytes it read (0 at the end),
 * or -errno. The engine calls it on any thread, also on several at once. */
typedef int64_t (*moe_read_fn)(const char *path, void *dst, size_t size, uint64_t offset,
                               void *user);

struct moe_engine_options {
    size_t struct_size;     /* sizeof(moe_engine_options), set by moe_engine_options_init() */
    const char *model_path; /* a GGUF file, or any part of a split one; required */
    /* A device by its name: "cpu"; "cuda" or "cuda:1" (a GPU, by its number); "cuda:0,1" (several,
     * the first of which holds all but experts); "sim:..." (a simulated device: moe/lab.h). NULL
     * and "auto": the first usable GPU, else the CPU; the engine logs a GPU that is present and not
     * used. moe_machine_describe() in moe/machine.h lists GPUs. */
    const char *device;
    uint32_t n_threads; /* worker threads; 0: the physical cores this process may use */
    /* Most tokens of a session. 0: as many as the model was trained for, or fewer, so that experts
     * keep three quarters of the memory that they share with a session. If that would leave fewer
     * than 4,096 tokens, experts keep less. One log line says so. */
    uint32_t context;
    /* Most rows of one pass, with drafts, 1..4096. 0: 512; or 256 or 128, if the scratch of passes
     * would take more than an eighth of the memory for experts, and if long prompts become panels,
     * which read no more then; but not fewer than `sessions`. moe_memory_plan.prefill_chunk says
     * how many */
    uint32_t prefill_chunk;
    /* Most rows of a panel. A panel is a prompt of more than prefill_chunk tokens (or of more than
     * half as many, if no other session has work: it ends within a step then) that goes through
     * the model layer by layer: all its rows pass one layer before any passes the next. So each
     * missing expert is read once for the panel, and not once for every prefill_chunk rows. While a
     * panel is under way, each of its rows takes n_embd floats for each residual stream from the
     * memory for experts. The text is the same. There are no panels with drafting layers, lookahead
     * or recorded routings. 0: if some experts miss, as many rows as the memory holds that the
     * missing experts would take, at least an eighth and at most three quarters of the memory for
     * experts, and an eighth while other sessions write; if that memory is smaller than a layer, as
     * many as it holds beside a few expert slots. A value up to prefill_chunk: no panels */
    uint32_t panel;
    /* The percentage of the time that other sessions get while a panel is under way, 1..99: a step
     * evaluates chunks of the panel until the panel has had its share. The engine does not
     * interrupt a chunk within a layer; if the panel overran its share, the next steps are for the
     * other sessions. 0: 20 */
    uint32_t panel_others;
    moe_kv_cache_type kv_cache;
    moe_float_gemm float_gemm;
    /* Opening and planning fail with MOE_ERR_BUDGET unless this many sessions with a full context
     * fit. A program may create more, which take the memory that is left. 0: 1 */
    uint32_t sessions;

    /* Memory. Budgets are limits on what the process takes, not hints. */
    /* Bytes of RAM. 0: what machine and cgroup leave, minus headroom. If the size of the expert
     * cache is not set either, it then follows the machine: steps close expert slots when other
     * programs need memory or a control group's limit is lowered, and open them again later. The
     * text is the same. */
    uint64_t host_memory;
    uint64_t device_memory;    /* bytes on a device with memory of its own (on each GPU); 0: all */
    uint64_t expert_cache;     /* bytes of the device's expert slots; 0: what the budget leaves */
    double expert_cache_share; /* as a share of all experts' bytes, (0, 1]; 0: not given */
    /* Accepts a host_memory above what machine and control groups have. The kernel may then swap,
     * or kill the process. */
    bool overcommit_memory;
    /* Bytes of RAM that the program will take for itself once the engine is open, such as a
     * server's connections. The plan counts them with the process, so that the engine leaves them
     * free; opening fails if they do not fit. */
    uint64_t program_memory;
    /* A folder for KV pages of sessions that wait; NULL: none. If memory is short for a session and
     * no more expert slots can be closed, the engine parks the session that was not used for
     * longest: its pages and states go to a file without a name, with a checksum, and come back
     * before it is used again. If that file cannot be read or is damaged, the session's tokens are
     * evaluated again, and the engine logs it. The text is the same. The plan then needs memory for
     * one whole session, and for the tokens and logits of the others. Sessions that are stepped
     * together must still fit together. Sessions that draft by a layer or look ahead are not
     * parked. */
    const char *park_folder;

    bool buffered_io;        /* read experts through the page cache instead of O_DIRECT */
    moe_io_kind io;          /* how experts are read */
    uint32_t io_block_bytes; /* the most bytes of a piece in which experts are read: a multiple
                              * of 4096, at most 64 MiB; 0: 1 MiB */
    uint32_t io_depth;       /* pieces given to the disk at a time, 1..1024; 0: 16 */
    /* Seconds, at most 86400; 0: 30. A step fails when disk or device deliver no byte for this
     * long. The session is unchanged and the step can be repeated. Opening and closing are bounded
     * in the same way when they wait for headers, calibration and weights. */
    double io_timeout;
    /* [n_model_copies] Copies of the model on other drives; for a split model, any part of each
     * copy. Each block of an expert is read from the drive that will deliver it soonest, by its
     * queue and the speed measured so far. If a drive cannot read a block, or its bytes are
     * damaged, the engine reads another copy and logs it. Opening fails if a file is not a copy: it
     * compares files, sizes, headers and samples of the weights. At most 7; NULL: none. The text is
     * the same. Rows of a table that stays on disk have no checksums: they are read from a copy
     * only if the model's own file fails. */
    const char *const *model_copies;
    size_t n_model_copies;
    /* The file that keeps checksums of the weights. The engine makes a checksum when it first reads
     * a part of the weights. Each later process compares its first reading of the part with the
     * checksum, and every 16th reading after that; it compares every reading if the checksum is a
     * calibration's, or if the bytes come from a copy (model_copies). A part of an expert is read
     * from a copy only once its checksum is known. So a checksum shows changes since it was made;
     * damage that is older than the first reading shows only if a calibration made the checksum
     * before. "auto": MODEL.moe-sums beside the model. NULL, "none": checksums are in memory only,
     * as they are if the file cannot be written (one log line says so). If model files were changed
     * or replaced, the file starts empty again. The checksums of a drafting layer's experts, and of
     * a drafting file, are in a second file, whose name has "-draft" at its end. */
    const char *checksums;
    /* Makes the missing checksums while no step runs: a thread reads the parts that were not read
     * yet, and stops when a step begins or the engine closes. Auto: does so if a file keeps
     * checksums and the engine does not read all experts anyway (warm_start). */
    moe_switch idle_checksums;

    /* How experts are brought in. */
    /* The sidecar that moe_calibrate() wrote (moe/calibrate.h); NULL: the one beside the model, if
     * there is one that fits; "none": use none. From it, cache policies know which experts are hot.
     * It also has a checksum of every expert. */
    const char *calibration;
    /* A cache policy by its name (`moe-offload simulate --help` lists them), or the path of a
     * plug-in (moe/policy.h), which ends in ".so"; NULL: the default. */
    const char *policy;
    /* Fills the expert slots with the sidecar's hottest experts while nothing else is read: after
     * opening, and whenever moe_engine_warm() is called. Auto: does so if there is a sidecar and
     * experts stay in slots. If all experts fit, auto needs no sidecar: a GPU's are loaded while
     * the engine opens; the CPU's are read in the background after opening, layer by layer, beside
     * steps, which overtake these reads (only if prefetch is not off). */
    moe_switch warm_start;
    /* Prefetches the next layer's experts. Auto: prefetches while some experts miss, passes do not
     * wait for experts most of their time, and the share of the waiting that it saves is larger
     * than the share of bytes that it adds. */
    moe_switch prefetch;
    /* For a device with its own memory: computes a missing expert in host memory instead of moving
     * it to the device. Auto: as many experts of a layer as is fastest; on: all of them. A GPU that
     * runs all layers of a token without the host cannot do this: it reads a missing expert over
     * the link from host memory. With off it always runs so. With auto it does while the link takes
     * less time for a token's missing experts than the host takes to route layer by layer. With on
     * it never does. */
    moe_switch host_compute;
    /* [n_workers] "HOST:PORT" of workers (moe/workers.h), which compute experts that miss; NULL:
     * none. A host name with several addresses stands for a worker at each. The engine tries again
     * to reach a worker that is away, and computes the experts that a worker does not deliver.
     * Opening fails if a worker has another model or another key. At most 32. */
    const char *const *workers;
    size_t n_workers;
    const uint8_t *worker_key; /* [worker_key_bytes] the workers have the same; NULL: none */
    size_t worker_key_bytes;
    /* Where a missing expert is computed. Auto: where it will be done soonest, by the costs
     * measured so far; on: by a worker, if one has it. */
    moe_switch worker_compute;
    double worker_timeout; /* seconds without an answer after which a worker is left out; 0: 10 */
    /* Opens the engine for moe_worker_serve(): it reads no weights but the experts, and no sessions
     * can be created. */
    bool experts_only;

    /* Speculation: several tokens are drafted, then verified in one pass, which moves each missing
     * expert once. A step may then write several tokens. Speculation is lossless: the text is that
     * of plain decoding, greedy or sampled with the same seed. */
    moe_speculate speculate;
    /* With MOE_SPECULATE_MODEL: a model file with the same vocabulary. With MOE_SPECULATE_MTP and
     * MOE_SPECULATE_AUTO: a file with a drafting layer or an EAGLE-3 head for this model, or NULL.
     * Otherwise NULL. */
    const char *draft_model;
    uint32_t draft_max; /* most tokens drafted in a row, 1..63; 0: 8 */
    /* Drafts are trees of up to this many tokens, 1..511; 0: drafts are chains. With recurrent
     * layers, whose state does not branch, moe_engine_open returns MOE_ERR_UNSUPPORTED unless this
     * is 0. */
    uint32_t tree_nodes;
    moe_acceptance acceptance;
    /* Lookahead: before a session's next token is evaluated, a draft on resident experts runs that
     * token and lookahead - 1 further ones, 1..16 in all, and tells the cache policy which experts
     * they will use. It moves no expert and the text is the same. The cache misses less and
     * computing takes longer, so lookahead pays if reading experts takes most of the time. The
     * policy must take forecasts (the default does); speculate must be off or ngram. 0: off */
    uint32_t lookahead;

    /* Reads only the vocabulary of the file, for the text functions below. The file need not be
     * runnable or have weights. Functions that need the model, sessions first of all, return
     * MOE_ERR_UNSUPPORTED. Of the other options only model_path, metadata_overrides, io_timeout and
     * the callbacks have an effect. */
    bool vocabulary_only;
    /* [n_metadata_overrides] Metadata that replace the file's or are added to it; NULL: none. A key
     * that nothing reads in this model is MOE_ERR_ARGUMENT, and the message names keys that are
     * spelt much like it. The library copies them, strings included, before the call returns.
     * Sessions saved and calibrations made without them belong to another model. */
    const moe_metadata_override *metadata_overrides;
    size_t n_metadata_overrides;

    /* Modes that change the text (moe/lossy_modes.h); NULL: none. */
    const struct moe_lossy_options *lossy;
    /* Settings of experiments (moe/lab.h, which may change in every version); NULL: defaults. */
    const struct moe_lab_options *lab;

    moe_progress_fn progress;           /* may be NULL */
    moe_pass_progress_fn pass_progress; /* how far a step's pass is; may be NULL */
    moe_log_fn log;                     /* may be NULL */
    void *user;                         /* passed to all three */

    /* Reads the weights of the model's own files in place of the library; NULL: the library does.
     * For files that are not complete yet: they have their full size and their headers, and the
     * function fetches other bytes when the engine asks for them. The engine then makes no idle
     * checksums. A read that takes longer than io_timeout fails its step. The function must work
     * until the engine is closed. */
    moe_read_fn read_file;
    void *read_user; /* passed to read_file */
    /* A cache policy of the program (moe/policy.h), in place of options.policy; NULL: none. It must
     * stay valid until the engine is closed. */
    const struct moe_policy *own_policy;
    /* With workers: after so many passes each time, the engine tells them which experts to have, by
     * how often it asked for them: slow workers get fewer, and where there is room the most wanted
     * ones are with several. 0: each keeps its share. Workers can only change to experts that their
     * file has. If several engines share workers, one alone should do this. */
    size_t worker_rebalance;
    /* Attention on a GPU has the bits of the CPU. Otherwise the GPU's matrix units compute it where
     * they can (F16 keys and values, heads of 64 or 128 elements, no soft cap), with an arithmetic
     * of their own: the text is the same in every configuration on such GPUs, but may differ from
     * the CPU's. Long prompts take longer with this option. No effect on the CPU. */
    bool exact_attention;
    uint8_t reserved[7]; /* must be 0 */
};

MOE_API void moe_engine_options_init_sized(moe_engine_options *options, size_t struct_size);
static inline void moe_engine_options_init(moe_engine_options *options)
{
    moe_engine_options_init_sized(options, sizeof *options);
}
/* Opens the model. If an option has no effect because of another option's value, fails with
 * MOE_ERR_ARGUMENT and names both. Reads the metadata and the resident weights (unless
 * vocabulary_only); reads an expert's bytes when they are first needed. */
MOE_API int moe_engine_open(moe_engine **out, const moe_engine_options *options, moe_error *err);
/* Releases the engine. Sessions and text streams made from it stay valid, and may be closed in any
 * order; its memory is freed when the last of them is closed. */
MOE_API void moe_engine_close(moe_engine **engine);

/* Reads the model's header and makes the memory plan; loads no weights. MOE_ERR_BUDGET: the budget
 * is below plan->floor; *plan is filled in all the same. */
MOE_API int moe_plan_memory(const moe_engine_options *options, moe_memory_plan *plan,
                            moe_error *err);

typedef struct moe_engine_info {
    size_t struct_size;       /* set by the program: sizeof(moe_engine_info) */
    const char *architecture; /* strings live as long as the engine */
    const char *family;
    const char *model_name; /* general.name, or "" */
    const char *device;     /* "cpu" */
    bool device_simulated;  /* its times come from a model: say so wherever they are shown */
    const char *kernels;    /* e.g. "AVX2 AVX-512 VNNI" */
    uint32_t n_threads;
    uint32_t n_layer, n_embd, n_vocab, n_head, n_head_kv;
    uint32_t n_expert, n_expert_used;
    uint32_t context; /* of a session */
    uint32_t context_train;
    uint64_t n_parameters, n_parameters_active;
    uint64_t resident_bytes; /* weights that are always in memory */
    uint64_t expert_bytes;   /* of all experts */
    uint64_t active_bytes;   /* weights that one token reads, its experts included */
    uint64_t kv_bytes_per_token;
    uint64_t fingerprint; /* of the model: metadata, tensor table, sizes, a sample of the weights */
    bool has_chat_template;
    const char *chat_template; /* the file's, a text in the Jinja language, or "" */
    const char *policy;        /* of the expert cache */
    const char *io;            /* how experts are read, in words */
    const char *sidecar;       /* the file that was read, or that moe_learn_save() would create */
    moe_memory_plan memory;    /* what the engine was opened with */
} moe_engine_info;

/* In an engine with vocabulary_only, fields of a model are 0 or "". */
MOE_API int moe_engine_get_info(const moe_engine *engine, moe_engine_info *info);

/* Fills a moe_engine_stats (moe/statistics.h): counters since the engine was opened. All are 0 with
 * vocabulary_only. */
MOE_API int moe_engine_get_stats(const moe_engine *engine, moe_engine_stats *stats);

/* Replaces options.pass_progress: from now on this function is called with the progress of passes;
 * NULL: none. */
MOE_API int moe_engine_set_pass_progress(moe_engine *engine, moe_pass_progress_fn progress,
                                         void *user, moe_error *err);

/* ---- Text --------------------------------------------------------------------------------- */

enum {
    MOE_TOKENIZE_ADD_SPECIAL = 1,  /* BOS/EOS where the model's metadata asks for them */
    MOE_TOKENIZE_PARSE_SPECIAL = 2 /* text such as "<|im_end|>" becomes its control token */
};

/* Turns size bytes of text into tokens; the bytes need not be UTF-8. *tokens: moe_free(). */
MOE_API int moe_tokenize(const moe_engine *engine, const char *text, size_t size, unsigned flags,
                         int32_t **tokens, size_t *n_tokens, moe_error *err);
/* The bytes of one token, not terminated, valid as long as the engine. For a control token, returns
 * its markup if with_control is true, else no bytes. */
MOE_API const char *moe_token_piece(const moe_engine *engine, int32_t token, bool with_control,
                                    size_t *size);
/* True for tokens that end a generation (EOS, end of turn). */
MOE_API bool moe_token_is_end(const moe_engine *engine, int32_t token);

/* Turns tokens into text as they come, in whole UTF-8 characters. */
typedef struct moe_text moe_text;
MOE_API int moe_text_create(moe_text **out, const moe_engine *engine, moe_error *err);
MOE_API void moe_text_close(moe_text **text);
/* Returns the text that this token completed, valid until the next call, terminated; *size may be
 * 0. */
MOE_API const char *moe_text_push(moe_text *text, int32_t token, size_t *size);
/* Returns U+FFFD for bytes that are still incomplete, and starts over. */
MOE_API const char *moe_text_finish(moe_text *text, size_t *size);

/* ---- Sessions ----------------------------------------------------------------------------- */

typedef struct moe_session_options {
    size_t struct_size; /* set by moe_session_options_init() */
    moe_sampling sampling;
    bool evaluate_only;  /* moe_step() samples nothing; default false */
    uint8_t reserved[7]; /* must be 0 */
} moe_session_options;

MOE_API void moe_session_options_init_sized(moe_session_options *options, size_t struct_size);
static inline void moe_session_options_init(moe_session_options *options)
{
    moe_session_options_init_sized(options, sizeof *options);
}
/* options may be NULL: the defaults.
 *
 * Memory. Sessions and expert slots share the budget. A session is granted memory before anything
 * is allocated: by create() for its logits and sampler, by feed() for the tokens and their KV
 * cache, by a step for what it will write. It gets free memory first, then the memory of the
 * coldest expert slots. Of each size of slots, the engine keeps as many as a token uses experts in
 * a layer; if a session needs more than the others give, the call returns MOE_ERR_BUDGET, and
 * timelines are unchanged. Slots get the memory back when the session is closed or cut. The text
 * does not depend on any of this. */
MOE_API int moe_session_create(moe_session **out, moe_engine *engine,
                               const moe_session_options *options, moe_error *err);
MOE_API void moe_session_close(moe_session **session);

/* Appends tokens to the timeline; nothing is computed yet. MOE_ERR_CONTEXT_FULL when they do not
 * fit, MOE_ERR_BUDGET when there is no memory for them (then none is appended); MOE_ERR_ARGUMENT
 * for an id outside the vocabulary. */
MOE_API int moe_session_feed(moe_session *session, const int32_t *tokens, size_t n, moe_error *err);

/* Runs one pass over n sessions of one engine; with speculation, drafts before it. The pass
 * evaluates fed tokens and drafts, at most prefill_chunk rows in all. Every session with something
 * to do gets at least one row, so n <= prefill_chunk; drafts get the rows that are left. Each
 * session that then has nothing left to evaluate samples its next token and appends it to the
 * timeline; the next step evaluates that token. Sessions may join and leave between steps.
 *
 * Sessions with nothing to do are skipped: those with evaluate_only, and those that were cut back
 * to a position without logits (feed them). A session whose context is full samples nothing:
 * moe_session_is_full().
 *
 * Panels. A prompt that became part of a panel (moe_engine_options.panel) takes no part in the
 * pass. Instead the step first takes chunks of the panel through one layer each, for as long as
 * panel_others allows; the panel's tokens stay pending until all have left the last layer. Other
 * prompts of more than prefill_chunk tokens wait until then, and become the next panel.
 *
 * Errors. On error no session's timeline has changed. MOE_ERR_FORMAT: values are not finite (NaN,
 * infinite), as damaged weights cause; the message names the first layer where they appeared.
 *
 * Cancelling. A session that is cancelled before or while the step runs is left out, and its
 * timeline is unchanged. The step is made with the other sessions (again, if it had begun), and
 * succeeds or fails with them; moe_session_was_cancelled() tells which were left out.
 * MOE_ERR_CANCELLED: all were cancelled.
 *
 * A step without sessions (n = 0) only lets expert slots follow the machine's memory (host_memory).
 * A program that waits for its next request makes such a step now and then, four times a second at
 * most. */
MOE_API int moe_step(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err);

/* Tokens sampled since the last call, at most capacity; returns how many. */
MOE_API size_t moe_session_take(moe_session *session, int32_t *tokens, size_t capacity);
/* Tokens on the timeline; and how many of them are not evaluated yet. */
MOE_API size_t moe_session_n_tokens(const moe_session *session);
MOE_API size_t moe_session_n_pending(const moe_session *session);
/* The timeline; valid until the session is next changed. */
MOE_API const int32_t *moe_session_tokens(const moe_session *session);
/* True if there is no room for one more token. */
MOE_API bool moe_session_is_full(const moe_session *session);
/* [n_vocab] logits of the last evaluated position, valid until the next step; NULL before. */
MOE_API const float *moe_session_logits(const moe_session *session);

/* Feeds and evaluates tokens, and passes the logits of each of their positions to visit, in order.
 * When visit returns false, the timeline ends after that position. */
typedef bool (*moe_logits_fn)(size_t position, const float *logits, void *user);
MOE_API int moe_session_score(moe_session *session, const int32_t *tokens, size_t n,
                              moe_logits_fn visit, void *user, moe_error *err);

/* Removes everything after the first n tokens (n <= moe_session_n_tokens()), including sampled
 * tokens that have not been taken: moe_session_take() then gives only those before n.
 *
 * A cut to any n works and gives the same text, but its cost differs: layers with an attention
 * window (or chunks) free the keys and values behind the window, and recurrent layers have a state
 * that cannot be cut. In models with windows the last 64 evaluated tokens can be cut off at no
 * cost. For a cut further back, and in models with recurrent layers, the session goes back to a
 * snapshot before n, or to the beginning, and the next step evaluates the tokens from there to n
 * again. A session keeps at most two snapshots of windows and three of states. It takes them where
 * a turn begins (more than one token is fed; the latest such snapshot has priority), and every few
 * hundred tokens. A saved session has no snapshots. All this also holds for moe_session_follow()
 * (moe/chat.h) and for forks that are cut. Rejected drafts are not cuts and cost nothing. */
MOE_API int moe_session_truncate(moe_session *session, size_t n, moe_error *err);
/* Creates a second session with the same timeline, sampling, evaluate_only, biases and reports
 * (moe/sampling.h). The two share KV pages until one of them writes to a page. The sampler's
 * generator continues from the same state in both: to get another text, give the second one another
 * seed with moe_session_set_sampling(). */
MOE_API int moe_session_fork(moe_session **out, moe_session *session, moe_error *err);
/* Changes the sampling from now on; the generator restarts from the new seed. */
MOE_API int moe_session_set_sampling(moe_session *session, const moe_sampling *sampling,
                                     moe_error *err);
/* Saves tokens, KV cache and sampler state, atomically. The file is tied to the model's fingerprint
 * and the KV type; loading it with another model or KV type is MOE_ERR_MISMATCH. Biases and reports
 * (moe/sampling.h) are not saved. The file also says which weights it was computed with: by their
 * checksums, if all are known, and by inode, size and times of the model's files. If neither shows
 * that the weights are the same, moe_session_load() takes only the tokens, all of which are then
 * pending, and logs it. It does the same if the file was computed under lossy modes or
 * MOE_FLOAT_GEMM_BLAS (the file says so) and this engine is without them, or if one of the two has
 * exact attention and the other a GPU's own. Only its owner can read the file. */
MOE_API int moe_session_save(const moe_session *session, const char *path, moe_error *err);
MOE_API int moe_session_load(moe_session **out, moe_engine *engine, const char *path,
                             moe_error *err);
/* Reads the tokens of a saved session (*tokens: moe_free()) without loading it. Fails where
 * moe_session_load() fails, and with MOE_ERR_MISMATCH where moe_session_load() would take only the
 * tokens. Does not read the rest of the file or its checksum. */
MOE_API int moe_session_file_tokens(const char *path, const moe_engine *engine, int32_t **tokens,
                                    size_t *n, moe_error *err);
/* Requests cancellation, from any thread and from signal handlers. The current step, or the next
 * one, leaves the session out within a layer's time, even while it waits for a disk that hangs.
 * Scoring ends with MOE_ERR_CANCELLED. One request cancels one step: the following step includes
 * the session again. */
MOE_API void moe_session_cancel(moe_session *session);
/* True if the last step (or scoring) with this session left it out because it was cancelled. */
MOE_API bool moe_session_was_cancelled(const moe_session *session);

#ifdef __cplusplus
}
#endif

#endif
