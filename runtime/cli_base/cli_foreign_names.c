/* SPDX-License-Identifier: MIT */
#include "cli_foreign_names.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES "--device cuda:0,1 names the GPUs; the plan spreads experts over them"
#define TIERS                                                                                      \
    "the engine places experts by itself; --expert-cache, --device-memory and "                    \
    "--host-compute bound it"
#define ROPE     "the file's metadata say it; --override-kv replaces them"
#define SAMPLERS "--temp, --top-k, --top-p, --min-p and the penalties are the samplers here"
#define TLS      "there is no TLS: put a proxy in front"
#define THREADS  "-t sets the one team of threads; taskset(1) chooses its cores"
#define TEXT     "only text is read"
#define FETCH    "-m ADDRESS --disk-cache DIR runs a file of a server"
#define TURNS    "the chat template marks the turns: --chat-template"
#define LENGTH   "--draft-max, and --length-control decides below it"

/* clang-format off */
const cli_foreign_row cli_foreign_rows[] = {
    /* Input. */
    {{"-sys", "--system-prompt"}, "*", FOREIGN_IS, "--system", NULL, NULL},
    {{"--n-predict"}, "*", FOREIGN_IS, "-n", NULL, NULL},
    {{"--chat-template-file"}, "*", FOREIGN_IS, "--chat-template", "./", NULL},
    {{"-no-cnv", "--no-conversation"}, NULL, FOREIGN_MEANS, "--raw", NULL, NULL},
    {{"-i", "--interactive", "-if"}, NULL, FOREIGN_NOT, NULL, NULL, "-cnv holds a conversation"},
    {{"--jinja"}, NULL, FOREIGN_HOLDS, NULL, NULL, "templates are always interpreted"},
    {{"--no-jinja"}, NULL, FOREIGN_NOT, NULL, NULL, "templates are always interpreted; "
     "--chat-template chooses one"},
    {{"--reasoning-format"}, "auto|deepseek", FOREIGN_HOLDS, NULL, NULL,
     "reasoning is kept apart, in reasoning_content"},
    {{"--reasoning-format"}, "*", FOREIGN_NOT, NULL, NULL,
     "reasoning is kept apart, in reasoning_content; --think off has none"},
    {{"--reasoning-budget"}, "-1", FOREIGN_HOLDS, NULL, NULL, "reasoning has no limit of its own"},
    {{"--reasoning-budget"}, "0", FOREIGN_MEANS, "--think", "off", NULL},
    {{"--reasoning-budget"}, "*", FOREIGN_NOT, NULL, NULL, "--think is on or off; -n limits both"},
    {{"-e", "--escape"}, NULL, FOREIGN_NOT, NULL, NULL,
     "the prompt is taken as it is: the shell's $'...' or -f FILE have line ends"},
    {{"--no-escape"}, NULL, FOREIGN_HOLDS, NULL, NULL, "the prompt is taken as it is"},
    {{"-r", "--reverse-prompt"}, "*", FOREIGN_NOT, NULL, NULL, TURNS},
    {{"--in-prefix", "--in-suffix"}, "*", FOREIGN_NOT, NULL, NULL, TURNS},
    {{"--keep"}, "0", FOREIGN_HOLDS, NULL, NULL, "a full context ends the text"},
    {{"--keep"}, "*", FOREIGN_NOT, NULL, NULL, "a full context ends the text; -c is its length"},
    {{"--context-shift"}, NULL, FOREIGN_NOT, NULL, NULL,
     "a full context ends the text; -c is its length"},
    {{"--no-context-shift"}, NULL, FOREIGN_HOLDS, NULL, NULL, "a full context ends the text"},
    {{"--prompt-cache"}, "*", FOREIGN_NOT, NULL, NULL, "/save and /load of a conversation"},
    {{"-hfr"}, "*", FOREIGN_IS, "-hf", NULL, NULL},
    {{"-hff", "--hf-file"}, "*", FOREIGN_NOT, NULL, NULL, "-hf OWNER/REPO:FILE.gguf names a file"},
    {{"--revision"}, "*", FOREIGN_NOT, NULL, NULL, "-hf OWNER/REPO@REVISION names one"},
    {{"-hft", "--hf-token"}, "*", FOREIGN_NOT, NULL, NULL,
     "other users would see it: the environment's HF_TOKEN has it"},
    {{"-mu", "--model-url"}, "*", FOREIGN_NOT, NULL, NULL, FETCH},
    {{"--mmproj", "--image", "--audio"}, "*", FOREIGN_NOT, NULL, NULL, TEXT},
    {{"--lora", "--lora-scaled", "--control-vector"}, "*", FOREIGN_NOT, NULL, NULL,
     "adapters are not applied: merge them into the file"},
    {{"--rope-scaling", "--rope-scale"}, "*", FOREIGN_NOT, NULL, NULL, ROPE},
    {{"--rope-freq-base", "--rope-freq-scale"}, "*", FOREIGN_NOT, NULL, NULL, ROPE},
    {{"--yarn-orig-ctx", "--yarn-ext-factor", "--yarn-attn-factor"}, "*", FOREIGN_NOT, NULL, NULL,
     ROPE},
    {{"--yarn-beta-slow", "--yarn-beta-fast"}, "*", FOREIGN_NOT, NULL, NULL, ROPE},

    /* Computing. */
    {{"-ub", "--ubatch-size"}, "*", FOREIGN_IS, "-b", NULL, NULL},
    {{"-tb", "--threads-batch"}, "*", FOREIGN_NOT, NULL, NULL, THREADS},
    {{"-C", "--cpu-mask", "-Cr"}, "*", FOREIGN_NOT, NULL, NULL, THREADS},
    {{"--prio", "--poll", "--cpu-strict"}, "*", FOREIGN_NOT, NULL, NULL, THREADS},
    {{"-fa", "--flash-attn"}, "on|auto", FOREIGN_HOLDS, NULL, NULL,
     "attention never writes its scores out"},
    {{"-fa", "--flash-attn"}, "*", FOREIGN_NOT, NULL, NULL,
     "attention never writes its scores out; give -fa on, -fa auto or leave it out"},
    {{"-ctk", "--cache-type-k"}, "*", FOREIGN_IS, "--kv", NULL, NULL},
    {{"-ctv", "--cache-type-v"}, "*", FOREIGN_IS, "--kv", NULL, NULL},
    {{"-dev"}, "none", FOREIGN_MEANS, "--device", "cpu", NULL},
    {{"-dev"}, "*", FOREIGN_NOT, NULL, NULL, DEVICES},
    {{"-ngl", "--gpu-layers", "--n-gpu-layers"}, "0", FOREIGN_MEANS, "--device", "cpu", NULL},
    {{"-ngl", "--gpu-layers", "--n-gpu-layers"}, "auto|all|-1|99..", FOREIGN_HOLDS, NULL, NULL,
     "what all tokens need is on the device, and as many experts as fit"},
    {{"-ngl", "--gpu-layers", "--n-gpu-layers"}, "*", FOREIGN_NOT, NULL, NULL,
     "--device-memory says how much of a GPU is used"},
    {{"-ot", "--override-tensor"}, "*", FOREIGN_NOT, NULL, NULL, TIERS},
    {{"-cmoe", "--cpu-moe"}, NULL, FOREIGN_NOT, NULL, NULL, TIERS},
    {{"-ncmoe", "--n-cpu-moe"}, "0", FOREIGN_HOLDS, NULL, NULL,
     "the engine places experts by itself"},
    {{"-ncmoe", "--n-cpu-moe"}, "*", FOREIGN_NOT, NULL, NULL, TIERS},
    {{"-sm", "--split-mode"}, "none", FOREIGN_HOLDS, NULL, NULL, "one device is used"},
    {{"-sm", "--split-mode"}, "*", FOREIGN_NOT, NULL, NULL, DEVICES},
    {{"-ts", "--tensor-split"}, "*", FOREIGN_NOT, NULL, NULL, DEVICES},
    {{"-mg", "--main-gpu"}, "0", FOREIGN_HOLDS, NULL, NULL, "the first GPU is the default"},
    {{"-mg", "--main-gpu"}, "*", FOREIGN_NOT, NULL, NULL, DEVICES},
    {{"--numa"}, "*", FOREIGN_NOT, NULL, NULL,
     "memory is spread over the nodes by itself; numactl(8) restricts it"},
    {{"-kvo", "--kv-offload"}, NULL, FOREIGN_HOLDS, NULL, NULL,
     "keys and values are on the device"},
    {{"-nkvo", "--no-kv-offload"}, NULL, FOREIGN_NOT, NULL, NULL,
     "keys and values are on the device; --kv q8_0 halves them"},
    {{"--no-repack"}, NULL, FOREIGN_HOLDS, NULL, NULL, "weights stay as the file has them"},
    {{"--check-tensors"}, NULL, FOREIGN_NOT, NULL, NULL, "the command verify does it"},

    /* Memory. */
    {{"--no-mmap"}, NULL, FOREIGN_HOLDS, NULL, NULL, "weights are read, never mapped"},
    {{"--mmap"}, NULL, FOREIGN_NOT, NULL, NULL, "weights are read, never mapped; --host-memory "
     "bounds them"},
    {{"-dio", "--direct-io"}, NULL, FOREIGN_HOLDS, NULL, NULL,
     "experts are read past the page cache where the file system can"},
    {{"--mlock"}, NULL, FOREIGN_NOT, NULL, NULL,
     "the plan keeps within free memory, so that nothing is swapped; for a service see "
     "MemorySwapMax in systemd.resource-control(5)"},
    {{"-np"}, "*", FOREIGN_IS, "--parallel", NULL, NULL},
    {{"-kvu", "--kv-unified"}, NULL, FOREIGN_HOLDS, NULL, NULL, "sessions share one pool of pages"},
    {{"--swa-full"}, NULL, FOREIGN_NOT, NULL, NULL, "a window's keys and values are enough"},
    {{"--no-warmup"}, NULL, FOREIGN_HOLDS, NULL, NULL, "opening evaluates nothing"},
    {{"--warmup"}, NULL, FOREIGN_NOT, NULL, NULL, "opening evaluates nothing; --warm-start fills "
     "the cache"},

    /* Sampling. */
    {{"--temperature"}, "*", FOREIGN_IS, "--temp", NULL, NULL},
    {{"--grammar-file"}, "*", FOREIGN_IS, "--grammar", NULL, NULL},
    {{"-jf", "--json-schema-file"}, "*", FOREIGN_IS, "--json-schema", NULL, NULL},
    {{"-j"}, "*", FOREIGN_IS, "--json-schema", NULL, NULL},
    {{"--repeat-last-n"}, "64", FOREIGN_HOLDS, NULL, NULL, "penalties look at the last 64 tokens"},
    {{"--repeat-last-n"}, "*", FOREIGN_NOT, NULL, NULL, "penalties look at the last 64 tokens"},
    {{"--mirostat", "--dry-multiplier", "--xtc-probability"}, "0|0.0", FOREIGN_HOLDS, NULL, NULL,
     "it is off"},
    {{"--mirostat", "--dry-multiplier", "--xtc-probability"}, "*", FOREIGN_NOT, NULL, NULL,
     SAMPLERS},
    {{"--typical"}, "1|1.0", FOREIGN_HOLDS, NULL, NULL, "it is off"},
    {{"--typical"}, "*", FOREIGN_NOT, NULL, NULL, SAMPLERS},
    {{"--top-n-sigma", "--dynatemp-range", "--dynatemp-exp"}, "*", FOREIGN_NOT, NULL, NULL,
     SAMPLERS},
    {{"--samplers", "--sampling-seq"}, "*", FOREIGN_NOT, NULL, NULL, SAMPLERS},

    /* Speculation. */
    {{"-md", "--model-draft"}, "*", FOREIGN_IS, "--speculate", "model:", NULL},
    {{"--draft", "--draft-n"}, "*", FOREIGN_IS, "--draft-max", NULL, NULL},
    {{"--draft-min", "--draft-p-min", "--draft-p-split"}, "*", FOREIGN_NOT, NULL, NULL, LENGTH},
    {{"-ngld", "-devd", "-cd"}, "*", FOREIGN_NOT, NULL, NULL,
     "a drafting model shares the device and the context of the model"},

    /* Names of options about printed output. */
    {{"--log-disable"}, NULL, FOREIGN_MEANS, "--quiet", NULL, NULL},
    {{"--no-display-prompt"}, NULL, FOREIGN_HOLDS, NULL, NULL, "the prompt is not repeated"},
    {{"--display-prompt"}, NULL, FOREIGN_NOT, NULL, NULL, "the prompt is not repeated"},
    {{"--simple-io"}, NULL, FOREIGN_NOT, NULL, NULL, "TERM=dumb reads plain lines"},
    {{"-co", "--color"}, NULL, FOREIGN_NOT, NULL, NULL, "the text has no colours"},
    {{"-v", "--verbose", "--verbose-prompt"}, NULL, FOREIGN_NOT, NULL, NULL,
     "--json has all figures, the command tokenize the prompt's tokens"},
    {{"--perf"}, NULL, FOREIGN_HOLDS, NULL, NULL, "figures are printed unless --quiet leaves them "
     "out"},
    {{"--no-perf"}, NULL, FOREIGN_MEANS, "--quiet", NULL, NULL},

    /* Serving. */
    {{"--slot-save-path"}, "*", FOREIGN_NOT, NULL, NULL, "--cache-dir keeps finished prompts"},
    {{"-cram", "--cache-ram"}, "*", FOREIGN_NOT, NULL, NULL,
     "--parallel sessions are kept in memory, --cache-dir keeps more on disk"},
    {{"-a"}, "*", FOREIGN_IS, "--alias", NULL, NULL},
    {{"-cb", "--cont-batching"}, NULL, FOREIGN_HOLDS, NULL, NULL,
     "requests join the batch as they come"},
    {{"-nocb", "--no-cont-batching"}, NULL, FOREIGN_NOT, NULL, NULL,
     "requests join the batch as they come; --parallel 1 has one at a time"},
    {{"--cache-prompt"}, NULL, FOREIGN_HOLDS, NULL, NULL, "prompts that begin alike share it"},
    {{"--no-cache-prompt"}, NULL, FOREIGN_NOT, NULL, NULL,
     "prompts that begin alike share it; the text is the same"},
    {{"--slots", "--metrics", "--props"}, NULL, FOREIGN_HOLDS, NULL, NULL, "it is always served"},
    {{"--no-slots"}, NULL, FOREIGN_NOT, NULL, NULL, "--api-key-file closes it to strangers"},
    {{"--embedding", "--embeddings", "--reranking"}, NULL, FOREIGN_NOT, NULL, NULL,
     "only text is generated"},
    {{"--ssl-key-file", "--ssl-cert-file"}, "*", FOREIGN_NOT, NULL, NULL, TLS},
    {{"-to", "--timeout", "--threads-http"}, "*", FOREIGN_NOT, NULL, NULL,
     "the server's limits of time and connections are its own"},
    {{"--path", "--api-prefix"}, "*", FOREIGN_NOT, NULL, NULL,
     "put a proxy in front for other paths and files"},
    {{NULL}, NULL, FOREIGN_NOT, NULL, NULL, NULL},
};
/* clang-format on */

