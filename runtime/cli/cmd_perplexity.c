/* SPDX-License-Identifier: MIT */
/* Computes perplexity as llama-perplexity does. The text is cut into chunks of -c tokens, each
 * evaluated from an empty context. BOS replaces a chunk's first token if the model has one. The
 * tokens at c/2+1 .. c-1 are scored, so each has at least half a context before it. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <moe/moe.h>

#include "cli_engine.h"
#include "cli_format.h"
#include "cli_generate.h"
#include "cli_interrupt.h"
#include "cli_json.h"
#include "cli_prompt.h"
#include "cli_score.h"
#include "commands.h"

#define DEFAULT_CHUNK 512

typedef struct scoring {
    const moe_engine *engine;
    const int32_t *tokens; /* of the chunk */
    size_t n_chunk;
    size_t first; /* positions from here on predict a scored token */
    uint32_t n_vocab;
    /* Sums over all chunks. */
    uint64_t n_scored;
    uint64_t n_bytes; /* of the scored tokens' text */
    double nll;       /* nats */
    double nll_squares;
    uint64_t n_right; /* the likeliest token was the text's own */
    /* For progress. */
    cli_progress progress;
    size_t n_done;
    size_t n_total;
} scoring;

static uint32_t likeliest(const float *logits, uint32_t n_vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n_vocab; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

/* -log softmax(logits)[token] in double precision, after subtracting the largest logit. */
static double negative_log_likelihood(const float *logits, uint32_t n_vocab, int32_t token)
{
    float largest = logits[likeliest(logits, n_vocab)];
    double sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        sum += exp((double)logits[i] - (double)largest);
    }
    return log(sum) - ((double)logits[token] - (double)largest);
}

static bool on_logits(size_t position, const float *logits, void *user)
{
    scoring *s = user;
    if (position >= s->first && position + 1 < s->n_chunk) {
        size_t size;
        int32_t next = s->tokens[position + 1];
        double nll = negative_log_likelihood(logits, s->n_vocab, next);
        (void)moe_token_piece(s->engine, next, false, &size);
        s->nll += nll;
        s->nll_squares += nll * nll;
        s->n_bytes += size;
        s->n_scored++;
        s->n_right += (int32_t)likeliest(logits, s->n_vocab) == next;
    }
    s->n_done++;
    cli_progress_show(&s->progress, (double)s->n_done / (double)s->n_total);
    return true;
}

/* The token that begins a text, or MOE_TOKEN_NONE: the encoding of an empty text, if the given
 * encoding begins with it too. */
static int32_t find_bos(const moe_engine *engine, const int32_t *tokens, size_t n)
{
    int32_t *empty;
    size_t n_empty;
    if (moe_tokenize(engine, "", 0, MOE_TOKENIZE_ADD_SPECIAL, &empty, &n_empty, NULL) != MOE_OK) {
        return MOE_TOKEN_NONE;
    }
    bool begins = n > 0 && n_empty > 0 && empty[0] == tokens[0];
    moe_free(empty);
    return begins ? tokens[0] : MOE_TOKEN_NONE;
}

