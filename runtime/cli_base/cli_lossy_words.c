/* SPDX-License-Identifier: MIT */
#include "cli_lossy_words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Takes the next item from *text; false at the end. */
static bool next_item(const char **text, char *item, size_t size)
{
    if (**text == '\0') {
        return false;
    }
    size_t n = strcspn(*text, ",");
    size_t copied = n < size ? n : size - 1;
    memcpy(item, *text, copied);
    item[copied] = '\0';
    *text += n + ((*text)[n] == ',');
    return true;
}

static int read_budget(moe_lossy_options *lossy, moe_lab_options *lab, const char *text)
{
    char item[32];
    while (text != NULL && next_item(&text, item, sizeof item)) {
        if (strcmp(item, "router") == 0 || strcmp(item, "static") == 0) {
            lossy->budget_order = item[0] == 's' ? MOE_BUDGET_BY_CALIBRATION : MOE_BUDGET_BY_ROUTER;
            lab->budget_oracle = false;
        } else if (strcmp(item, "oracle") == 0) {
            lab->budget_oracle = true;
        } else if (strcmp(item, "substitute") == 0 || strcmp(item, "truncate") == 0) {
            lossy->budget_truncates = item[0] == 't';
        } else if (strcmp(item, "free") == 0) {
            lossy->budget_free_resident = true;
        } else if (strcmp(item, "error") == 0) {
            lab->budget_error = true;
        } else {
            return cli_fail(CLI_EXIT_USAGE,
                            "--expert-budget-mode: '%s' is none of router, static, oracle, "
                            "substitute, truncate, free, error",
                            item);
        }
    }
    if ((lab->budget_oracle || lab->budget_error) && lossy->budget_free_resident) {
        return cli_fail(CLI_EXIT_USAGE,
                        "--expert-budget-mode: free cannot go with oracle or error: their exact "
                        "computation brings in what would not be resident");
    }
    return CLI_EXIT_OK;
}

static bool number_in(const char *text, double least, double most, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && *value >= least && *value <= most;
}

static bool set_more(moe_lossy_options *b, const char *name, const char *text)
{
    double v;
    cli_size size;
    if (strcmp(name, "kappa") == 0 && number_in(text, 0, 1, &v)) {
        b->buddies_kappa = (float)v;
    } else if (strcmp(name, "epsilon") == 0 && number_in(text, 0, 1e6, &v)) {
        b->buddies_epsilon = (float)v;
    } else if (strcmp(name, "temperature") == 0 && number_in(text, 0.1, 10, &v)) {
        b->buddies_temperature = (float)v;
    } else if (strcmp(name, "reuse") == 0 && number_in(text, 0, 1, &v)) {
        b->buddies_reuse = (float)v;
    } else if (strcmp(name, "transfer") == 0 && cli_size_parse(text, &size) && size.bytes > 0) {
        b->buddies_transfer = size.bytes;
    } else {
        return false;
    }
    return true;
}

static bool set_number(moe_lossy_options *b, const char *name, const char *text)
{
    double v;
    if (strcmp(name, "rho") == 0 && number_in(text, 0, 64, &v)) {
        b->buddies_max_replaced = (uint32_t)v;
    } else if (strcmp(name, "alpha") == 0 && number_in(text, 1e-6, 1, &v)) {
        b->buddies_alpha = (float)v;
    } else if (strcmp(name, "max") == 0 && number_in(text, 1, 1024, &v)) {
        b->buddies_max = (uint32_t)v;
    } else if (strcmp(name, "search") == 0 && number_in(text, 0, 1024, &v)) {
        b->buddies_search = (uint32_t)v;
    } else if (strcmp(name, "tae") == 0 && number_in(text, 0, 99, &v)) {
        b->buddies_tae_percentile = (uint32_t)v;
    } else if (strcmp(name, "margin") == 0 && number_in(text, 0, 2, &v)) {
        b->buddies_margin = (float)v;
    } else if (strcmp(name, "beta") == 0 && number_in(text, 0, 1, &v)) {
        b->buddies_beta = (float)v;
    } else if (strcmp(name, "eta") == 0 && number_in(text, 0, 10, &v)) {
        b->buddies_eta = (float)v;
    } else {
        return set_more(b, name, text);
    }
    return true;
}

