/* SPDX-License-Identifier: MIT */
/* Parses "cascade:t=2,set=8,back-off=off": a controller, and for cascade the constants and rules
 * that an ablation changes. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/draft/length_control.h"

#define MOST_ITERATIONS 1000000u

static bool parse_kind(const char *text, size_t size, moe_length_kind *kind)
{
    static const char *const names[] = {[MOE_LENGTH_SURVIVAL] = "survival",
                                        [MOE_LENGTH_CASCADE] = "cascade",
                                        [MOE_LENGTH_STATIC] = "static"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strlen(names[i]) == size && memcmp(names[i], text, size) == 0) {
            *kind = (moe_length_kind)i;
            return true;
        }
    }
    return false;
}

static bool is_word(const char *text, size_t size, const char *word)
{
    return strlen(word) == size && memcmp(text, word, size) == 0;
}

static bool set_switch(bool *without, const char *value, size_t size)
{
    *without = is_word(value, size, "off");
    return *without || is_word(value, size, "on");
}

static bool set_count(uint32_t *count, const char *value, size_t size)
{
    uint32_t n = 0;
    for (size_t i = 0; i < size; i++) {
        if (value[i] < '0' || value[i] > '9' || n > MOST_ITERATIONS) {
            return false;
        }
        n = 10 * n + (uint32_t)(value[i] - '0');
    }
    *count = n;
    return n >= 1 && n <= MOST_ITERATIONS;
}

static bool set_item(moe_length_options *o, const char *item, size_t size)
{
    size_t n = 0;
    while (n < size && item[n] != '=') {
        n++;
    }
    if (n == size) {
        return false;
    }
    const char *value = item + n + 1;
    size_t n_value = size - n - 1;
    if (is_word(item, n, "t")) {
        return set_count(&o->trial_iterations, value, n_value);
    }
    if (is_word(item, n, "trials")) {
        return set_count(&o->test_trials, value, n_value);
    }
    if (is_word(item, n, "set")) {
        return set_count(&o->set_iterations, value, n_value);
    }
    if (is_word(item, n, "refresh")) {
        return set_count(&o->refresh_iterations, value, n_value);
    }
    if (is_word(item, n, "back-off")) {
        return set_switch(&o->no_back_off, value, n_value);
    }
    if (is_word(item, n, "early-exit")) {
        return set_switch(&o->no_early_exit, value, n_value);
    }
    return is_word(item, n, "disable") && set_switch(&o->no_disable, value, n_value);
}

int moe_length_options_parse(moe_length_options *options, const char *text, moe_error *err)
{
    moe_length_options parsed = *options;
    size_t n = strcspn(text, ":");
    if (!parse_kind(text, n, &parsed.kind)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "length control: '%.60s' is none of survival, cascade, static", text);
    }
    if (text[n] == ':' && parsed.kind != MOE_LENGTH_CASCADE) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "length control: only cascade has settings, and '%.60s' gives some", text);
    }
    for (const char *item = text + n; *item != '\0';) {
        item++; /* ':' or ',' */
        size_t size = strcspn(item, ",");
        if (!set_item(&parsed, item, size)) {
            return moe_fail(err, MOE_ERR_ARGUMENT,
                            "length control: '%.*s' in '%.60s' is not understood; t=, trials=, "
                            "set=, refresh= (iterations, 1 or more), back-off=, early-exit=, "
                            "disable= (on or off)",
                            size < 60 ? (int)size : 60, item, text);
        }
        item += size;
    }
    *options = parsed;
    return MOE_OK;
}
