/* SPDX-License-Identifier: MIT */
/* Speeds of one model with one share of its experts on the device: opens it once, evaluates prompts
 * of several lengths, then decodes behind a text. Each figure is appended to a file as a line of
 * JSON as soon as it is measured, so that a run that is killed loses none.
 *
 *     residency_speeds MODEL [--name TEXT] [--figures FILE] [--device NAME] [--share PERCENT]
 *         [--host off|auto] [--prompts N,N,..] [--depth N] [--decode N] [--repeat N] [--topic N]
 *         [--attention own|exact]
 *
 * Tokens are forced, never greedy: greedy text of random weights settles on a few experts. They are
 * drawn from a topic of so many different tokens, which changes by one token every sixteen; a
 * smaller topic asks for fewer experts. The figure stands beside its hit rate (of the measured
 * tokens alone), because a speed below full residency means nothing without it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <moe/moe.h>

#define MAX_PROMPTS 8
#define MAX_TOPIC   4096
#define TOPIC_STEP  16 /* tokens until one of the topic is replaced */

typedef struct speeds {
    const char *model, *name, *figures, *device;
    double share; /* percent */
    moe_switch host;
    const char *host_name;
    bool exact_attention; /* of a GPU; else its own */
    size_t prompts[MAX_PROMPTS];
    size_t n_prompts, depth, n_decode, repeat, n_topic;
    moe_engine *engine;
    moe_session *session;
    moe_engine_info info;
    uint64_t random;
    int32_t topic[MAX_TOPIC];
    size_t n_drawn;
    moe_error err;
} speeds;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* SplitMix64. */
static uint64_t next_random(speeds *s)
{
    uint64_t z = s->random += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static int32_t any_token(speeds *s)
{
    return (int32_t)(next_random(s) % s->info.n_vocab);
}

static void begin_text(speeds *s)
{
    s->random = 0;
    s->n_drawn = 0;
    for (size_t i = 0; i < s->n_topic; i++) {
        s->topic[i] = any_token(s);
    }
}

static int32_t draw(speeds *s)
{
    if (++s->n_drawn % TOPIC_STEP == 0) {
        s->topic[next_random(s) % s->n_topic] = any_token(s);
    }
    return s->topic[next_random(s) % s->n_topic];
}

/* Appends what was measured between two readings of the statistics. */
static int put(const speeds *s, const char *subject, size_t depth, size_t n_tokens, double seconds,
               const moe_engine_stats *a, const moe_engine_stats *b)
{
    FILE *file = s->figures == NULL ? stdout : fopen(s->figures, "a");
    if (file == NULL) {
        perror(s->figures);
        return 1;
    }
    double hits = (double)(b->expert_hits - a->expert_hits);
    double misses = (double)(b->expert_misses - a->expert_misses);
    fprintf(file,
            "{\"subject\": \"%s\", \"of\": \"%s, %g%% resident, host computing %s%s\", \"value\": "
            "%.6g, \"unit\": \"tokens/s\", \"share\": %g, \"host\": \"%s\", \"depth\": %zu, "
            "\"tokens\": %zu, \"seconds\": %.6f, \"topic\": %zu, \"hit_rate\": %.6f, "
            "\"misses\": %.0f, \"host_computed\": %" PRIu64 ", \"read_in_place\": %" PRIu64
            ", \"bytes_moved\": %" PRIu64 ", \"bytes_in_place\": %" PRIu64
            ", \"passes_recorded\": %" PRIu64 ", \"passes\": %" PRIu64
            ", \"active_bytes\": %" PRIu64 "}\n",
            subject, s->name, s->share, s->host_name, s->exact_attention ? ", exact attention" : "",
            (double)n_tokens / seconds, s->share, s->host_name, depth, n_tokens, seconds,
            s->n_topic, hits + misses > 0 ? hits / (hits + misses) : 1.0, misses,
            b->host_computed - a->host_computed, b->read_in_place - a->read_in_place,
            b->bytes_moved_link - a->bytes_moved_link, b->bytes_in_place - a->bytes_in_place,
            b->passes_recorded - a->passes_recorded, b->passes - a->passes, s->info.active_bytes);
    return file == stdout ? fflush(file) != 0 : fclose(file) != 0;
}

static moe_engine_stats stats_of(const speeds *s)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(s->engine, &stats);
    return stats;
}

/* Evaluates n tokens of the text behind what is there. */
static int evaluate(speeds *s, size_t n)
{
    size_t begin = moe_session_n_tokens(s->session);
    int status = MOE_OK;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        int32_t token = draw(s);
        status = moe_session_feed(s->session, &token, 1, &s->err);
    }
    while (status == MOE_OK && moe_session_n_tokens(s->session) == begin + n) {
        status = moe_step(s->engine, &s->session, 1, &s->err);
    }
    return status == MOE_OK ? moe_session_truncate(s->session, begin + n, &s->err) : status;
}

static int measure_prompt(speeds *s, size_t n)
{
    begin_text(s);
    int status = moe_session_truncate(s->session, 0, &s->err);
    moe_engine_stats before = stats_of(s);
    double begin = now_s();
    if (status == MOE_OK) {
        status = evaluate(s, n);
    }
    double seconds = now_s() - begin;
    moe_engine_stats after = stats_of(s);
    return status == MOE_OK ? put(s, "prompt", 0, n, seconds, &before, &after) : status;
}

