/* SPDX-License-Identifier: MIT */
/* The command line: subcommands, their options, and where values go. Everything is in tables:
 * commands in cli_command_table.c, options in cli_option_table.c, which of them needs which in
 * cli_option_rules.c. Parsing, checks, error messages, --help and the manual page's options come
 * from them. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/moe.h>

#include "cli_fail.h"

enum { CLI_EXIT_OK = 0, CLI_EXIT_FAILURE = 1, CLI_EXIT_USAGE = 2, CLI_EXIT_INTERRUPTED = 130 };

/* One bit each, so that an option row can say which commands know it. */
enum {
    CLI_RUN = 1 << 0,
    CLI_TOKENIZE = 1 << 1,
    CLI_LOGITS = 1 << 2,
    CLI_PERPLEXITY = 1 << 3,
    CLI_BENCH_DECODE = 1 << 4,
    CLI_INSPECT = 1 << 5,
    CLI_DEVICES = 1 << 6,
    CLI_PLAN = 1 << 7,
    CLI_BENCH_OFFLOAD = 1 << 8,
    CLI_CALIBRATE = 1 << 9,
    CLI_BENCH_SPECULATE = 1 << 10,
    CLI_BENCH_IO = 1 << 11,
    CLI_BENCH_CACHE = 1 << 12,
    CLI_SIMULATE = 1 << 16,
    CLI_ANALYZE = 1 << 17,
    CLI_CONFIG = 1 << 18, /* one of bench speculate's --configs */
    CLI_VERIFY = 1 << 19,
    CLI_SERVE = 1 << 20,
    CLI_PULL = 1 << 21,
    CLI_LIST = 1 << 22,
    CLI_REMOVE = 1 << 23,
    CLI_SHOW = 1 << 24,
    CLI_REPORT = 1 << 25,
    CLI_WORKER = 1 << 26,
    CLI_SPLIT = 1 << 27
};

/* A size as it was given. If one was given, one of the members is not 0. */
typedef struct cli_size {
    uint64_t bytes;
    double share; /* of the size that the option names, in (0, 1] */
} cli_size;

/* "512M", "1.5G", "123456", "40%". Units are powers of 1024, as in llama.cpp's and the shell's.
 * Returns false if the text is none of these. */
bool cli_size_parse(const char *text, cli_size *size);

/* All values given for an option, with commas between; "": none. */
typedef struct cli_text_list {
    char text[1024];
} cli_text_list;

typedef struct cli_terminal cli_terminal;
struct cli_timeline;

/* The values of --kv, --float-gemm, --prefetch, --host-compute, --warm-start and --foresight have
 * the order of the API's enumerations. */