static int print_result(const moe_engine *engine, const cli_options *options, const scoring *s,
                        size_t n_tokens, size_t n_chunks, uint64_t ns)
{
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    double n = (double)s->n_scored;
    double mean = s->nll / n;
    double accuracy = (double)s->n_right / n;
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    double variance = s->nll_squares / n - mean * mean;
    double perplexity = exp(mean);
    double error = n > 1 && variance > 0 ? perplexity * sqrt(variance / (n - 1)) : 0;
    double bits = s->n_bytes == 0 ? 0 : s->nll / log(2) / (double)s->n_bytes;
    double output_error = stats.lossy.output_error;
    if (!options->json) {
        printf("perplexity %.4f +/- %.5f, %.4f bits per byte, %.2f %% of next tokens right%s\n",
               perplexity, error, bits, 100 * accuracy, stats.lossy.picks > 0 ? " (LOSSY)" : "");
        if (output_error > 0.0) {
            printf("routed experts' output: relative square error %.5f, %.2f %% of the router's "
                   "mass on the list\n",
                   output_error, 100 * stats.lossy.mass_kept);
        }
        if (!options->quiet) {
            fprintf(stderr,
                    "%zu chunks of %zu tokens (of %zu), %" PRIu64 " tokens scored, %.1f tokens/s\n",
                    n_chunks, s->n_chunk, n_tokens, s->n_scored, cli_per_second(s->n_done, ns));
        }
        cli_print_lossy(&stats.lossy);
        return CLI_EXIT_OK;
    }
    char fingerprint[CLI_FORMAT_SIZE];
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, info.fingerprint);
    struct json_object *object = json_object_new_object();
    cli_json_put(object, "perplexity", json_object_new_double(perplexity));
    cli_json_real(object, "standard_error", error);
    cli_json_put(object, "bits_per_byte", json_object_new_double(bits));
    cli_json_put(object, "negative_log_likelihood", json_object_new_double(s->nll));
    cli_json_real(object, "accuracy", accuracy);
    cli_json_put(object, "lossy", json_object_new_boolean(stats.lossy.picks > 0));
    cli_put_lossy_json(object, &stats.lossy);
    cli_json_u64(object, "lossy_experts_natural", stats.lossy.experts_natural);
    cli_json_u64(object, "lossy_experts_used", stats.lossy.experts_used);
    cli_json_u64(object, "text_tokens", n_tokens);
    cli_json_u64(object, "chunk_tokens", s->n_chunk);
    cli_json_u64(object, "chunks", n_chunks);
    cli_json_u64(object, "scored_tokens", s->n_scored);
    cli_json_u64(object, "scored_bytes", s->n_bytes);
    cli_json_u64(object, "evaluated_tokens", s->n_done);
    cli_json_u64(object, "bytes_demand", stats.bytes_demand);
    cli_json_u64(object, "bytes_read_disk", stats.bytes_read_disk);
    cli_json_real(object, "tokens_per_s", cli_per_second(s->n_done, ns));
    cli_json_text(object, "model_fingerprint", fingerprint);
    return cli_json_print(object, stdout);
}

static int score_chunks(moe_engine *engine, const cli_options *options, int32_t *tokens, size_t n)
{
    scoring s;
    moe_engine_info info = {.struct_size = sizeof info};
    moe_session *session = NULL;
    memset(&s, 0, sizeof s);
    moe_engine_get_info(engine, &info);
    s.engine = engine;
    s.n_vocab = info.n_vocab;
    s.n_chunk = info.context;
    s.first = s.n_chunk / 2;
    size_t n_chunks = n / s.n_chunk;
    s.n_total = n_chunks * s.n_chunk;
    if (n_chunks < 2) {
        return cli_fail(CLI_EXIT_FAILURE,
                        "the text has %zu tokens: two chunks of %zu are the least; give a longer "
                        "text or a smaller -c",
                        n, s.n_chunk);
    }
    int32_t bos = find_bos(engine, tokens, n);
    uint64_t start = cli_now_ns();
    int code = cli_score_open(&session, engine);
    cli_progress_start(&s.progress, options, "perplexity");
    for (size_t chunk = 0; chunk < n_chunks && code == CLI_EXIT_OK; chunk++) {
        int32_t *part = tokens + chunk * s.n_chunk;
        int32_t replaced = part[0];
        part[0] = bos != MOE_TOKEN_NONE ? bos : replaced;
        s.tokens = part;
        code = cli_score(session, part, s.n_chunk, on_logits, &s);
        part[0] = replaced;
    }
    cli_progress_end(&s.progress);
    cli_score_close(&session);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    return print_result(engine, options, &s, n, n_chunks, cli_now_ns() - start);
}

int cmd_perplexity(const cli_options *options)
{
    moe_engine *engine;
    int32_t *tokens;
    size_t n;
    cli_interrupt_install();
    uint64_t context = options->context == 0 ? DEFAULT_CHUNK : options->context;
    int code = cli_text_tokens(&engine, options, context, &tokens, &n);
    if (code == CLI_EXIT_OK) {
        code = score_chunks(engine, options, tokens, n);
    }
    moe_free(tokens);
    moe_engine_close(&engine);
    return code;
}
