/* SPDX-License-Identifier: MIT */
/* The commands' names and their help; main.c calls them. */
#include <stddef.h>

#include "cli_options.h"

const cli_command cli_commands[] = {
    {"run", NULL, CLI_RUN, true, "answer one prompt, or hold a conversation on a terminal",
     "Without -p or -f: the prompt is standard input, or, on a terminal, a conversation begins\n"
     "(/help in it lists its commands). The text goes to stdout as it comes; statistics to "
     "stderr:\n"
     "prompt speed is until the first token, decode speed counts the tokens after it.\n"
     "Ctrl-C keeps the text so far, prints the statistics and exits with 130; SIGTERM and SIGHUP\n"
     "do so with 143 and 129."},
    {"tokenize", NULL, CLI_TOKENIZE, true, "the token ids of a text",
     "One id a line; with --json also the piece of text each stands for."},
    {"logits", NULL, CLI_LOGITS, true, "float32 logits of every prompt position",
     "The file is a NumPy array: row i holds the logits after token i."},
    {"perplexity", NULL, CLI_PERPLEXITY, true, "perplexity of a text, in chunks",
     "The text is cut into chunks of -c tokens; each is evaluated on its own, its first token\n"
     "replaced by BOS where the model has one, and the second half of it is scored: the way of\n"
     "llama-perplexity, so that figures compare. A rest shorter than a chunk is left out."},
    {"bench", "decode", CLI_BENCH_DECODE, true, "prompt and decode speed",
     "Each repetition evaluates prompts of random tokens (every sequence its own), then decodes\n"
     "greedily, all sequences as one batch. Told are the median, the smallest and the largest."},
    {"bench", "io", CLI_BENCH_IO, false,
     "what the storage gives: I/O engines, blocks, depths, beside fio",
     "Random ranges as long as the parts of the model's experts, past the page cache. A repetition"
     "\nasks every engine for the same ranges; fio reads random blocks, as long as the ranges "
     "where\n"
     "those are shorter. Told are medians over --repeat; percent_of_fio is of pairs of one\n"
     "repetition."},
    {"bench", "cache", CLI_BENCH_CACHE, true,
     "hit rate, reads and speed under cache sizes and policies",
     "Every run opens the model anew, its files dropped from the page cache, without prefetch;\n"
     "decoding is counted. Routing of random tokens says little about caches: give a text (-f) of\n"
     "the kind to be run, or a recorded routing. Regret: points of hit rate that Belady, knowing\n"
     "the future of the same routing, has more. All runs must write the same tokens."},
    {"bench", "offload", CLI_BENCH_OFFLOAD, true,
     "speed, stalls and reads under cache sizes, policies, I/O, threads",
     "One run for every combination of the lists, each opened anew, the model's files dropped "
     "from\nthe page cache; all must write the same tokens, or the command fails. Decoding is "
     "counted,\n"
     "after the prompt has warmed the cache."},
    {"bench", "speculate", CLI_BENCH_SPECULATE, true,
     "configurations of speculation and lossy modes against each other",
     "A configuration is a --speculate mode and options of run: \"self --draft-max 4 --affinity "
     "none\"."
     "\nEach is run with every cache size and batch, on windows of the text spread evenly over "
     "it,\n"
     "as many as --prompts times the batch. At temperature 0 all but lossy ones must write the\n"
     "tokens of the first, or the command fails. Drafts of K tokens for N sequences need room for\n"
     "N * (K + 1) rows in a pass (-b), or they are cut."},
    {"plan", NULL, CLI_PLAN, true, "where memory would go; nothing is loaded",
     "A budget below the floor is refused (exit 1) after the plan that shows it. Options of run\n"
     "that do not change where memory goes are checked here, and act with --measure."},
    {"calibrate", NULL, CLI_CALIBRATE, true,
     "measure a model on a text; write the sidecar beside it",
     "Kept in MODEL.moe-cal.gguf: which experts are hot and which go together, how alike they "
     "are,\n"
     "and checksums of all weights. Later commands use it by themselves. Some thousands of tokens "
     "of the\n"
     "kind of text to be run are enough. What was interrupted goes on when called again."},
    {"verify", NULL, CLI_VERIFY, true, "whether a model's files are whole",
     "Reads all weights and compares them with the checksums that 'calibrate' has kept; names "
     "each\n"
     "damaged tensor and expert with its file and offset. Exit status 1 when something is "
     "damaged.\n"
     "Without checksums: whether all can be read, and holds numbers."},
    {"inspect", NULL, CLI_INSPECT, true, "what a model file holds; nothing is loaded",
     "A file that can be read is told about with exit status 0, whether the engine can run it or\n"
     "not (\"runnable\"); --check makes it 1 when it cannot."},
    {"devices", NULL, CLI_DEVICES, false, "the machine as the engine sees it",
     "With -m also the storage that holds the model."},
    {"simulate", NULL, CLI_SIMULATE, false,
     "a routing trace against cache policies and sizes, with Belady's bound",
     "No model is needed. Regret is what Belady's hit rate, knowing the future, has more, in "
     "points;"
     "\nhot-global needs --calibrate, gate-score a trace with gates; 'all' leaves out what it "
     "cannot run.\nn reads take n x SIZE / bandwidth + ceil(n / depth) x latency."},
    {"analyze", NULL, CLI_ANALYZE, false,
     "what a routing trace says about locality, skew and co-activation", NULL},
    {NULL, NULL, 0, false, NULL, NULL},
};
