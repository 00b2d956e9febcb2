/* SPDX-License-Identifier: MIT */
#include "cli_option_table.h"

#define AT(field)   offsetof(cli_options, field)
#define RUNS        (CLI_RUN | CLI_LOGITS | CLI_PERPLEXITY | CLI_BENCH_DECODE)
#define ENGINE      (RUNS | CLI_PLAN)
#define TAKES_TEXT  (CLI_RUN | CLI_TOKENIZE | CLI_LOGITS)
#define LARGEST_INT 9007199254740992.0 /* 2^53: exact as a double */

/* clang-format off */
const cli_option_row cli_option_rows[] = {
    {{"-m", "--model"}, "FILE", "model: a GGUF file (of a split one: any part)",
     .offset = AT(model), .kind = OPTION_TEXT,
     .commands = ENGINE | CLI_TOKENIZE | CLI_INSPECT | CLI_DEVICES},
    {{"-p", "--prompt"}, "TEXT", "the prompt", .offset = AT(prompt), .kind = OPTION_TEXT,
     .commands = TAKES_TEXT},
    {{"-p", "--prompt-tokens"}, "N", "prompt tokens of each sequence (default 512)",
     .offset = AT(bench_prompt), .kind = OPTION_COUNT, .min = 1, .max = INT32_MAX,
     .commands = CLI_BENCH_DECODE},
    {{"-f", "--file"}, "FILE", "read the text from FILE; one newline at its end is dropped",
     .offset = AT(prompt_file), .kind = OPTION_TEXT, .commands = TAKES_TEXT | CLI_PERPLEXITY},
    {{"--tokens"}, "IDS", "token ids instead of a text: \"1 2 3\"", .offset = AT(tokens),
     .kind = OPTION_TEXT, .commands = CLI_LOGITS},
    {{"-o", "--output"}, "FILE.npy", "write float32 [n_tokens][n_vocab] here",
     .offset = AT(output), .kind = OPTION_TEXT, .commands = CLI_LOGITS},
    {{"--raw"}, NULL, "the prompt as it is (default, except in a conversation on a terminal)",
     .offset = AT(raw), .kind = OPTION_FLAG, .commands = TAKES_TEXT},
    {{"--chat"}, NULL, "the prompt as a user's turn, through the model's chat template",
     .offset = AT(chat), .kind = OPTION_FLAG, .commands = TAKES_TEXT},
    {{"--system"}, "TEXT", "a system message before the conversation", .offset = AT(system_text),
     .kind = OPTION_TEXT, .commands = TAKES_TEXT},
    {{"-n", "--predict"}, "N", "tokens to write; -1: until the end or a full context (default -1)",
     .offset = AT(predict), .kind = OPTION_SIGNED, .min = -1, .max = INT32_MAX,
     .commands = CLI_RUN},
    {{"-n", "--predict"}, "N", "tokens to write in each sequence (default 128)",
     .offset = AT(predict), .kind = OPTION_SIGNED, .min = 0, .max = INT32_MAX,
     .commands = CLI_BENCH_DECODE},
    {{"--parallel"}, "N", "sequences decoded as one batch (default 1)",
     .offset = AT(bench_parallel), .kind = OPTION_COUNT, .min = 1, .max = 4096,
     .commands = CLI_BENCH_DECODE},
    {{"--repeat"}, "N", "times to measure (default 5)", .offset = AT(bench_repeat),
     .kind = OPTION_COUNT, .min = 1, .max = 10000, .commands = CLI_BENCH_DECODE},
    {{"-c", "--ctx-size"}, "N", "context: most tokens of the timeline; 0: the model's (default 0)",
     .offset = AT(context), .kind = OPTION_COUNT, .min = 0, .max = INT32_MAX,
     .commands = CLI_RUN | CLI_LOGITS | CLI_PLAN},
    {{"-c", "--ctx-size"}, "N", "context; 0: what the prompt and -n need (default 0)",
     .offset = AT(context), .kind = OPTION_COUNT, .min = 0, .max = INT32_MAX,
     .commands = CLI_BENCH_DECODE},
    {{"-c", "--ctx-size"}, "N", "tokens of a chunk (default 512)", .offset = AT(context),
     .kind = OPTION_COUNT, .min = 8, .max = INT32_MAX, .commands = CLI_PERPLEXITY},
    {{"-t", "--threads"}, "N", "worker threads (default: the physical cores at hand)",
     .offset = AT(threads), .kind = OPTION_COUNT, .min = 1, .max = 1024, .commands = ENGINE},
    {{"-b", "--batch-size"}, "N", "prefill chunk: most rows of one pass (default 256)",
     .offset = AT(prefill_chunk), .kind = OPTION_COUNT, .min = 1, .max = 4096,
     .commands = ENGINE},
    {{"-s", "--seed"}, "SEED", "of the sampler; -1: a random one, told in the statistics "
     "(default -1)", .offset = AT(seed), .kind = OPTION_SIGNED, .min = -1, .max = LARGEST_INT,
     .commands = CLI_RUN},
    {{"-s", "--seed"}, "SEED", "of the random prompt (default 0)", .offset = AT(seed),
     .kind = OPTION_SIGNED, .min = 0, .max = LARGEST_INT, .commands = CLI_BENCH_DECODE},
    {{"--temp"}, "T", "temperature; 0: greedy, top-k, top-p and min-p do nothing (default 0.8)",
     .offset = AT(temperature), .kind = OPTION_REAL, .min = 0, .max = 1000, .commands = CLI_RUN},
    {{"--top-k"}, "K", "keep the K most likely tokens; 0: all (default 40)", .offset = AT(top_k),
     .kind = OPTION_COUNT, .min = 0, .max = INT32_MAX, .commands = CLI_RUN},
    {{"--top-p"}, "P", "keep the fewest tokens of total probability P; 1: all (default 0.95)",
     .offset = AT(top_p), .kind = OPTION_REAL, .min = 0, .min_open = true, .max = 1,
     .commands = CLI_RUN},
    {{"--min-p"}, "P", "drop tokens below P times the likeliest; 0: none (default 0.05)",
     .offset = AT(min_p), .kind = OPTION_REAL, .min = 0, .max = 1, .max_open = true,
     .commands = CLI_RUN},
    {{"--repeat-penalty"}, "R", "weaken tokens of the last 64; 1: off (default 1)",
     .offset = AT(repeat_penalty), .kind = OPTION_REAL, .min = 0, .min_open = true, .max = 1000,
     .commands = CLI_RUN},
    {{"--ignore-eos"}, NULL, "go on after the tokens that end a text", .offset = AT(ignore_eos),
     .kind = OPTION_FLAG, .commands = CLI_RUN},
    {{"--kv"}, "f16|f32|q8_0", "type of the KV cache (default f16)", .offset = AT(kv),
     .kind = OPTION_CHOICE, .commands = ENGINE},
    {{"--device"}, "cpu", "the device tier; this build has the CPU only (default cpu)",
     .offset = AT(device), .kind = OPTION_NAME, .commands = ENGINE},
    {{"--kernels"}, "native|reference|avx2|avx512", "instruction set; the results are the same "
     "(default native)", .offset = AT(kernels), .kind = OPTION_NAME, .commands = ENGINE},
    {{"--float-gemm"}, "exact|blas", "float weights in prefill; blas: last bits may differ "
     "(default exact)", .offset = AT(float_gemm), .kind = OPTION_CHOICE, .commands = ENGINE},
    {{"--host-memory"}, "SIZE", "ceiling on the memory taken: 6G, 800M, or 40% of the model's file "
     "(default: what the machine and its control group leave)", .offset = AT(host_memory),
     .kind = OPTION_SIZE, .commands = ENGINE},
    {{"--expert-cache"}, "SIZE", "memory for experts: 2G, or 25% of all experts (default: what is "
     "left)", .offset = AT(expert_cache), .kind = OPTION_SIZE, .commands = ENGINE},
    {{"--offload"}, "auto|on-demand", "auto: keep experts and read ahead; on-demand: read at use, "
     "keep nothing", .offset = AT(offload), .kind = OPTION_NAME, .commands = ENGINE},
    {{"--policy"}, "NAME", "which expert leaves (default lfru; a wrong name lists them), or a "
     "plug-in's FILE.so",
     .offset = AT(policy), .kind = OPTION_TEXT, .commands = ENGINE},
    {{"--prefetch"}, "auto|on|off", "read the next layer's likely experts ahead (default auto)",
     .offset = AT(prefetch), .kind = OPTION_CHOICE, .commands = ENGINE},
    {{"--io"}, "auto|uring|threads|sync", "how experts are read (default auto)",
     .offset = AT(io), .kind = OPTION_NAME, .commands = ENGINE},
    {{"--all"}, NULL, "every array in full, and every tensor", .offset = AT(all),
     .kind = OPTION_FLAG, .commands = CLI_INSPECT},
    {{"--json"}, NULL, "statistics as one JSON object on stderr, and nothing else there",
     .offset = AT(json), .kind = OPTION_FLAG, .commands = CLI_RUN},
    {{"--json"}, NULL, "the result as one JSON object on stdout", .offset = AT(json),
     .kind = OPTION_FLAG,
     .commands = CLI_TOKENIZE | CLI_PERPLEXITY | CLI_BENCH_DECODE | CLI_INSPECT | CLI_DEVICES |
                 CLI_PLAN},
    {{"--quiet"}, NULL, "no statistics, notes or progress on stderr", .offset = AT(quiet),
     .kind = OPTION_FLAG, .commands = RUNS},
};
/* clang-format on */

const size_t cli_n_option_rows = sizeof cli_option_rows / sizeof cli_option_rows[0];

const cli_options cli_option_defaults = {
    .predict = -1,
    .seed = -1,
    .bench_prompt = 512,
    .bench_parallel = 1,
    .bench_repeat = 5,
    .temperature = 0.8,
    .top_k = 40,
    .top_p = 0.95,
    .min_p = 0.05,
    .repeat_penalty = 1,
};