static bool set_item(moe_lossy_options *b, char *item)
{
    char *value = strchr(item, '=');
    if (value == NULL) {
        b->buddies_random |= strcmp(item, "random") == 0;
        return strcmp(item, "random") == 0 || strcmp(item, "on") == 0;
    }
    *value++ = '\0';
    if (strcmp(item, "weight") == 0) {
        b->buddies_own_weight = strcmp(value, "own") == 0;
        return b->buddies_own_weight || strcmp(value, "inherit") == 0;
    }
    if (strcmp(item, "lists") == 0) {
        b->buddies_weighted = strcmp(value, "weighted") == 0;
        return b->buddies_weighted || strcmp(value, "counted") == 0;
    }
    if (strcmp(item, "missing") == 0) {
        b->buddies_drop = strcmp(value, "drop") == 0;
        return b->buddies_drop || strcmp(value, "fetch") == 0;
    }
    return set_number(b, item, value);
}

static bool is_on(const char *text)
{
    return text != NULL && strcmp(text, "off") != 0;
}

static int read_buddies(moe_lossy_options *lossy, const char *text)
{
    if (!is_on(text)) {
        return CLI_EXIT_OK;
    }
    lossy->buddies = true;
    char item[64];
    const char *all = text;
    while (next_item(&text, item, sizeof item)) {
        char shown[64];
        snprintf(shown, sizeof shown, "%s", item);
        if (!set_item(lossy, item)) {
            return cli_fail(CLI_EXIT_USAGE,
                            "--buddy: '%s' in '%s' is not understood; on, random, rho=0..64, "
                            "alpha=(0..1], max=1.., search=, tae=0..99 (percentile; 0: no gate), "
                            "temperature=0.1..10, margin=, beta=0..1, transfer=SIZE, eta=, "
                            "kappa=0..1, reuse=0..1, epsilon=, lists=counted|weighted, "
                            "weight=inherit|own, missing=fetch|drop",
                            shown, all);
        }
    }
    return CLI_EXIT_OK;
}

static bool set_low_bit(moe_lossy_options *l, const char *item)
{
    double v;
    if (strncmp(item, "below=", 6) == 0 && number_in(item + 6, 1e-6, 1, &v)) {
        l->low_bit_below = (float)v;
    } else if (strncmp(item, "share=", 6) == 0 && number_in(item + 6, 0.001, 0.999, &v)) {
        l->low_bit_share = v;
    } else {
        return strcmp(item, "on") == 0;
    }
    return true;
}

static int read_low_bit(moe_lossy_options *lossy, const char *text)
{
    if (!is_on(text)) {
        return CLI_EXIT_OK;
    }
    lossy->low_bit = true;
    char item[64];
    const char *all = text;
    while (next_item(&text, item, sizeof item)) {
        if (!set_low_bit(lossy, item)) {
            return cli_fail(CLI_EXIT_USAGE,
                            "--low-bit: '%s' in '%s' is not understood; on, below=(0..1] (of a "
                            "token's router weight), share=0.001..0.999 (of the experts' memory)",
                            item, all);
        }
    }
    return CLI_EXIT_OK;
}

int cli_lossy_words(moe_lossy_options *lossy, moe_lab_options *lab, const cli_options *options)
{
    int code = read_budget(lossy, lab, options->expert_budget_mode);
    if (code == CLI_EXIT_OK) {
        code = read_buddies(lossy, options->buddy);
    }
    return code == CLI_EXIT_OK ? read_low_bit(lossy, options->low_bit) : code;
}

bool cli_lossy_is_asked(const cli_options *options)
{
    return options->expert_budget > 0 || is_on(options->buddy) || is_on(options->low_bit);
}
