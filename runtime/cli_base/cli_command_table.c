/* SPDX-License-Identifier: MIT */
/* The commands' names and their help; main.c calls them. */
#include <stddef.h>

#include "cli_options.h"

const cli_command cli_commands[] = {
    {"run", NULL, CLI_RUN, true, "answer one prompt, or hold a conversation on a terminal",
     "Without -p or -f the prompt is standard input; on a terminal a conversation begins, in "
     "which\n"
     "/help lists the commands. The text goes to stdout as it comes, statistics go to stderr.\n"
     "Prompt speed is measured until the first token, decode speed over the tokens after it.\n"
     "Ctrl-C keeps the text so far, prints the statistics and exits with 130; SIGTERM and SIGHUP\n"
     "do the same with 143 and 129."},
    {"serve", NULL, CLI_SERVE, true, "answer requests over HTTP, as OpenAI's interface has them",
     "Serves /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize,\n"
     "/apply-template, /health, /props and /metrics. Requests are decoded together, as one batch;\n"
     "a request's text does not depend on the others. SIGTERM or Ctrl-C finishes the answers that\n"
     "have begun, for at most a minute; a second signal ends the server at once."},
    {"worker", NULL, CLI_WORKER, true, "compute experts for engines on other machines",
     "Waits for the engines of run, serve, logits, perplexity and bench decode that are told\n"
     "--workers. It holds its share of the experts in memory, and nothing of any text. It needs "
     "the\n"
     "same model file, or a part of it that split-experts wrote. It may be killed at any time:\n"
     "what it owes is computed elsewhere."},
    {"split-experts", NULL, CLI_SPLIT, true, "write a file with a share of the experts alone",
     "For a worker's machine: 'worker -m' takes the file in place of the model's, and has the\n"
     "experts that are in it. No other command can use it."},
    {"tokenize", NULL, CLI_TOKENIZE, true, "the token ids of a text",
     "Prints one id a line; with --json also each id's piece of text."},
    {"logits", NULL, CLI_LOGITS, true, "float32 logits of every prompt position",
     "The file is a NumPy array: row i holds the logits after token i."},
    {"perplexity", NULL, CLI_PERPLEXITY, true, "perplexity of a text, in chunks",
     "The text is cut into chunks of -c tokens, each evaluated on its own. BOS replaces a chunk's\n"
     "first token if the model has one, and the chunk's second half is scored. llama-perplexity\n"
     "does the same, so figures compare. A rest shorter than a chunk is left out."},
    {"bench", "decode", CLI_BENCH_DECODE, true, "prompt and decode speed",
     "Each repetition evaluates prompts of random tokens (every sequence its own), then decodes\n"
     "greedily, all sequences as one batch. It prints the median, the smallest and the largest."},
    {"bench", "io", CLI_BENCH_IO, false,
     "speed of the storage: I/O engines, blocks, depths, beside fio",
     "Reads random ranges as long as the parts of the model's experts, past the page cache. In a\n"
     "repetition every engine reads the same ranges; fio reads random blocks, no longer than the\n"
     "ranges. It prints medians over --repeat; percent_of_fio compares within a repetition."},
    {"bench", "cache", CLI_BENCH_CACHE, true,
     "hit rate, reads and speed under cache sizes and policies",
     "Every run drops the model's files from the page cache, opens the model anew without "
     "prefetch\n"
     "and measures decoding. Routing of random tokens says little about caches: give a text (-f)\n"
     "of the kind you will run, or a recorded routing. Regret is Belady's hit rate, which knows\n"
     "the future, minus the policy's, in points. All runs must write the same tokens."},
    {"bench", "offload", CLI_BENCH_OFFLOAD, true,
     "speed, stalls and reads under cache sizes, policies, I/O, threads",
     "One run for every combination of the lists. Each run drops the model's files from the page\n"
     "cache, opens the model anew and measures decoding, after the prompt has warmed the cache.\n"
     "All runs must write the same tokens, or the command fails."},
    {"bench", "speculate", CLI_BENCH_SPECULATE, true,
     "compare configurations of speculation and lossy modes",
     "A configuration is a --speculate mode and options of run: \"self --draft-max 4 --affinity "
     "none\"."
     "\nEach runs with every cache size and batch, on evenly spaced windows of the text, as many\n"
     "as --prompts times the batch. At temperature 0 all except lossy ones must write the tokens\n"
     "of the first, or the command fails. Drafts of K tokens for N sequences need N * (K + 1)\n"
     "rows in a pass (-b); otherwise they are cut."},
    {"plan", NULL, CLI_PLAN, true, "where memory would go; nothing is loaded",
     "A budget below the floor is refused (exit 1) after the plan that shows it. Options of run\n"
     "that do not change where memory goes are checked here, and act with --measure."},
    {"calibrate", NULL, CLI_CALIBRATE, true,
     "measure a model on a text; write the sidecar beside it",
     "The sidecar, MODEL.moe-cal.gguf, holds which experts are hot, which are used together, how\n"
     "similar they are, and checksums of all weights. Later commands find and use it. A few\n"
     "thousand tokens of the kind of text you will run are enough. Called again, the command\n"
     "continues an interrupted calibration."},
    {"report", NULL, CLI_REPORT, true,
     "how fast a model runs here, and what would help, as one page",
     "Decodes a text with several numbers of experts in memory, on the CPU; measures drive and\n"
     "memory; simulates other sizes, cache policies and machines on the routing that was "
     "recorded;\n"
     "and writes one HTML file with words, tables and pictures, which needs no other file.\n"
     "Nothing is written beside the model."},
    {"verify", NULL, CLI_VERIFY, false, "check a model's files, copies and kept prompts for damage",
     "Reads all weights and compares them with their checksums: those of 'calibrate', or those "
     "that\n"
     "were made when they were first read. Names each damaged tensor and expert with its file and\n"
     "offset; the exit status is 1 if there is damage. Without checksums it checks that all "
     "weights\n"
     "can be read and are finite numbers, and makes checksums of them. With --cache-dir it checks\n"
     "the prompts that a server keeps; then -m may be left out."},
    {"inspect", NULL, CLI_INSPECT, true, "what a model file holds; nothing is loaded",
     "The exit status is 0 if the file can be read, even if the engine cannot run it "
     "(\"runnable\"\n"
     "says so); with --check it is 1 if the engine cannot run it."},
    {"devices", NULL, CLI_DEVICES, false, "the machine as the engine sees it",
     "With -m it also describes the storage that holds the model."},
    {"pull", NULL, CLI_PULL, true, "download a model by its name, or what of it is missing",
     "'pull OWNER/REPO[@REVISION][:QUANT]' asks huggingface.co (or HF_ENDPOINT) for the newest "
     "files,\n"
     "and prints the path of the first one. They go to the cache that the hub's own programs and\n"
     "llama.cpp use (HF_HUB_CACHE, HF_HOME), and what these have downloaded is used. An "
     "interrupted\n"
     "download goes on where it stopped; SHA-256 sums are checked. HF_TOKEN opens private and "
     "gated\n"
     "models."},
    {"list", NULL, CLI_LIST, false, "the models in the cache", NULL},
    {"show", NULL, CLI_SHOW, true, "a model by its name: its files, and what its header says",
     "If the cache lacks the model, only its header is downloaded, some MB."},
    {"rm", NULL, CLI_REMOVE, true, "remove a model from the cache",
     "'rm OWNER/REPO:QUANT' removes that model, its sidecar and checksums; without a QUANT all of\n"
     "the repository's models, and what interrupted downloads have left; without a REVISION of "
     "all\n"
     "revisions. Files that other models or programs use stay."},
    {"simulate", NULL, CLI_SIMULATE, false,
     "simulate cache policies and sizes on a routing trace, with Belady's bound",
     "No model is needed. Regret is Belady's hit rate, which knows the future, minus the "
     "policy's,\n"
     "in points. hot-global needs --calibrate, gate-score a trace with gates; 'all' skips "
     "policies\n"
     "whose needs are not met. n reads take n x SIZE / bandwidth + ceil(n / depth) x latency."},
    {"analyze", NULL, CLI_ANALYZE, false,
     "measure locality, skew and co-activation of a routing trace", NULL},
    {NULL, NULL, 0, false, NULL, NULL},
};
