/* SPDX-License-Identifier: MIT */
#include "cli_option_table.h"

#include <string.h>

#define AT(field) offsetof(cli_options, field)
#define RUNS      (CLI_RUN | CLI_LOGITS | CLI_PERPLEXITY | CLI_BENCH_DECODE)
#define ENGINE    (RUNS | CLI_PLAN | CLI_CALIBRATE | CLI_CONFIG | CLI_SERVE)
#define MODEL                                                                                      \
    ((ENGINE & ~CLI_CONFIG) | SWEEPS | CLI_VERIFY | CLI_TOKENIZE | CLI_INSPECT | CLI_DEVICES |     \
     CLI_BENCH_SPECULATE | CLI_REPORT | CLI_WORKER | CLI_SPLIT)
#define WORKERS      (RUNS | CLI_SERVE)                                    /* may have them */
#define COMES        ((ENGINE & ~CLI_CONFIG) | CLI_TOKENIZE | CLI_INSPECT) /* as it is read */
#define TAKES_TEXT   (CLI_RUN | CLI_TOKENIZE | CLI_LOGITS)
#define SWEEPS       (CLI_BENCH_IO | CLI_BENCH_CACHE | CLI_BENCH_OFFLOAD)
#define SWEEPS_MODEL (CLI_BENCH_CACHE | CLI_BENCH_OFFLOAD)
#define LOSSY        (CLI_RUN | CLI_PLAN | CLI_PERPLEXITY | CLI_CONFIG)
#define SPECULATES   (CLI_RUN | CLI_PLAN | CLI_CONFIG | CLI_SERVE)
#define TRACES       (CLI_SIMULATE | CLI_ANALYZE)
#define LARGEST_INT  9007199254740992.0 /* 2^53: exact as a double */

