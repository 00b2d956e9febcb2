/* SPDX-License-Identifier: MIT */
/* Reads the fields that control how tokens are chosen (sampling), and which probabilities the
 * answer reports. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server_values.h"

bool server_read_temperature(server_reading *r, struct json_object *value)
{
    double number = 0;
    if (!server_get_number(r, value, 0, 1000, "a number from 0 to 1000", &number)) {
        return false;
    }
    r->request->job->sampling.temperature = (float)number;
    return true;
}

bool server_read_top_p(server_reading *r, struct json_object *value)
{
    double number = 0;
    if (!server_get_number(r, value, 1e-9, 1, "a number above 0 and at most 1", &number)) {
        return false;
    }
    r->request->job->sampling.top_p = (float)number;
    return true;
}

bool server_read_min_p(server_reading *r, struct json_object *value)
{
    double number = 0;
    if (!server_get_number(r, value, 0, 0.999999, "a number from 0 to below 1", &number)) {
        return false;
    }
    r->request->job->sampling.min_p = (float)number;
    return true;
}

bool server_read_top_k(server_reading *r, struct json_object *value)
{
    int64_t n = 0;
    if (!server_get_count(r, value, 0, INT32_MAX, "a whole number from 0 to 2147483647", &n)) {
        return false;
    }
    r->request->job->sampling.top_k = (uint32_t)n;
    return true;
}

bool server_read_repeat_penalty(server_reading *r, struct json_object *value)
{
    double number = 0;
    if (!server_get_number(r, value, 1e-6, 1000, "a number above 0 and at most 1000", &number)) {
        return false;
    }
    r->request->job->sampling.repeat_penalty = (float)number;
    return true;
}

static bool read_penalty(server_reading *r, struct json_object *value, float *out)
{
    double number = 0;
    if (!server_get_number(r, value, -1000, 1000, "a number from -1000 to 1000", &number)) {
        return false;
    }
    *out = (float)number;
    return true;
}

bool server_read_presence_penalty(server_reading *r, struct json_object *value)
{
    return read_penalty(r, value, &r->request->job->sampling.presence_penalty);
}

bool server_read_frequency_penalty(server_reading *r, struct json_object *value)
{
    return read_penalty(r, value, &r->request->job->sampling.frequency_penalty);
}

/* Adds one entry of logit_bias: a token's id and the number added to its logit. -100 bans the
 * token, as in OpenAI's interface. */
static bool add_bias(server_reading *r, const char *key, struct json_object *value)
{
    static const char what[] = "an object of token ids with numbers from -100 to 100";
    server_job *job = r->request->job;
    char *end;
    errno = 0;
    long token = strtol(key, &end, 10);
    double number = 0;
    if (end == key || *end != '\0' || errno != 0 || token < 0 || token > INT32_MAX) {
        return server_wrong(r, what);
    }
    if (!server_get_number(r, value, -100, 100, what, &number)) {
        return false;
    }
    job->biases[job->n_biases++] =
        (moe_token_bias){(int32_t)token, number <= -100 ? -INFINITY : (float)number};
    return true;
}

bool server_read_logit_bias(server_reading *r, struct json_object *value)
{
    server_job *job = r->request->job;
    if (server_is_nothing(value)) {
        return true;
    }
    if (!json_object_is_type(value, json_type_object) || job->biases != NULL) {
        return server_wrong(r, "an object of token ids with numbers from -100 to 100");
    }
    job->biases = calloc((size_t)json_object_object_length(value), sizeof *job->biases);
    if (job->biases == NULL) {
        return server_fail(r->error, 503, "overloaded", NULL, "out of memory for the request");
    }
    json_object_object_foreach(value, key, member)
    {
        if (!add_bias(r, key, member)) {
            return false;
        }
    }
    return true;
}