typedef struct cli_options {
    const char *model;
    const char *hub_model; /* OWNER/REPO[@REVISION][:QUANT]; NULL: none */
    bool offline, dry_run;
    bool model_is_header;   /* no option: the model's file has a header, but no weights */
    const char *disk_cache; /* "DIR:SIZE" or "DIR"; NULL: none */
    moe_read_fn read_file;  /* no option: reads a model that is not completely here; NULL: none */
    void *read_user;
    const char *prompt;
    const char *prompt_file;
    const char *tokens; /* logits: ids as text */
    const char *output; /* logits: the .npy file */
    const char *system_text;
    const char *chat_template;           /* a name or a file; NULL: the model's */
    const char *chat_template_arguments; /* JSON; NULL: none */
    const char *history;                 /* of conversations: a file or "none"; NULL: the default */
    const char *continued;               /* the beginning of the answer; NULL: none */
    unsigned think;                      /* a moe_switch */
    const char *kernels;                 /* NULL: native */
    const char *device;                  /* NULL: the best available */
    const char *offload;                 /* NULL: auto */
    const char *policy;                  /* NULL: the default */
    const char *io;                      /* NULL: auto */
    double io_timeout;                   /* seconds; 0: the default */
    const char *calibration;             /* NULL: beside the model */
    const char *checksums;               /* NULL: beside the model */
    cli_text_list overrides;             /* --override-kv */
    cli_text_list model_copies;          /* --model-copy */
    cli_text_list workers;               /* --workers */
    const char *worker_key;              /* a file; NULL: none */
    const char *worker_listen;           /* NULL: the default */
    const char *worker_share;            /* "2/4"; NULL: all */
    const char *worker_experts;          /* "0-31,3:64"; NULL: those of the share */
    uint64_t worker_rebalance;           /* passes; 0: never */
    uint64_t worker_delay;               /* microseconds */
    unsigned worker_compute;             /* a moe_switch */
    double worker_timeout;               /* seconds; 0: the default */
    bool gram;
    const char *low_bit_type; /* NULL: none */
    /* Speculation and lossy modes; NULL and 0: the library's defaults. */
    const char *speculate;
    const char *acceptance;
    const char *length_control;
    const char *cost;
    const char *draft_pin;
    const char *affinity;
    const char *expert_budget_mode;
    const char *buddy;
    const char *low_bit;
    uint64_t draft_max;
    uint64_t draft_experts;
    uint64_t tree_nodes;
    uint64_t expert_budget;
    cli_size verify_bytes;
    double quality_limit;
    double quality_share;
    unsigned foresight;
    unsigned lookahead_overlap;
    const char *suite;   /* bench speculate: a list of files; NULL: none */
    bool lengths;        /* bench speculate */
    const char *configs; /* bench speculate: a list; NULL: the default */
    const char *batches; /* bench speculate: a list; NULL: 1 */
    double bench_temperature;
    const char *timeline;               /* run: a file; NULL: none */
    struct cli_timeline *timeline_open; /* no option: while it is written; NULL: none */
    const char *trace;                  /* run: written; simulate, analyze: read; NULL: none */
    cli_size host_memory;
    bool overcommit_memory;
    cli_size device_memory;
    cli_size expert_cache;
    bool raw;
    bool chat;
    bool conversation;
    bool single_turn;
    bool ignore_eos;
    bool json;
    bool quiet;
    bool all;
    bool check;              /* inspect */
    const char *program;     /* inspect: "all", or a layer's number; NULL: not printed */
    uint64_t context;        /* 0: the model's (perplexity: 512) */
    uint64_t threads;        /* 0: the cores */
    uint64_t prefill_chunk;  /* 0: the library's default */
    uint64_t panel;          /* 0: the library's default */
    uint64_t panel_others;   /* 0: the library's default */
    int64_t predict;         /* tokens to write; -1: until the end of the text or a full context */
    int64_t seed;            /* -1: a random one */
    const char *tokens_from; /* bench decode: a word or a file; NULL: greedy */
    uint64_t bench_prompt;
    uint64_t bench_parallel;
    uint64_t bench_repeat;
    unsigned kv;
    unsigned float_gemm;
    bool exact_attention;
    unsigned prefetch;
    unsigned host_compute;
    unsigned warm_start;
    unsigned idle_checksums;
    double disk_speed;   /* plan: GB/s; 0: not given */
    bool measure;        /* plan */
    const char *what_if; /* plan; NULL: nothing */
    double temperature;
    uint64_t top_k;
    double top_p;
    double min_p;
    double repeat_penalty;
    double presence_penalty;
    double frequency_penalty;
    cli_text_list logit_biases; /* --logit-bias */
    const char *grammar;        /* files */
    const char *json_schema;
    /* simulate and analyze */
    const char *synthetic;
    const char *route_trace; /* benches: replayed; NULL: none */
    const char *prefetches;  /* bench offload: a list; NULL: auto */
    /* bench io, cache, offload; NULL and 0: the default or none */
    const char *thread_counts; /* lists */
    const char *blocks;
    const char *depths;
    const char *csv;  /* where measurements are kept */
    const char *plot; /* a picture */
    bool resume;
    const char *io_file; /* bench io: instead of a model */
    const char *io_range;
    cli_size bench_bytes;
    double bench_seconds;
    bool buffered_io;
    bool plain_buffers;
    bool small_pages;
    cli_size io_block; /* of the engine */
    uint64_t engine_depth;
    const char *export_path;
    const char *policies;    /* simulate: a list; NULL: all */
    const char *cache_sizes; /* simulate: a list; NULL: the default */
    uint64_t trace_layers;   /* 0: as the file says */
    uint64_t trace_experts;
    uint64_t trace_prompts;
    uint64_t trace_sequences;
    uint64_t trace_prompt_rows;
    uint64_t trace_passes;
    uint64_t warm_up;
    uint64_t expert_bytes;
    uint64_t io_depth;
    uint64_t pair_layer;
    unsigned split;  /* global, per-layer, both */
    unsigned order;  /* engine, sequential */
    unsigned format; /* table, csv, json, gnuplot */
    double calibrate_percent;
    double prefetch_recall; /* -1: no prefetch */
    const char *lookahead;  /* passes, or "recorded"; NULL: no draft */
    double lookahead_stands;
    double lookahead_recall;
    double lookahead_recall_wrong;
    uint64_t host_slots;
    unsigned tiers; /* engine, inclusive, exclusive */
    double link_bandwidth;
    double link_latency;
    double disk_bandwidth;
    double disk_latency;
    double compute_time;
    double load_share;
    /* serve */
    const char *server_host; /* NULL: 127.0.0.1 */
    uint64_t server_port;
    const char *server_keys;      /* a file; NULL: none */
    const char *server_key;       /* keys with commas between; NULL: none */
    cli_text_list server_aliases; /* "": the file's name */
    bool strict_model, strict_fields;
    unsigned server_pooling;  /* a server_pooling */
    const char *cache_folder; /* NULL: none */
    cli_size cache_limit;
    uint64_t server_sessions; /* 0: 4 of serve, 1 of others */
    uint64_t server_memory;   /* no option: what serve takes beside the engine */
    /* For each row of the option table the text that was given, "" for a flag, NULL for none. NULL:
     * nothing was given. cli_options_apply() allocates it; a copy of the options shares it. */
    const char **given;
    char joined[2][4096];   /* values of llama.cpp's names, with their prefixes */
    cli_terminal *terminal; /* set by main(), not by an option; never NULL for a command */
} cli_options;

typedef struct cli_command {
    const char *name;
    const char *word; /* a second word ("bench decode"), or NULL */
    unsigned bit;
    bool needs_model; /* -m, or -hf */
    const char *summary;
    const char *details; /* printed under the options of --help; may be NULL */
} cli_command;

/* Ended by a row without a name; defined in cli_command_table.c. */
extern const cli_command cli_commands[];

/* Parses the arguments after the command's words. Returns true to continue, and the options need
 * cli_options_free(); otherwise *exit_code is main()'s result, and an error or the requested help
 * has been printed. */
bool cli_options_parse(cli_options *options, const cli_command *command, int argc,
                       char *const *argv, int *exit_code);

/* Parses in the same way, on top of the options' current values. What was given before stays with
 * the options that these are a copy of. */
bool cli_options_apply(cli_options *options, const cli_command *command, int argc,
                       char *const *argv, int *exit_code);

/* Frees what the options own, not the texts. */
void cli_options_free(cli_options *options);

#endif