/* clang-format off */
const cli_option_row cli_option_rows[] = {
    {{"-m", "--model"}, "FILE", "model: a GGUF file (of a split one: any part; or "
     "its address, with --disk-cache)",
     .offset = AT(model), .kind = OPTION_TEXT,
     .commands = COMES, .subject = SUBJECT_INPUT, .everyday = true},
    {{"-m", "--model"}, "FILE", "model: a GGUF file (of a split one: any part)",
     .offset = AT(model), .kind = OPTION_TEXT,
     .commands = MODEL & ~(COMES), .subject = SUBJECT_INPUT, .everyday = true},
    {{"-hf", "--hf-repo"}, "OWNER/REPO[@REVISION][:QUANT]", "model: by its name on "
     "huggingface.co, which is downloaded unless the cache has it; or OWNER/REPO:FILE.gguf "
     "(default QUANT: Q4_K_M, else the first file; REVISION: main, or a branch, a tag, a commit)",
     .offset = AT(hub_model), .kind = OPTION_TEXT,
     .commands = MODEL | CLI_PULL | CLI_REMOVE | CLI_SHOW, .subject = SUBJECT_INPUT,
     .everyday = true},
    {{"--offline"}, NULL, "do not ask the hub for a model that the cache lacks",
     .offset = AT(offline), .kind = OPTION_FLAG, .commands = MODEL | CLI_SHOW,
     .subject = SUBJECT_INPUT},
    {{"--disk-cache"}, "DIR[:SIZE]", "keep here what was read of a model that -m names by its "
     "address (https://...), of one that -hf names, or of a file on a slower drive, and start "
     "before all of it is here (default SIZE: all of it)", .offset = AT(disk_cache),
     .kind = OPTION_TEXT, .commands = COMES, .subject = SUBJECT_INPUT, .everyday = true},
    {{"--dry-run"}, NULL, "download the header alone; print the files, their sizes, and the plan "
     "of running them here", .offset = AT(dry_run), .kind = OPTION_FLAG, .commands = CLI_PULL,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"-p", "--prompt"}, "TEXT", "the prompt", .offset = AT(prompt), .kind = OPTION_TEXT,
     .commands = TAKES_TEXT, .subject = SUBJECT_INPUT, .everyday = true},
    {{"-p", "--prompt-tokens"}, "N", "prompt tokens of each sequence (default 512)",
     .offset = AT(bench_prompt), .kind = OPTION_COUNT, .min = 1, .max = INT32_MAX,
     .commands = CLI_BENCH_DECODE | SWEEPS_MODEL | CLI_BENCH_SPECULATE,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"-f", "--file"}, "FILE", "the text whose first tokens are the prompt (default: random "
     "tokens)", .offset = AT(prompt_file), .kind = OPTION_TEXT, .commands = SWEEPS_MODEL,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"-f", "--file"}, "FILE", "read the text from FILE; one newline at its end is dropped",
     .offset = AT(prompt_file), .kind = OPTION_TEXT,
     .commands = TAKES_TEXT | CLI_PERPLEXITY | CLI_CALIBRATE | CLI_BENCH_SPECULATE,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"-f", "--file"}, "FILE", "the text to decode (default: what the model writes itself)",
     .offset = AT(prompt_file), .kind = OPTION_TEXT, .commands = CLI_REPORT,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"--tokens"}, "IDS", "token ids instead of a text: \"1 2 3\"", .offset = AT(tokens),
     .kind = OPTION_TEXT, .commands = CLI_LOGITS, .subject = SUBJECT_INPUT, .everyday = true},
    {{"-o", "--output"}, "FILE.npy", "write float32 [n_tokens][n_vocab] here",
     .offset = AT(output), .kind = OPTION_TEXT, .commands = CLI_LOGITS,
     .subject = SUBJECT_RESULTS, .everyday = true},
    {{"-o", "--output"}, "FILE", "the sidecar (default: MODEL.moe-cal.gguf beside MODEL.gguf)",
     .offset = AT(output), .kind = OPTION_TEXT, .commands = CLI_CALIBRATE,
     .subject = SUBJECT_RESULTS, .everyday = true},
    {{"-o", "--output"}, "FILE", "write them here; for a model in N files the name ends in "
     "-00001-of-0000N.gguf", .offset = AT(output), .kind = OPTION_TEXT, .commands = CLI_SPLIT,
     .subject = SUBJECT_RESULTS, .everyday = true},
    {{"-o", "--output"}, "FILE.html", "write the page here", .offset = AT(output),
     .kind = OPTION_TEXT, .commands = CLI_REPORT, .subject = SUBJECT_RESULTS, .everyday = true},
    {{"--gram"}, NULL, "also write Gram matrices of the routers' inputs: n_embd^2 floats a layer",
     .offset = AT(gram), .kind = OPTION_FLAG, .commands = CLI_CALIBRATE,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"--low-bit-type"}, "Q2_K|Q3_K|Q4_0", "also copy every expert in this type, for lossy mode "
     "--low-bit, to a file beside the sidecar", .offset = AT(low_bit_type), .kind = OPTION_NAME,
     .commands = CLI_CALIBRATE, .subject = SUBJECT_INPUT, .everyday = true},
    {{"-n", "--predict"}, "N", "tokens of the text to take (default all)", .offset = AT(predict),
     .kind = OPTION_SIGNED, .min = 1, .max = INT32_MAX, .commands = CLI_CALIBRATE,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"-n", "--predict"}, "N", "tokens to decode in each run (default 256)", .offset = AT(predict),
     .kind = OPTION_SIGNED, .min = 16, .max = INT32_MAX, .commands = CLI_REPORT,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"--raw"}, NULL, "use the prompt unchanged (default, except in a conversation on a terminal)",
     .offset = AT(raw), .kind = OPTION_FLAG, .commands = TAKES_TEXT, .subject = SUBJECT_INPUT},
    {{"--chat"}, NULL, "render the prompt as a user's turn, by the model's chat template",
     .offset = AT(chat), .kind = OPTION_FLAG, .commands = TAKES_TEXT,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"-cnv", "--conversation"}, NULL, "hold a conversation although standard input is no "
     "terminal: each line is a message", .offset = AT(conversation), .kind = OPTION_FLAG,
     .commands = CLI_RUN, .subject = SUBJECT_INPUT, .everyday = true},
    {{"-st", "--single-turn"}, NULL, "answer one message: with a prompt as --chat does, else the "
     "first one of a conversation", .offset = AT(single_turn), .kind = OPTION_FLAG,
     .commands = CLI_RUN, .subject = SUBJECT_INPUT},
    {{"--system"}, "TEXT", "a system message before the conversation", .offset = AT(system_text),
     .kind = OPTION_TEXT, .commands = TAKES_TEXT, .subject = SUBJECT_INPUT, .everyday = true},
    {{"--chat-template"}, "NAME|FILE", "the template of turns: one of the model's or of the "
     "library's by its NAME, or a FILE with a / in its name or ending in .jinja (default: the "
     "model's own)", .offset = AT(chat_template), .kind = OPTION_TEXT,
     .commands = TAKES_TEXT | CLI_SERVE,
     .subject = SUBJECT_INPUT},
    {{"--chat-template-kwargs"}, "JSON", "further variables of the template, as in "
     "'{\"reasoning_effort\": \"low\"}'", .offset = AT(chat_template_arguments),
     .kind = OPTION_TEXT, .commands = TAKES_TEXT, .subject = SUBJECT_INPUT},
    {{"--think"}, "auto|on|off", "whether the model reasons before it answers; auto: as its "
     "template has it (default auto)", .offset = AT(think), .kind = OPTION_CHOICE,
     .commands = TAKES_TEXT | CLI_SERVE, .subject = SUBJECT_INPUT, .everyday = true},
    {{"--continue"}, "TEXT", "what the answer begins with; the model goes on from there",
     .offset = AT(continued), .kind = OPTION_TEXT, .commands = TAKES_TEXT,
     .subject = SUBJECT_INPUT},
    {{"--history"}, "FILE", "keep what is typed in conversations here, for the arrow keys; none: "
     "keep nothing (default: moe-offload/history in $XDG_STATE_HOME, or in ~/.local/state)",
     .offset = AT(history), .kind = OPTION_TEXT, .commands = CLI_RUN, .subject = SUBJECT_INPUT},
    {{"-n", "--predict"}, "N", "tokens to write; -1: until the end or a full context (default -1)",
     .offset = AT(predict), .kind = OPTION_SIGNED, .min = -1, .max = INT32_MAX,
     .commands = CLI_RUN, .subject = SUBJECT_INPUT, .everyday = true},
    {{"-n", "--predict"}, "N", "tokens to write in each sequence (default 128)",
     .offset = AT(predict), .kind = OPTION_SIGNED, .min = 0, .max = INT32_MAX,
     .commands = CLI_BENCH_DECODE | CLI_BENCH_SPECULATE,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"-n", "--predict"}, "N", "tokens to write (default 64)", .offset = AT(predict),
     .kind = OPTION_SIGNED, .min = 1, .max = INT32_MAX, .commands = SWEEPS_MODEL,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"--tokens-from"}, "greedy|sampled|random|FILE", "what decoding reads: what the model writes "
     "after a random prompt, greedily or by sampling, or tokens forced one by one, at random or "
     "from FILE, which holds ids as 'tokenize' prints them, the prompt's first (default greedy)",
     .offset = AT(tokens_from), .kind = OPTION_TEXT, .commands = CLI_BENCH_DECODE,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"--parallel"}, "N", "sequences decoded as one batch (default 1)",
     .offset = AT(bench_parallel), .kind = OPTION_COUNT, .min = 1, .max = 4096,
     .commands = CLI_BENCH_DECODE, .subject = SUBJECT_MEASURING, .everyday = true},
    {{"--parallel"}, "N", "sessions that must fit, each with a full context (default 1)",
     .offset = AT(bench_parallel), .kind = OPTION_COUNT, .min = 1, .max = 4096,
     .commands = CLI_PLAN, .subject = SUBJECT_MEMORY, .everyday = true},
    {{"--parallel"}, "N", "most sessions at a time, each with a full context (default 4)",
     .offset = AT(server_sessions), .kind = OPTION_COUNT, .min = 1, .max = 256,
     .commands = CLI_SERVE, .subject = SUBJECT_MEMORY, .everyday = true},
    {{"--host"}, "ADDRESS", "address to listen on; one that other machines reach needs "
     "--api-key-file (default 127.0.0.1)", .offset = AT(server_host), .kind = OPTION_TEXT,
     .commands = CLI_SERVE, .subject = SUBJECT_SERVING, .everyday = true},
    {{"--port"}, "N", "port to listen on; 0: any that is free (default 8080)",
     .offset = AT(server_port), .kind = OPTION_COUNT, .min = 0, .max = 65535,
     .commands = CLI_SERVE, .subject = SUBJECT_SERVING, .everyday = true},
    {{"--api-key-file"}, "FILE", "keys, one a line; every request but /health must bring one",
     .offset = AT(server_keys), .kind = OPTION_TEXT, .commands = CLI_SERVE,
     .subject = SUBJECT_SERVING, .everyday = true},
    {{"--api-key"}, "KEY", "a key, or several with commas between; other users of the machine can "
     "see it: --api-key-file keeps it to itself", .offset = AT(server_key), .kind = OPTION_TEXT,
     .commands = CLI_SERVE, .subject = SUBJECT_SERVING},
    {{"--cache-dir"}, "FOLDER", "keep finished prompts here, so that one that begins likewise "
     "goes on from there, also after a restart; nobody else should be able to read it "
     "(default: none)",
     .offset = AT(cache_folder), .kind = OPTION_TEXT, .commands = CLI_SERVE,
     .subject = SUBJECT_SERVING, .everyday = true},
    {{"--cache-dir"}, "FOLDER", "check the prompts that 'serve' keeps here",
     .offset = AT(cache_folder), .kind = OPTION_TEXT, .commands = CLI_VERIFY,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"--cache-dir-size"}, "SIZE", "the most that its files have together (default 8G)",
     .offset = AT(cache_limit), .kind = OPTION_SIZE, .no_share = true, .commands = CLI_SERVE,
     .subject = SUBJECT_SERVING},
    {{"--alias"}, "NAME", "the model's name in answers; may be repeated, or list several with "
     "commas between: all are listed, and the first is in answers (default: that of its file)",
     .offset = AT(server_aliases), .kind = OPTION_LIST, .commands = CLI_SERVE,
     .subject = SUBJECT_SERVING, .everyday = true},
    {{"--strict-model"}, NULL, "refuse requests that name another model than this one",
     .offset = AT(strict_model), .kind = OPTION_FLAG, .commands = CLI_SERVE,
     .subject = SUBJECT_SERVING},
    {{"--strict-fields"}, NULL, "refuse requests with fields that are not known, which are else "
     "left out with a word in the log", .offset = AT(strict_fields), .kind = OPTION_FLAG,
     .commands = CLI_SERVE, .subject = SUBJECT_SERVING},
    {{"--pooling"}, "mean|last|none", "what an embedding is made of: the mean of the text's hidden "
     "states, or the last one; none: /embedding gives all of them (default mean)",
     .offset = AT(server_pooling), .kind = OPTION_CHOICE, .commands = CLI_SERVE,
     .subject = SUBJECT_SERVING},
    {{"--repeat"}, "N", "times to measure (default 5)", .offset = AT(bench_repeat),
     .kind = OPTION_COUNT, .min = 1, .max = 10000,
     .commands = CLI_BENCH_DECODE | CLI_BENCH_SPECULATE | SWEEPS,
     .subject = SUBJECT_MEASURING, .everyday = true},
    {{"-c", "--ctx-size"}, "N",
     "context: most tokens of the timeline; 0: the model's, or as many as fit (default 0)",
     .offset = AT(context), .kind = OPTION_COUNT, .min = 0, .max = INT32_MAX,
     .commands = CLI_RUN | CLI_LOGITS | CLI_PLAN | CLI_SERVE | CLI_REPORT,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"-c", "--ctx-size"}, "N", "context; 0: what the prompt and -n need (default 0)",
     .offset = AT(context), .kind = OPTION_COUNT, .min = 0, .max = INT32_MAX,
     .commands = CLI_BENCH_DECODE, .subject = SUBJECT_INPUT, .everyday = true},
    {{"-c", "--ctx-size"}, "N", "tokens of a chunk (default 512)", .offset = AT(context),
     .kind = OPTION_COUNT, .min = 8, .max = INT32_MAX, .commands = CLI_PERPLEXITY,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"--override-kv"}, "KEY=TYPE:VALUE", "replaces the file's metadata; TYPE is int, float, "
     "bool or str; may be repeated, or list several with commas between", .offset = AT(overrides),
     .kind = OPTION_LIST, .commands = CLI_RUN | CLI_TOKENIZE | CLI_LOGITS | CLI_PERPLEXITY |
     CLI_PLAN | CLI_CALIBRATE | CLI_BENCH_DECODE | CLI_SERVE, .subject = SUBJECT_INPUT},
    {{"--model-copy"}, "FILE", "the model once more, on another drive: each piece of an expert is "
     "read from the drive that will have it soonest; may be repeated, or list several with commas "
     "between", .offset = AT(model_copies), .kind = OPTION_LIST, .commands = ENGINE | CLI_WORKER,
     .subject = SUBJECT_READING, .everyday = true},
    {{"--model-copy"}, "FILE", "compare this copy with the model; may be repeated, or list several "
     "with commas between", .offset = AT(model_copies), .kind = OPTION_LIST,
     .commands = CLI_VERIFY, .subject = SUBJECT_READING, .everyday = true},
    {{"--model-copy"}, "FILE", "measure this copy of the file, too, and all of them together; may "
     "be repeated, or list several with commas between", .offset = AT(model_copies),
     .kind = OPTION_LIST, .commands = CLI_BENCH_IO, .subject = SUBJECT_READING, .everyday = true},
    {{"-t", "--threads"}, "N", "worker threads (default: the physical cores available)",
     .offset = AT(threads), .kind = OPTION_COUNT, .min = 1, .max = 1024,
     .commands = ENGINE | CLI_WORKER | CLI_BENCH_CACHE | CLI_BENCH_SPECULATE | CLI_REPORT,
     .subject = SUBJECT_COMPUTING, .everyday = true},
    {{"-t", "--threads"}, "LIST", "numbers of worker threads (default: the physical cores "
     "available)",
     .offset = AT(thread_counts), .kind = OPTION_TEXT, .commands = CLI_BENCH_OFFLOAD,
     .subject = SUBJECT_COMPUTING, .everyday = true},
    {{"-b", "--batch-size"}, "N", "prefill chunk: most rows of one pass (default 512, or "
     "fewer where memory is short)",
     .offset = AT(prefill_chunk), .kind = OPTION_COUNT, .min = 1, .max = 4096,
     .commands = ENGINE | CLI_WORKER | CLI_BENCH_SPECULATE, .subject = SUBJECT_COMPUTING},
    {{"--panel"}, "N", "most rows of a long prompt that go through each layer together, so that "
     "its experts are read once for all of them; not above -b: none (default: what a part of "
     "the memory for experts holds)",
     .offset = AT(panel), .kind = OPTION_COUNT, .min = 1, .max = UINT32_MAX,
     .commands = ENGINE & ~CLI_CALIBRATE, .subject = SUBJECT_COMPUTING},
    {{"--panel-others"}, "PERCENT", "of the time that other clients have while a long prompt goes "
     "through the layers, 1..99 (default 20)",
     .offset = AT(panel_others), .kind = OPTION_COUNT, .min = 1, .max = 99,
     .commands = CLI_SERVE, .subject = SUBJECT_COMPUTING},
    {{"-s", "--seed"}, "SEED", "of the sampler; -1: a random one, shown in the statistics "
     "(default -1)", .offset = AT(seed), .kind = OPTION_SIGNED, .min = -1, .max = LARGEST_INT,
     .commands = CLI_RUN, .subject = SUBJECT_SAMPLING, .everyday = true},
    {{"-s", "--seed"}, "SEED", "of random tokens and of sampling (default 0)", .offset = AT(seed),
     .kind = OPTION_SIGNED, .min = 0, .max = LARGEST_INT, .commands = CLI_BENCH_DECODE,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"-s", "--seed"}, "SEED", "of sampling: the first sequence's, the next one has the next "
     "(default 0)", .offset = AT(seed), .kind = OPTION_SIGNED, .min = 0, .max = LARGEST_INT,
     .commands = CLI_BENCH_SPECULATE, .subject = SUBJECT_MEASURING, .everyday = true},
    {{"-s", "--seed"}, "SEED", "of the random prompt (default 0)", .offset = AT(seed),
     .kind = OPTION_SIGNED, .min = 0, .max = LARGEST_INT, .commands = SWEEPS_MODEL,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"-s", "--seed"}, "SEED", "of the random ranges (default 0)", .offset = AT(seed),
     .kind = OPTION_SIGNED, .min = 0, .max = LARGEST_INT, .commands = CLI_BENCH_IO,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"--temp"}, "T", "temperature; 0: greedy (default 0.8)",
     .offset = AT(temperature), .kind = OPTION_REAL, .min = 0, .max = 1000, .commands = CLI_RUN,
     .subject = SUBJECT_SAMPLING, .everyday = true},
    {{"--top-k"}, "K", "keep the K most likely tokens; 0: all (default 40)", .offset = AT(top_k),
     .kind = OPTION_COUNT, .min = 0, .max = INT32_MAX, .commands = CLI_RUN,
     .subject = SUBJECT_SAMPLING, .everyday = true},
    {{"--top-p"}, "P", "keep the fewest tokens of total probability P; 1: all (default 0.95)",
     .offset = AT(top_p), .kind = OPTION_REAL, .min = 0, .min_open = true, .max = 1,
     .commands = CLI_RUN, .subject = SUBJECT_SAMPLING, .everyday = true},
    {{"--min-p"}, "P", "drop tokens below P times the likeliest; 0: none (default 0.05)",
     .offset = AT(min_p), .kind = OPTION_REAL, .min = 0, .max = 1, .max_open = true,
     .commands = CLI_RUN, .subject = SUBJECT_SAMPLING},
    {{"--repeat-penalty"}, "R", "weaken tokens of the last 64; 1: off (default 1)",
     .offset = AT(repeat_penalty), .kind = OPTION_REAL, .min = 0, .min_open = true, .max = 1000,
     .commands = CLI_RUN, .subject = SUBJECT_SAMPLING},
    {{"--presence-penalty"}, "P", "subtracted from the logits of tokens among the last 64; 0: off "
     "(default 0)", .offset = AT(presence_penalty), .kind = OPTION_REAL, .min = -1000, .max = 1000,
     .commands = CLI_RUN, .subject = SUBJECT_SAMPLING},
    {{"--frequency-penalty"}, "P", "subtracted for each time that a token is among the last 64; "
     "0: off (default 0)", .offset = AT(frequency_penalty), .kind = OPTION_REAL, .min = -1000,
     .max = 1000, .commands = CLI_RUN, .subject = SUBJECT_SAMPLING},
    {{"--logit-bias"}, "ID+B|ID-B|ID-inf", "add B to a token's logit, or never choose it; may be "
     "repeated, or list several with commas between", .offset = AT(logit_biases),
     .kind = OPTION_LIST, .commands = CLI_RUN, .subject = SUBJECT_SAMPLING},
    {{"--grammar"}, "FILE", "hold the answer to a grammar in GBNF; a text with ::= in it is the "
     "grammar itself", .offset = AT(grammar),
     .kind = OPTION_TEXT, .commands = CLI_RUN, .subject = SUBJECT_SAMPLING},
    {{"--json-schema"}, "FILE", "hold the answer to a JSON schema ({} is any JSON); a text that "
     "begins with { is the schema itself",
     .offset = AT(json_schema), .kind = OPTION_TEXT, .commands = CLI_RUN,
     .subject = SUBJECT_SAMPLING, .everyday = true},
    {{"--ignore-eos"}, NULL, "continue after the tokens that end a text", .offset = AT(ignore_eos),
     .kind = OPTION_FLAG, .commands = CLI_RUN, .subject = SUBJECT_SAMPLING},
    {{"--kv"}, "f16|f32|q8_0|q4_0|f8", "type of the KV cache (default f16)", .offset = AT(kv),
     .kind = OPTION_CHOICE, .commands = ENGINE | CLI_BENCH_SPECULATE,
     .subject = SUBJECT_COMPUTING, .everyday = true},
    {{"--device"}, "auto|cpu|cuda[:N]|sim:...", "the device tier; sim:memory=2G,link=16GB/s,"
     "latency=10us simulates memory behind a link (default auto: a GPU if there is one)",
     .offset = AT(device), .kind = OPTION_TEXT,
     .commands = ENGINE | CLI_WORKER | CLI_BENCH_SPECULATE, .subject = SUBJECT_COMPUTING,
     .everyday = true},
    {{"--kernels"}, "native|reference|avx2|avx512", "instruction set; the results are the same "
     "(default native)", .offset = AT(kernels), .kind = OPTION_NAME,
     .commands = ENGINE | CLI_WORKER | CLI_BENCH_SPECULATE, .subject = SUBJECT_COMPUTING},
    {{"--float-gemm"}, "exact|blas", "float weights in prefill; blas: last bits may differ "
     "(default exact)", .offset = AT(float_gemm), .kind = OPTION_CHOICE, .commands = ENGINE,
     .subject = SUBJECT_COMPUTING},
    {{"--exact-attention"}, NULL, "attention on a GPU with the bits of the CPU, without matrix "
     "units: slower for long prompts", .offset = AT(exact_attention), .kind = OPTION_FLAG,
     .commands = ENGINE | CLI_BENCH_SPECULATE, .subject = SUBJECT_COMPUTING},
    {{"--host-memory"}, "SIZE", "limit of the memory taken: 6G, 800M, or 40% of the model's file "
     "(default: what the machine and its control group leave)", .offset = AT(host_memory),
     .kind = OPTION_SIZE, .commands = ENGINE | CLI_WORKER | CLI_BENCH_SPECULATE | CLI_REPORT,
     .subject = SUBJECT_MEMORY, .everyday = true},
    {{"--overcommit-memory"}, NULL, "take a --host-memory above what the machine or its control "
     "group has; the kernel may then swap, or kill the process", .offset = AT(overcommit_memory),
     .kind = OPTION_FLAG, .commands = ENGINE | CLI_WORKER | CLI_BENCH_SPECULATE,
     .subject = SUBJECT_MEMORY},
    {{"--device-memory"}, "SIZE", "limit of the memory taken on a device with its own memory "
     "(default: all of it)", .offset = AT(device_memory), .kind = OPTION_SIZE,
     .commands = ENGINE | CLI_WORKER | CLI_BENCH_SPECULATE, .subject = SUBJECT_MEMORY,
     .everyday = true},
    {{"--expert-cache"}, "SIZE", "memory for experts: 2G, or 25% of all experts (default: the "
     "rest)", .offset = AT(expert_cache), .kind = OPTION_SIZE,
     .commands = (ENGINE & ~CLI_CONFIG) | CLI_WORKER,
     .subject = SUBJECT_MEMORY, .everyday = true},
    {{"--offload"}, "auto|on-demand|overlap|caching", "auto: keep experts and read ahead; "
     "baselines: on-demand: fetch at use, keep nothing; overlap: likewise, but an oracle names the "
     "next layer's experts; caching: keep the tenth of each layer that calibration found hottest",
     .offset = AT(offload), .kind = OPTION_NAME, .commands = ENGINE | CLI_BENCH_SPECULATE,
     .subject = SUBJECT_MEMORY},
    {{"--policy"}, "NAME", "which expert is evicted (default lfru; an unknown name lists all), "
     "or a plug-in's FILE.so",
     .offset = AT(policy), .kind = OPTION_TEXT,
     .commands = ENGINE | CLI_WORKER | CLI_BENCH_SPECULATE,
     .subject = SUBJECT_MEMORY},
    {{"--calibration"}, "FILE", "the sidecar of 'calibrate'; none: use none (default: the one "
     "beside the model, if there is one)", .offset = AT(calibration), .kind = OPTION_TEXT,
     .commands = ENGINE | CLI_WORKER | CLI_BENCH_SPECULATE | CLI_VERIFY, .subject = SUBJECT_MEMORY},
    {{"--calibration"}, "FILE", "the sidecar of 'calibrate', for policies that need it (default "
     "none)",
     .offset = AT(calibration), .kind = OPTION_TEXT, .commands = SWEEPS_MODEL,
     .subject = SUBJECT_MEMORY},
    {{"--checksums"}, "FILE", "keeps checksums of the weights, made while these are first read; "
     "none: keep none (default MODEL.moe-sums beside the model)", .offset = AT(checksums),
     .kind = OPTION_TEXT, .commands = ENGINE | CLI_WORKER | CLI_BENCH_SPECULATE | CLI_VERIFY,
     .subject = SUBJECT_READING},
    {{"--idle-checksums"}, "auto|on|off", "read what has no checksum yet while nothing else is "
     "done; auto: if a file keeps them (default auto)", .offset = AT(idle_checksums),
     .kind = OPTION_CHOICE, .commands = CLI_RUN | CLI_SERVE, .subject = SUBJECT_READING},
    {{"--prefetch"}, "auto|on|off", "read the next layer's likely experts ahead (default auto)",
     .offset = AT(prefetch), .kind = OPTION_CHOICE, .commands = ENGINE | CLI_BENCH_SPECULATE,
     .subject = SUBJECT_MEMORY},
    {{"--warm-start"}, "auto|on|off", "fill the expert cache with the sidecar's hottest experts "
     "while nothing else is read, or with all if they fit; auto: if there is a sidecar or all fit "
     "(default auto)",
     .offset = AT(warm_start), .kind = OPTION_CHOICE,
     .commands = CLI_RUN | CLI_BENCH_DECODE | CLI_CONFIG | CLI_SERVE | CLI_PERPLEXITY,
     .subject = SUBJECT_MEMORY},
    {{"--workers"}, "HOST:PORT", "let workers (moe-offload worker) compute experts that miss; may "
     "be repeated, or list several with commas between", .offset = AT(workers),
     .kind = OPTION_LIST, .commands = WORKERS, .subject = SUBJECT_COMPUTING, .everyday = true},
    {{"--workers"}, "HOST:PORT", "ask these workers what they hold and how fast they answer, and "
     "say whether they pay; may be repeated, or list several with commas between",
     .offset = AT(workers), .kind = OPTION_LIST, .commands = CLI_PLAN,
     .subject = SUBJECT_COMPUTING, .everyday = true},
    {{"--worker-compute"}, "auto|on", "which missing experts workers compute: those that are done "
     "sooner there, or all that a worker has (default auto)", .offset = AT(worker_compute),
     .kind = OPTION_CHOICE, .commands = WORKERS, .subject = SUBJECT_COMPUTING},
    {{"--worker-timeout"}, "SECONDS", "without an answer for so long, a worker is left out and its "
     "experts are computed here (default 10)", .offset = AT(worker_timeout), .kind = OPTION_REAL,
     .min = 0, .min_open = true, .max = 86400, .commands = WORKERS | CLI_PLAN,
     .subject = SUBJECT_COMPUTING},
    {{"--worker-delay"}, "MICROSECONDS", "for experiments: take each answer of a worker so much "
     "later, as over a slower network", .offset = AT(worker_delay), .kind = OPTION_COUNT, .min = 1,
     .max = 1000000, .commands = WORKERS | CLI_PLAN, .subject = SUBJECT_COMPUTING},
    {{"--rebalance"}, "PASSES", "after so many passes each time, tell workers which experts to "
     "have: by how often they are asked for, and by how fast each worker is (default: never)",
     .offset = AT(worker_rebalance), .kind = OPTION_COUNT, .min = 1, .max = 1000000000,
     .commands = WORKERS, .subject = SUBJECT_COMPUTING},
    {{"--worker-key"}, "FILE", "the key that workers and their users share: any bytes, the same at "
     "both ends; needed for workers that other machines can reach", .offset = AT(worker_key),
     .kind = OPTION_TEXT, .commands = WORKERS | CLI_PLAN | CLI_WORKER,
     .subject = SUBJECT_COMPUTING},
    {{"--listen"}, "HOST:PORT", "where to wait for jobs; port 0: any that is free (default "
     "127.0.0.1:7070)", .offset = AT(worker_listen), .kind = OPTION_TEXT, .commands = CLI_WORKER,
     .subject = SUBJECT_SERVING, .everyday = true},
    {{"--share"}, "I/N", "compute the I-th of N parts of the experts (default: all of them)",
     .offset = AT(worker_share), .kind = OPTION_TEXT, .commands = CLI_WORKER,
     .subject = SUBJECT_SERVING, .everyday = true},
    {{"--share"}, "I/N", "write the I-th of N parts of the experts", .offset = AT(worker_share),
     .kind = OPTION_TEXT, .commands = CLI_SPLIT, .subject = SUBJECT_RESULTS, .everyday = true},
    {{"--experts"}, "LIST", "of these experts instead: numbers and ranges, of all layers or of "
     "those before a colon, such as 0-31,64 or 3-5:0-63", .offset = AT(worker_experts),
     .kind = OPTION_TEXT, .commands = CLI_WORKER | CLI_SPLIT, .subject = SUBJECT_SERVING,
     .everyday = true},
    {{"--host-compute"}, "auto|on|off", "compute missing experts in host memory instead of moving "
     "them; auto: as many as is faster (default auto)", .offset = AT(host_compute),
     .kind = OPTION_CHOICE, .commands = ENGINE | CLI_WORKER | CLI_BENCH_SPECULATE,
     .subject = SUBJECT_COMPUTING},
    {{"--speculate"}, "off|auto|ngram|self|mtp|mtp:FILE|auto:FILE|model:FILE",
     "draft tokens and verify several in one pass; the text does not change. auto: by the text's "
     "own n-grams, else by the experts in memory, each only while it pays; mtp: by the model's "
     "drafting layer, or mtp:FILE by that of a file, or an EAGLE-3 head, which auto:FILE uses, too "
     "(default auto; off in the baselines of --offload)",
     .offset = AT(speculate), .kind = OPTION_NAME, .commands = SPECULATES,
     .subject = SUBJECT_SPECULATION, .everyday = true},
    {{"--draft-max"}, "N", "most tokens drafted in a row (default 8)", .offset = AT(draft_max),
     .kind = OPTION_COUNT, .min = 1, .max = 63, .commands = SPECULATES,
     .subject = SUBJECT_SPECULATION},
    {{"--tree"}, "N", "drafted tokens of a branching tree (default: chains)",
     .offset = AT(tree_nodes), .kind = OPTION_COUNT, .min = 1, .max = 511, .commands = SPECULATES,
     .subject = SUBJECT_SPECULATION},
    {{"--acceptance"}, "exact|rejection", "when a drafted token is accepted: if the sampler "
     "chooses it, or, above temperature 0, by rejection sampling, which changes the text of a seed "
     "(default exact)",
     .offset = AT(acceptance), .kind = OPTION_NAME, .commands = SPECULATES,
     .subject = SUBJECT_SPECULATION},
    {{"--length-control"}, "survival|cascade|static", "how long drafts are: by measured cost and "
     "acceptance, by the Cascade paper's controller (for ablations cascade:t=2,trials=4,set=8,"
     "refresh=100 and back-off=off,early-exit=off,disable=off,climb=off), or always "
     "--draft-max (default survival)", .offset = AT(length_control), .kind = OPTION_TEXT,
     .commands = SPECULATES, .subject = SUBJECT_SPECULATION},
    {{"--cost"}, "time|bytes", "the cost that prices drafts; bytes: modelled, the same on every "
     "machine (default time)", .offset = AT(cost), .kind = OPTION_NAME, .commands = SPECULATES,
     .subject = SUBJECT_SPECULATION},
    {{"--draft-experts"}, "N", "self draft: experts of a layer that it uses and keeps (default: "
     "all that are in memory)", .offset = AT(draft_experts), .kind = OPTION_COUNT, .min = 1,
     .max = 4096, .commands = SPECULATES, .subject = SUBJECT_SPECULATION},
    {{"--draft-pin"}, "hot-temporal|hot-global|random", "which experts those are (default "
     "hot-temporal)",
     .offset = AT(draft_pin), .kind = OPTION_NAME, .commands = SPECULATES,
     .subject = SUBJECT_SPECULATION},
    {{"--affinity"}, "topk|output|weight|coact|router|shuffled|random|none", "self draft: what "
     "replaces an expert that is not in memory; topk: the router's next best that is (default "
     "topk)",
     .offset = AT(affinity), .kind = OPTION_NAME, .commands = SPECULATES,
     .subject = SUBJECT_SPECULATION},
    {{"--lookahead"}, "N", "a draft tells the expert cache what this token and N more will use, up "
     "to 15 (simulate: up to 31, or recorded, as in the run that wrote the trace); nothing is then "
     "drafted to be verified unless --speculate says so (default: no such draft)",
     .offset = AT(lookahead), .kind = OPTION_TEXT,
     .commands = SPECULATES | CLI_SIMULATE | CLI_BENCH_DECODE | CLI_PERPLEXITY,
     .subject = SUBJECT_SPECULATION},
    {{"--lookahead-overlap"}, "auto|on|off", "that draft runs while passes wait for experts, or "
     "before them (default auto: while they wait, except with --cost bytes or --trace, whose runs "
     "repeat themselves to the byte)",
     .offset = AT(lookahead_overlap), .kind = OPTION_CHOICE,
     .commands = SPECULATES | CLI_BENCH_DECODE | CLI_PERPLEXITY, .subject = SUBJECT_SPECULATION},
    {{"--foresight"}, "auto|on|off", "prefetch what the self draft's routers chose (default "
     "auto: on)",
     .offset = AT(foresight), .kind = OPTION_CHOICE, .commands = SPECULATES,
     .subject = SUBJECT_SPECULATION},
    {{"--verify-bytes"}, "SIZE", "shorten a self draft whose verification would move more than "
     "this (default: no limit)", .offset = AT(verify_bytes), .kind = OPTION_SIZE, .no_share = true,
     .commands = SPECULATES, .subject = SUBJECT_SPECULATION},
    {{"--expert-budget"}, "N", "LOSSY: at most N experts of a layer in a pass that writes "
     "(default: off)", .offset = AT(expert_budget), .kind = OPTION_COUNT, .min = 1, .max = 4096,
     .commands = LOSSY, .subject = SUBJECT_LOSSY},
    {{"--expert-budget-mode"}, "LIST", "router or static, substitute or truncate, free (resident "
     "experts do not count) (default router,substitute); for analysis, and slow: oracle (ranks by "
     "the experts' true contributions), error (measures the output's error)",
     .offset = AT(expert_budget_mode), .kind = OPTION_TEXT, .commands = LOSSY,
     .subject = SUBJECT_LOSSY},
    {{"--buddy"}, "off|on|SETTINGS", "LOSSY: resident buddies in place of missing experts; "
     "rho=3,alpha=0.95,max=4,tae=15,beta=1,weight=own,missing=fetch, or random (default off)",
     .offset = AT(buddy), .kind = OPTION_TEXT, .commands = LOSSY, .subject = SUBJECT_LOSSY},
    {{"--low-bit"}, "off|on|SETTINGS", "LOSSY: low-bit copies in place of missing experts "
     "(calibrate --low-bit-type makes them); below=1 (only for experts with less of the router's "
     "weight), share=0.5 (of the experts' memory, for copies) (default off)",
     .offset = AT(low_bit), .kind = OPTION_TEXT, .commands = LOSSY, .subject = SUBJECT_LOSSY},
    {{"--quality-limit"}, "KL", "turn lossy modes off when their mean KL to the exact pass exceeds "
     "this, in nats (default: no limit)", .offset = AT(quality_limit), .kind = OPTION_REAL,
     .min = 0, .min_open = true, .max = 1000, .commands = LOSSY, .subject = SUBJECT_LOSSY},
    {{"--quality-share"}, "F", "share of the lossy passes compared with the exact one (default "
     "0.02)", .offset = AT(quality_share), .kind = OPTION_REAL, .min = 0, .min_open = true,
     .max = 1, .commands = LOSSY, .subject = SUBJECT_LOSSY},
    {{"--io"}, "auto|uring|threads|sync", "how experts are read (default auto)",
     .offset = AT(io), .kind = OPTION_NAME,
     .commands = ENGINE | CLI_WORKER | CLI_BENCH_SPECULATE | CLI_VERIFY,
     .subject = SUBJECT_READING},
    {{"--io-block"}, "SIZE", "experts are read in pieces of at most so many bytes (default 1M)",
     .offset = AT(io_block), .kind = OPTION_SIZE, .no_share = true, .min = 4096, .max = 64 << 20,
     .step = 4096, .commands = ENGINE | CLI_WORKER, .subject = SUBJECT_READING},
    {{"--io-depth"}, "N", "pieces in flight (default 16)", .offset = AT(engine_depth),
     .kind = OPTION_COUNT, .min = 1, .max = 1024, .commands = ENGINE | CLI_WORKER,
     .subject = SUBJECT_READING},
    {{"--io-timeout"}, "SECONDS", "fail when disk or device deliver no byte for so long "
     "(default 30)", .offset = AT(io_timeout), .kind = OPTION_REAL, .min = 0, .min_open = true,
     .max = 86400, .commands = ENGINE | CLI_WORKER | CLI_BENCH_SPECULATE | CLI_VERIFY,
     .subject = SUBJECT_READING},
    {{"--trace"}, "FILE", "record every token's experts here, one JSON object a line",
     .offset = AT(trace), .kind = OPTION_TEXT, .commands = RUNS, .subject = SUBJECT_RESULTS},
    {{"--timeline"}, "FILE", "write how long every step waited for experts and computed, as a "
     "trace for Perfetto or Chrome (JSON)", .offset = AT(timeline), .kind = OPTION_TEXT,
     .commands = CLI_RUN, .subject = SUBJECT_RESULTS},
    {{"--all"}, NULL, "every array in full, and every tensor", .offset = AT(all),
     .kind = OPTION_FLAG, .commands = CLI_INSPECT, .subject = SUBJECT_RESULTS},
    {{"--program"}, "all|LAYER", "print instead what is computed for a token: of all layers, those "
     "that are alike once, or of one", .offset = AT(program), .kind = OPTION_TEXT,
     .commands = CLI_INSPECT, .subject = SUBJECT_RESULTS},
    {{"--check"}, NULL, "exit with 1, and say why, if the engine cannot run this file",
     .offset = AT(check), .kind = OPTION_FLAG, .commands = CLI_INSPECT, .subject = SUBJECT_RESULTS},
    {{"--measure"}, NULL, "measure to predict the speed: opens the model, decodes some tokens and "
     "reads from its storage, for some seconds", .offset = AT(measure), .kind = OPTION_FLAG,
     .commands = CLI_PLAN, .subject = SUBJECT_MEASURING, .everyday = true},
    {{"--disk"}, "GB/S", "predict the speed with this bandwidth of the storage, in 10^9 bytes/s",
     .offset = AT(disk_speed), .kind = OPTION_REAL, .min = 0, .min_open = true, .max = 1e6,
     .commands = CLI_PLAN, .subject = SUBJECT_MEASURING, .everyday = true},
    {{"--trace"}, "FILE", "a routing that 'run --trace' recorded: hits are simulated on it, and "
     "the predicted speed has a range", .offset = AT(trace), .kind = OPTION_TEXT,
     .commands = CLI_PLAN, .subject = SUBJECT_MEASURING, .everyday = true},
    {{"--what-if"}, "LIST", "also predict the speed of another machine: some of host-memory=64G, "
     "device-memory=24G, disk=7GB/s, link=25GB/s, with commas between", .offset = AT(what_if),
     .kind = OPTION_TEXT, .commands = CLI_PLAN, .subject = SUBJECT_MEASURING, .everyday = true},
    {{"--json"}, NULL, "statistics as one JSON object on stderr, and nothing else there",
     .offset = AT(json), .kind = OPTION_FLAG, .commands = CLI_RUN,
     .subject = SUBJECT_RESULTS, .everyday = true},
    {{"--json"}, NULL, "the result as one JSON object on stdout", .offset = AT(json),
     .kind = OPTION_FLAG,
     .commands = CLI_TOKENIZE | CLI_PERPLEXITY | CLI_BENCH_DECODE | CLI_INSPECT | CLI_DEVICES |
                 CLI_PLAN | TRACES | SWEEPS | CLI_BENCH_SPECULATE | CLI_VERIFY | CLI_LIST |
                 CLI_SHOW, .subject = SUBJECT_RESULTS, .everyday = true},
    {{"--quiet"}, NULL, "no statistics, notes or progress on stderr", .offset = AT(quiet),
     .kind = OPTION_FLAG,
     .commands = RUNS | CLI_CALIBRATE | CLI_VERIFY | CLI_SERVE | CLI_PULL | CLI_REMOVE |
                 CLI_REPORT,
     .subject = SUBJECT_RESULTS, .everyday = true},
    {{"--trace"}, "FILE", "routing trace: JSON lines, or NAME.oracleGeneral of libCacheSim",
     .offset = AT(trace), .kind = OPTION_TEXT, .commands = TRACES,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"--synthetic"}, "olmoe|qwen3|512|kimi|flame", "a generated trace that resembles such a model",
     .offset = AT(synthetic), .kind = OPTION_NAME, .commands = TRACES, .subject = SUBJECT_INPUT},
    {{"--layers"}, "N", "layers of the trace, if the file does not say", .kind = OPTION_COUNT,
     .offset = AT(trace_layers), .min = 1, .max = 4096, .commands = TRACES,
     .subject = SUBJECT_INPUT},
    {{"--experts"}, "N", "experts of a layer (default: as the file says, or the largest id + 1)",
     .offset = AT(trace_experts), .kind = OPTION_COUNT, .min = 1, .max = 4096, .commands = TRACES,
     .subject = SUBJECT_INPUT},
    {{"-n", "--predict"}, "N", "synthetic: passes of a token after each prompt (default 512)",
     .offset = AT(trace_passes), .kind = OPTION_COUNT, .min = 1, .max = 1000000,
     .commands = TRACES, .subject = SUBJECT_INPUT, .everyday = true},
    {{"--prompts"}, "N", "synthetic: prompts one after the other (default 1)",
     .offset = AT(trace_prompts), .kind = OPTION_COUNT, .min = 1, .max = 1000000,
     .commands = TRACES, .subject = SUBJECT_INPUT},
    {{"--prompt-tokens"}, "N", "synthetic: tokens of the pass that begins a prompt (default 0)",
     .offset = AT(trace_prompt_rows), .kind = OPTION_COUNT, .min = 0, .max = 1000000,
     .commands = TRACES, .subject = SUBJECT_INPUT},
    {{"--parallel"}, "N", "synthetic: sequences decoded as one batch (default 1)",
     .offset = AT(trace_sequences), .kind = OPTION_COUNT, .min = 1, .max = 4096,
     .commands = TRACES, .subject = SUBJECT_INPUT, .everyday = true},
    {{"-s", "--seed"}, "SEED", "of synthetic traces, random evictions and predictions (default 0)",
     .offset = AT(seed), .kind = OPTION_SIGNED, .min = 0, .max = LARGEST_INT, .commands = TRACES,
     .subject = SUBJECT_INPUT, .everyday = true},
    {{"--policy"}, "LIST", "policies, or plug-ins (FILE.so), separated by commas (default all)",
     .offset = AT(policies), .kind = OPTION_TEXT, .commands = CLI_SIMULATE,
     .subject = SUBJECT_MEMORY},
    {{"--policy"}, "LIST", "policies, or plug-ins (FILE.so), separated by commas (default lfru)",
     .offset = AT(policies), .kind = OPTION_TEXT, .commands = CLI_BENCH_OFFLOAD,
     .subject = SUBJECT_MEMORY},
    {{"--policy"}, "LIST", "policies, or plug-ins (FILE.so), separated by commas (default: all "
     "that need no calibration)", .offset = AT(policies), .kind = OPTION_TEXT,
     .commands = CLI_BENCH_CACHE, .subject = SUBJECT_MEMORY},
    {{"--expert-cache"}, "LIST", "sizes: slots or percentages (default 5%,10%,25%,50%)",
     .offset = AT(cache_sizes), .kind = OPTION_TEXT, .commands = CLI_SIMULATE,
     .subject = SUBJECT_MEMORY, .everyday = true},
    {{"--expert-cache"}, "LIST", "sizes: percentages of all experts (default 15%,25%,50%,100%)",
     .offset = AT(cache_sizes), .kind = OPTION_TEXT,
     .commands = SWEEPS_MODEL | CLI_BENCH_SPECULATE, .subject = SUBJECT_MEMORY, .everyday = true},
    {{"--io"}, "LIST", "auto, uring, threads, sync (default auto)", .offset = AT(io),
     .kind = OPTION_TEXT, .commands = CLI_BENCH_OFFLOAD, .subject = SUBJECT_READING},
    {{"--io"}, "LIST", "uring, threads, sync, and fio, which reads blocks of its own for "
     "comparison (default uring,threads, and fio if it is installed)", .offset = AT(io),
     .kind = OPTION_TEXT, .commands = CLI_BENCH_IO, .subject = SUBJECT_READING},
    {{"--block"}, "LIST", "sizes that reads are cut into (default 256K,1M,4M)",
     .offset = AT(blocks), .kind = OPTION_TEXT, .commands = CLI_BENCH_IO,
     .subject = SUBJECT_READING},
    {{"--block"}, "LIST", "sizes that reads are cut into (default 1M)", .offset = AT(blocks),
     .kind = OPTION_TEXT, .commands = CLI_BENCH_OFFLOAD, .subject = SUBJECT_READING},
    {{"--depth"}, "LIST", "blocks in flight (default 4,16)", .offset = AT(depths),
     .kind = OPTION_TEXT, .commands = CLI_BENCH_IO, .subject = SUBJECT_READING},
    {{"--depth"}, "LIST", "blocks in flight (default 16)", .offset = AT(depths),
     .kind = OPTION_TEXT, .commands = CLI_BENCH_OFFLOAD, .subject = SUBJECT_READING},
    {{"--file"}, "FILE", "read this file instead of a model", .offset = AT(io_file),
     .kind = OPTION_TEXT, .commands = CLI_BENCH_IO, .subject = SUBJECT_INPUT},
    {{"--range"}, "SIZE[-SIZE]", "length of the ranges (default: that of the parts of the "
     "model's experts; with --file 1M-6M)", .offset = AT(io_range), .kind = OPTION_TEXT,
     .commands = CLI_BENCH_IO, .subject = SUBJECT_INPUT},
    {{"--bytes"}, "SIZE", "bytes to read in a measurement (default 1G)", .offset = AT(bench_bytes),
     .kind = OPTION_SIZE, .no_share = true, .commands = CLI_BENCH_IO, .subject = SUBJECT_READING},
    {{"--seconds"}, "S", "end a measurement after so long (default: no limit)",
     .offset = AT(bench_seconds), .kind = OPTION_REAL, .min = 0, .min_open = true, .max = 86400,
     .commands = CLI_BENCH_IO, .subject = SUBJECT_READING},
    {{"--buffered"}, NULL, "through the page cache instead of O_DIRECT", .offset = AT(buffered_io),
     .kind = OPTION_FLAG, .commands = CLI_BENCH_IO, .subject = SUBJECT_READING},
    {{"--plain-buffers"}, NULL, "do not register the buffers with the kernel (the engine does)",
     .offset = AT(plain_buffers), .kind = OPTION_FLAG, .commands = CLI_BENCH_IO,
     .subject = SUBJECT_READING},
    {{"--small-pages"}, NULL, "no huge pages for the buffers", .offset = AT(small_pages),
     .kind = OPTION_FLAG, .commands = CLI_BENCH_IO, .subject = SUBJECT_READING},
    {{"--prefetch"}, "LIST", "auto, on, off (default auto)", .offset = AT(prefetches),
     .kind = OPTION_TEXT, .commands = CLI_BENCH_OFFLOAD, .subject = SUBJECT_MEMORY},
    {{"--suite"}, "FILES", "judge speculation on these texts, commas between: sampled at "
     "temperature 0.7 and 1, forced, and greedy, by bytes, modelled costs and the clock; changes "
     "the defaults of --configs, --parallel (1,8) and --expert-cache (10%,25%,50%)",
     .offset = AT(suite),
     .kind = OPTION_TEXT, .commands = CLI_BENCH_SPECULATE, .subject = SUBJECT_MEASURING},
    {{"--lengths"}, NULL, "print every step in place of the results: how many tokens were to be "
     "drafted (K), utility, tokens, cost", .offset = AT(lengths), .kind = OPTION_FLAG,
     .commands = CLI_BENCH_SPECULATE, .subject = SUBJECT_MEASURING},
    {{"--configs"}, "LIST", "configurations between semicolons; the others are compared with the "
     "first (default \"off; auto; ngram; self\")", .offset = AT(configs),
     .kind = OPTION_TEXT, .commands = CLI_BENCH_SPECULATE, .subject = SUBJECT_MEASURING},
    {{"--parallel"}, "LIST", "sequences decoded as one batch (default 1)", .offset = AT(batches),
     .kind = OPTION_TEXT, .commands = CLI_BENCH_SPECULATE,
     .subject = SUBJECT_MEASURING, .everyday = true},
    {{"--prompts"}, "N", "groups of prompts, one after the other (default 1)",
     .offset = AT(trace_prompts), .kind = OPTION_COUNT, .min = 1, .max = 1000000,
     .commands = CLI_BENCH_SPECULATE, .subject = SUBJECT_MEASURING},
    {{"--temp"}, "T", "temperature; 0: greedy (default 0)", .offset = AT(bench_temperature),
     .kind = OPTION_REAL, .min = 0, .max = 1000, .commands = CLI_BENCH_SPECULATE,
     .subject = SUBJECT_MEASURING, .everyday = true},
    {{"--route-trace"}, "FILE", "replay this recorded routing instead of the routers' choices; the "
     "text is then meaningless", .offset = AT(route_trace), .kind = OPTION_TEXT,
     .commands = CLI_BENCH_DECODE | SWEEPS_MODEL, .subject = SUBJECT_INPUT},
    {{"--split"}, "global|per-layer|both", "one pool of slots, or a share for each layer "
     "(default global)", .offset = AT(split), .kind = OPTION_CHOICE, .commands = CLI_SIMULATE,
     .subject = SUBJECT_MEMORY},
    {{"--order"}, "engine|sequential", "a layer's experts at once, as in a pass, or one by "
     "one, as other simulators do (default engine)", .offset = AT(order), .kind = OPTION_CHOICE,
     .commands = CLI_SIMULATE, .subject = SUBJECT_MEASURING},
    {{"--calibrate"}, "PCT", "measure hotness on the first PCT % of the passes; simulate the rest",
     .offset = AT(calibrate_percent), .kind = OPTION_REAL, .min = 0, .max = 100, .max_open = true,
     .commands = CLI_SIMULATE, .subject = SUBJECT_MEASURING},
    {{"--warm-up"}, "N", "passes that fill the cache before counting begins (default 0)",
     .offset = AT(warm_up), .kind = OPTION_COUNT, .min = 0, .max = LARGEST_INT,
     .commands = CLI_SIMULATE, .subject = SUBJECT_MEASURING},
    {{"--prefetch-recall"}, "R", "prefetch the next layer, this share of it right "
     "(default: no prefetch)", .offset = AT(prefetch_recall), .kind = OPTION_REAL, .min = 0,
     .max = 1, .commands = CLI_SIMULATE, .subject = SUBJECT_MEASURING},
    {{"--lookahead-stands"}, "P", "chance that a further token of that draft is right, if those "
     "before are (default 0.69)", .offset = AT(lookahead_stands), .kind = OPTION_REAL, .min = 0,
     .max = 1, .commands = CLI_SIMULATE, .subject = SUBJECT_MEASURING},
    {{"--lookahead-recall"}, "R", "share of a right token's experts that it names (default 0.91)",
     .offset = AT(lookahead_recall), .kind = OPTION_REAL, .min = 0, .max = 1,
     .commands = CLI_SIMULATE, .subject = SUBJECT_MEASURING},
    {{"--lookahead-recall-wrong"}, "R", "share of a wrong token's experts that it names "
     "(default 0.56)", .offset = AT(lookahead_recall_wrong), .kind = OPTION_REAL, .min = 0,
     .max = 1, .commands = CLI_SIMULATE, .subject = SUBJECT_MEASURING},
    {{"--expert-bytes"}, "N", "bytes of an expert (default 1048576)", .offset = AT(expert_bytes),
     .kind = OPTION_COUNT, .min = 1, .max = UINT32_MAX, .commands = TRACES,
     .subject = SUBJECT_READING},
    {{"--disk-bandwidth"}, "N", "bytes a second (default 3e9)", .offset = AT(disk_bandwidth),
     .kind = OPTION_REAL, .min = 1, .max = 1e15, .commands = CLI_SIMULATE,
     .subject = SUBJECT_READING},
    {{"--disk-latency"}, "S", "seconds of a read (default 1e-4)", .offset = AT(disk_latency),
     .kind = OPTION_REAL, .min = 0, .max = 1000, .commands = CLI_SIMULATE,
     .subject = SUBJECT_READING},
    {{"--io-depth"}, "N", "reads whose latencies overlap (default 16)", .offset = AT(io_depth),
     .kind = OPTION_COUNT, .min = 1, .max = 65536, .commands = CLI_SIMULATE,
     .subject = SUBJECT_READING},
    {{"--host-slots"}, "N", "experts in host memory, below the slots of a device "
     "(default 0: none)", .offset = AT(host_slots), .kind = OPTION_COUNT, .min = 0,
     .max = UINT32_MAX, .commands = CLI_SIMULATE, .subject = SUBJECT_MEMORY},
    {{"--tiers"}, "engine|inclusive|exclusive", "how --host-slots are used: as the engine does, "
     "for all that the device holds, or for what it does not (default engine)",
     .offset = AT(tiers), .kind = OPTION_CHOICE, .commands = CLI_SIMULATE,
     .subject = SUBJECT_MEMORY},
    {{"--link-bandwidth"}, "N", "bytes a second from host to device (default 25e9)",
     .offset = AT(link_bandwidth), .kind = OPTION_REAL, .min = 1, .max = 1e15,
     .commands = CLI_SIMULATE, .subject = SUBJECT_READING},
    {{"--link-latency"}, "S", "seconds of a move (default 1e-5)", .offset = AT(link_latency),
     .kind = OPTION_REAL, .min = 0, .max = 1000, .commands = CLI_SIMULATE,
     .subject = SUBJECT_READING},
    {{"--compute-time"}, "S", "seconds that a layer computes (default 0)",
     .offset = AT(compute_time), .kind = OPTION_REAL, .min = 0, .max = 1000,
     .commands = CLI_SIMULATE, .subject = SUBJECT_READING},
    {{"--layer"}, "N", "the layer of the heat map (default 0)", .offset = AT(pair_layer),
     .kind = OPTION_COUNT, .min = 0, .max = 4095, .commands = CLI_ANALYZE,
     .subject = SUBJECT_MEASURING},
    {{"--load-share"}, "F", "share of a pass spent loading routed weights (default 0.3)",
     .offset = AT(load_share), .kind = OPTION_REAL, .min = 0, .max = 1, .commands = CLI_ANALYZE,
     .subject = SUBJECT_MEASURING},
    {{"--export"}, "FILE", "also write the trace: JSON lines, or NAME.oracleGeneral",
     .offset = AT(export_path), .kind = OPTION_TEXT, .commands = CLI_ANALYZE,
     .subject = SUBJECT_RESULTS},
    {{"--format"}, "table|csv|json|gnuplot", "form of the result; gnuplot needs -o (default table)",
     .offset = AT(format), .kind = OPTION_CHOICE,
     .commands = TRACES | SWEEPS | CLI_BENCH_SPECULATE, .subject = SUBJECT_RESULTS},
    {{"-o", "--output"}, "PREFIX", "of gnuplot's files: PREFIX.gp and PREFIX.dat",
     .offset = AT(output), .kind = OPTION_TEXT,
     .commands = TRACES | SWEEPS | CLI_BENCH_SPECULATE,
     .subject = SUBJECT_RESULTS, .everyday = true},
    {{"--plot"}, "FILE.svg", "have gnuplot draw the result; or FILE.png, FILE.pdf",
     .offset = AT(plot), .kind = OPTION_TEXT, .commands = SWEEPS, .subject = SUBJECT_RESULTS},
    {{"--csv"}, "FILE", "keep every measurement here as soon as it is made", .offset = AT(csv),
     .kind = OPTION_TEXT, .commands = SWEEPS, .subject = SUBJECT_RESULTS, .everyday = true},
    {{"--resume"}, NULL, "skip measurements that --csv FILE already has", .offset = AT(resume),
     .kind = OPTION_FLAG, .commands = SWEEPS, .subject = SUBJECT_RESULTS},
};
/* clang-format on */