static int measure_decode(speeds *s)
{
    begin_text(s);
    int status = moe_session_truncate(s->session, 0, &s->err);
    if (status == MOE_OK) {
        status = evaluate(s, s->depth);
    }
    moe_engine_stats before = stats_of(s);
    double begin = now_s();
    for (size_t i = 0; i < s->n_decode && status == MOE_OK; i++) {
        status = evaluate(s, 1);
    }
    double seconds = now_s() - begin;
    moe_engine_stats after = stats_of(s);
    return status == MOE_OK ? put(s, "decode", s->depth, s->n_decode, seconds, &before, &after)
                            : status;
}

static int open_model(speeds *s)
{
    moe_engine_options options;
    moe_session_options of_session;
    size_t longest = s->depth + s->n_decode;
    for (size_t i = 0; i < s->n_prompts; i++) {
        longest = s->prompts[i] > longest ? s->prompts[i] : longest;
    }
    moe_engine_options_init(&options);
    options.model_path = s->model;
    options.device = s->device;
    options.expert_cache_share = s->share / 100;
    options.host_compute = s->host;
    options.exact_attention = s->exact_attention;
    options.context = (uint32_t)longest + 1;
    options.buffered_io = true; /* the file was just written: it is in the page cache */
    options.checksums = "none";
    options.calibration = "none";
    double begin = now_s();
    int status = moe_engine_open(&s->engine, &options, &s->err);
    if (status != MOE_OK) {
        return status;
    }
    s->info.struct_size = sizeof s->info;
    moe_engine_get_info(s->engine, &s->info);
    printf("opened %s with %g%% of the experts on %s in %.2f s\n", s->name, s->share,
           s->info.device, now_s() - begin);
    fflush(stdout);
    moe_session_options_init(&of_session);
    of_session.sampling.temperature = 0;
    return moe_session_create(&s->session, s->engine, &of_session, &s->err);
}

static int measure_all(speeds *s)
{
    int status = open_model(s);
    for (size_t r = 0; r < s->repeat && status == MOE_OK; r++) {
        status = s->n_decode > 0 ? measure_decode(s) : MOE_OK;
    }
    for (size_t i = 0; i < s->n_prompts; i++) {
        for (size_t r = 0; r < s->repeat && status == MOE_OK; r++) {
            status = measure_prompt(s, s->prompts[i]);
        }
    }
    return status;
}

static bool read_option(speeds *s, const char *key, const char *value)
{
    if (strcmp(key, "--name") == 0) {
        s->name = value;
    } else if (strcmp(key, "--figures") == 0) {
        s->figures = value;
    } else if (strcmp(key, "--device") == 0) {
        s->device = value;
    } else if (strcmp(key, "--share") == 0) {
        s->share = atof(value);
    } else if (strcmp(key, "--host") == 0) {
        s->host_name = value;
        s->host = strcmp(value, "off") == 0 ? MOE_SWITCH_OFF : MOE_SWITCH_AUTO;
    } else if (strcmp(key, "--attention") == 0) {
        s->exact_attention = strcmp(value, "exact") == 0;
    } else if (strcmp(key, "--depth") == 0) {
        s->depth = strtoul(value, NULL, 10);
    } else if (strcmp(key, "--decode") == 0) {
        s->n_decode = strtoul(value, NULL, 10);
    } else if (strcmp(key, "--repeat") == 0) {
        s->repeat = strtoul(value, NULL, 10);
    } else if (strcmp(key, "--topic") == 0) {
        s->n_topic = strtoul(value, NULL, 10);
    } else if (strcmp(key, "--prompts") == 0) {
        for (char *end; *value != '\0' && s->n_prompts < MAX_PROMPTS;) {
            s->prompts[s->n_prompts++] = strtoul(value, &end, 10);
            value = *end == ',' ? end + 1 : "";
        }
    } else {
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static speeds s = {.device = "cuda",
                       .share = 100,
                       .host = MOE_SWITCH_OFF,
                       .host_name = "off",
                       .depth = 512,
                       .n_decode = 128,
                       .repeat = 3,
                       .n_topic = 8};
    bool usable = argc >= 2 && argc % 2 == 0;
    s.model = s.name = usable ? argv[1] : NULL;
    for (int i = 2; i + 1 < argc && usable; i += 2) {
        usable = read_option(&s, argv[i], argv[i + 1]);
    }
    if (!usable || s.share <= 0 || s.share > 100 || s.depth == 0 || s.n_topic == 0 ||
        s.n_topic > MAX_TOPIC) {
        fprintf(stderr, "usage: the head of bench/residency_speeds.c says it\n");
        return 2;
    }
    int status = measure_all(&s);
    if (status != MOE_OK) {
        fprintf(stderr, "residency_speeds: %s\n", s.err.message);
    }
    moe_session_close(&s.session);
    moe_engine_close(&s.engine);
    return status == MOE_OK ? 0 : 1;
}