static bool has_name(const cli_foreign_row *row, const char *name)
{
    for (size_t i = 0; i < 3 && row->names[i] != NULL; i++) {
        if (strcmp(row->names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether the value is one of the words, or, for a word "N..", a number of at least N. */
static bool is_among(const char *value, const char *words)
{
    for (const char *word = words;;) {
        char *end;
        size_t size = strcspn(word, "|");
        bool from = size > 2 && memcmp(word + size - 2, "..", 2) == 0;
        errno = 0;
        long number = strtol(value, &end, 10);
        bool is_number = end != value && *end == '\0' && errno == 0;
        if (from ? is_number && number >= strtol(word, NULL, 10)
                 : (size == 1 && *word == '*') ||
                       (strlen(value) == size && memcmp(word, value, size) == 0)) {
            return true;
        }
        if (word[size] == '\0') {
            return false;
        }
        word += size + 1;
    }
}

bool cli_foreign_is_name(const char *name, bool *takes_value)
{
    for (const cli_foreign_row *row = cli_foreign_rows; row->names[0] != NULL; row++) {
        if (has_name(row, name)) {
            *takes_value = row->values != NULL;
            return true;
        }
    }
    return false;
}

const cli_foreign_row *cli_foreign_find(const char *name, const char *value)
{
    for (const cli_foreign_row *row = cli_foreign_rows; row->names[0] != NULL; row++) {
        if (has_name(row, name) && (row->values == NULL || is_among(value, row->values))) {
            return row;
        }
    }
    return NULL;
}