const size_t cli_n_option_rows = sizeof cli_option_rows / sizeof cli_option_rows[0];

const char *const cli_option_subjects[SUBJECT_COUNT] = {
    [SUBJECT_OTHER] = "Other",
    [SUBJECT_INPUT] = "Model and input",
    [SUBJECT_SERVING] = "Serving",
    [SUBJECT_SAMPLING] = "Sampling",
    [SUBJECT_COMPUTING] = "Computing",
    [SUBJECT_MEMORY] = "Memory",
    [SUBJECT_READING] = "Reading experts",
    [SUBJECT_SPECULATION] = "Speculation",
    [SUBJECT_LOSSY] = "Lossy modes",
    [SUBJECT_MEASURING] = "Measuring",
    [SUBJECT_RESULTS] = "Results",
};

bool cli_option_has_name(const cli_option_row *row, const char *name)
{
    return strcmp(row->names[0], name) == 0 ||
           (row->names[1] != NULL && strcmp(row->names[1], name) == 0);
}

const cli_options cli_option_defaults = {
    .predict = -1,
    .seed = -1,
    .bench_prompt = 512,
    .bench_parallel = 1,
    .bench_repeat = 5,
    .bench_bytes = {.bytes = 1 << 30},
    .temperature = 0.8,
    .top_k = 40,
    .top_p = 0.95,
    .min_p = 0.05,
    .repeat_penalty = 1,
    .trace_prompts = 1,
    .trace_sequences = 1,
    .trace_passes = 512,
    .expert_bytes = 1 << 20,
    .io_depth = 16,
    .prefetch_recall = -1,
    .lookahead_stands = 0.69,
    .lookahead_recall = 0.91,
    .lookahead_recall_wrong = 0.56,
    .disk_bandwidth = 3e9,
    .disk_latency = 1e-4,
    .link_bandwidth = 25e9,
    .link_latency = 1e-5,
    .load_share = 0.3,
    .server_port = 8080,
};