bool server_read_choices(server_reading *r, struct json_object *value)
{
    int64_t n = 0;
    if (!server_get_count(r, value, 1, SERVER_MOST_CHOICES, "a whole number from 1 to 16", &n)) {
        return false;
    }
    r->request->n_jobs = (uint32_t)n;
    return true;
}

bool server_read_chat_logprobs(server_reading *r, struct json_object *value)
{
    return server_get_flag(r, value, &r->request->logprobs);
}

bool server_read_top_logprobs(server_reading *r, struct json_object *value)
{
    int64_t n = 0;
    if (!server_get_count(r, value, 0, MOE_MOST_TOP_TOKENS, "a whole number from 0 to 20", &n)) {
        return false;
    }
    r->request->top_logprobs = (int)n;
    return true;
}

/* Reads logprobs of /v1/completions: the number of likely tokens to report. */
bool server_read_text_logprobs(server_reading *r, struct json_object *value)
{
    if (json_object_is_type(value, json_type_boolean) && !json_object_get_boolean(value)) {
        return true;
    }
    r->request->logprobs = true;
    return server_read_top_logprobs(r, value);
}

/* Reads a word, such as "high", that becomes a variable of the chat template. The template may
 * ignore it. */
static bool read_word(server_reading *r, struct json_object *value, struct json_object **out)
{
    *out = value;
    return (json_object_is_type(value, json_type_string) &&
            json_object_get_string_len(value) <= 32) ||
           server_wrong(r, "a word, such as 'low' or 'high'");
}

bool server_read_effort(server_reading *r, struct json_object *value)
{
    return read_word(r, value, &r->request->effort);
}

/* Reads the verbosity in the same way. */
bool server_read_verbosity(server_reading *r, struct json_object *value)
{
    return read_word(r, value, &r->request->verbosity);
}

bool server_read_stop_ids(server_reading *r, struct json_object *value)
{
    static const char what[] = "an array of at most 64 token ids";
    server_job *job = r->request->job;
    const size_t n =
        json_object_is_type(value, json_type_array) ? json_object_array_length(value) : SIZE_MAX;
    if (n > SERVER_MOST_STOP_IDS) {
        return server_wrong(r, what);
    }
    for (job->n_stop_ids = 0; job->n_stop_ids < n; job->n_stop_ids++) {
        int64_t id = -1;
        struct json_object *one = json_object_array_get_idx(value, job->n_stop_ids);
        if (!server_get_count(r, one, 0, INT32_MAX, what, &id)) {
            return false;
        }
        job->stop_ids[job->n_stop_ids] = (int32_t)id;
    }
    return true;
}

bool server_read_seed(server_reading *r, struct json_object *value)
{
    int64_t n = 0;
    if (json_object_is_type(value, json_type_int) && json_object_get_int64(value) == -1) {
        return true; /* any */
    }
    if (!server_get_count(r, value, 0, INT64_MAX, "a whole number of at least 0", &n)) {
        return false;
    }
    r->request->has_sampling_seed = true;
    r->request->job->sampling.seed = (uint64_t)n;
    return true;
}

static bool add_stop(server_reading *r, struct json_object *value)
{
    server_stops *stops = &r->request->job->stops;
    size_t size = (size_t)json_object_get_string_len(value);
    if (!json_object_is_type(value, json_type_string) || size == 0 || size > SERVER_LONGEST_STOP ||
        stops->n == SERVER_MOST_STOPS) {
        return server_wrong(r,
                            "a string of 1 to 256 bytes, or an array of at most 16 such strings");
    }
    memcpy(stops->texts[stops->n], json_object_get_string(value), size);
    stops->sizes[stops->n++] = size;
    return true;
}

bool server_read_stop(server_reading *r, struct json_object *value)
{
    if (!json_object_is_type(value, json_type_array)) {
        return add_stop(r, value);
    }
    for (size_t i = 0; i < json_object_array_length(value); i++) {
        if (!add_stop(r, json_object_array_get_idx(value, i))) {
            return false;
        }
    }
    return true;
}
