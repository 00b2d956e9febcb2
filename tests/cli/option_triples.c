/* SPDX-License-Identifier: MIT */
/* option_triples: command lines of `run` that have every triple of options together, each with up
 * to two values and without it, for option_triples.py: a covering array of strength 3. Words are
 * separated by tabs, "-" stands for no value:
 *   line  --option  value  ...
 *   refused  --option  value  --option  value  --option  value
 * The second are triples that the parser refuses although it accepts each two of the three.
 * Arguments: a file for the parser's messages, a seed, and a file of what the engine refuses:
 *   --option  value  excludes | needs  --option  value      a value may be "*": any */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "option_values.h"

enum { MOST_FACTORS = 128, MOST_SETTINGS = 512, MOST_RULES = 256, VALUES = 2 };

typedef enum state { OPEN, COVERED, REFUSED } state;

/* An option with a value, or without it. */
typedef struct setting {
    uint32_t factor;
    const option_choice *choice; /* NULL: the option is absent */
} setting;

typedef struct engine_rule {
    char words[5][128]; /* option, value, "excludes" or "needs", option, value */
} engine_rule;

/* Which setting each factor has. */
typedef struct line {
    int of[MOST_FACTORS]; /* -1: not decided yet */
} line;

static const cli_command *command;
static option_choice choices[OPTION_VALUES_MOST];
static size_t n_choices;
static setting settings[MOST_SETTINGS];
static int n_settings;
static struct {
    int first, n; /* settings */
} factors[MOST_FACTORS];
static uint32_t n_factors;
static engine_rule rules[MOST_RULES];
static size_t n_rules;
static bool pair_is_good[MOST_SETTINGS][MOST_SETTINGS];
static uint8_t *triples; /* [n_settings]^3, of ascending ones */
static uint64_t dice;

static uint32_t roll(uint32_t n)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (uint32_t)(dice >> 16) % n;
}

static uint8_t *triple(int a, int b, int c)
{
    int low = a < b ? (a < c ? a : c) : (b < c ? b : c);
    int high = a > b ? (a > c ? a : c) : (b > c ? b : c);
    int middle = a + b + c - low - high;
    return &triples[((size_t)low * (size_t)n_settings + (size_t)middle) * (size_t)n_settings +
                    (size_t)high];
}

/* ---- What may stand together ---- */

static bool is_named(const option_choice *c, const char *option, const char *value)
{
    return cli_option_has_name(c->row, option) &&
           (strcmp(value, "*") == 0 || strcmp(value, c->text) == 0);
}

static bool is_forbidden(const option_choice *a, const option_choice *b)
{
    for (size_t i = 0; i < n_rules; i++) {
        const engine_rule *r = &rules[i];
        if (strcmp(r->words[2], "excludes") == 0 &&
            ((is_named(a, r->words[0], r->words[1]) && is_named(b, r->words[3], r->words[4])) ||
             (is_named(b, r->words[0], r->words[1]) && is_named(a, r->words[3], r->words[4])))) {
            return true;
        }
    }
    return false;
}

static bool is_good(const line *l)
{
    const option_choice *list[MOST_FACTORS];
    size_t n = 0;
    for (uint32_t f = 0; f < n_factors; f++) {
        const option_choice *c = l->of[f] >= 0 ? settings[l->of[f]].choice : NULL;
        for (size_t i = 0; c != NULL && i < n; i++) {
            if (is_forbidden(c, list[i])) {
                return false;
            }
        }
        if (c != NULL) {
            list[n++] = c;
        }
    }
    return option_values_accepted(command, list, n);
}

/* Decides for the setting, and for what it needs. False: it cannot stand there. */
static bool decide(line *l, int at)
{
    const setting *s = &settings[at];
    if (l->of[s->factor] >= 0) {
        return l->of[s->factor] == at;
    }
    l->of[s->factor] = at;
    for (size_t i = 0; s->choice != NULL && i < s->choice->n_others; i++) {
        int other = 0;
        while (other < n_settings && settings[other].choice != s->choice->others[i]) {
            other++;
        }
        if (other == n_settings || !decide(l, other)) {
            return false;
        }
    }
    return true;
}

static bool can_stand(const int *which, size_t n, line *l)
{
    memset(l, 0xff, sizeof *l);
    for (size_t i = 0; i < n; i++) {
        if (!decide(l, which[i])) {
            return false;
        }
    }
    return is_good(l);
}

/* ---- The settings ---- */

static bool is_kept(const option_choice *c, size_t n_of_row)
{
    if (n_of_row < VALUES) {
        return true;
    }
    for (size_t i = 0; i < n_choices; i++) { /* another one needs it */
        for (size_t k = 0; k < choices[i].n_others; k++) {
            if (choices[i].others[k] == c) {
                return true;
            }
        }
    }
    return false;
}

/* Adds what the engine asks for beside the choice. */
static void add_needs(option_choice *c)
{
    for (size_t i = 0; i < n_rules; i++) {
        const engine_rule *r = &rules[i];
        bool needs = strcmp(r->words[2], "needs") == 0 && is_named(c, r->words[0], r->words[1]);
        for (size_t k = 0; needs && k < n_choices && c->n_others < OPTION_VALUES_MOST_OTHERS; k++) {
            if (is_named(&choices[k], r->words[3], r->words[4])) {
                c->others[c->n_others++] = &choices[k];
                needs = false;
            }
        }
    }
}

/* The model is always the same one. */
static bool list_settings(void)
{
    for (size_t i = 0; i < cli_n_option_rows; i++) {
        if ((cli_option_rows[i].commands & command->bit) != 0) {
            n_choices += option_values_of(choices + n_choices, &cli_option_rows[i], command->bit);
        }
    }
    for (size_t i = 0; i < n_choices; i++) {
        if (!option_values_find_others(command, &choices[i], choices, n_choices)) {
            return false;
        }
        add_needs(&choices[i]);
    }
    for (size_t i = 0, n; i < n_choices; i += n) {
        const cli_option_row *row = choices[i].row;
        size_t n_kept = 0;
        for (n = 1; i + n < n_choices && choices[i + n].row == row; n++) {
        }
        if (cli_option_has_name(row, "--model")) {
            continue;
        }
        factors[n_factors].first = n_settings;
        settings[n_settings++] = (setting){n_factors, NULL};
        for (size_t k = i; k < i + n; k++) {
            if (is_kept(&choices[k], n_kept)) {
                settings[n_settings++] = (setting){n_factors, &choices[k]};
                n_kept++;
            }
        }
        factors[n_factors].n = n_settings - factors[n_factors].first;
        n_factors++;
    }
    return true;
}

static bool read_rules(const char *path)
{
    FILE *file = fopen(path, "r");
    char text[600];
    while (file != NULL && n_rules < MOST_RULES && fgets(text, sizeof text, file) != NULL) {
        engine_rule *r = &rules[n_rules++];
        char *rest = text;
        text[strcspn(text, "\n")] = '\0';
        for (int i = 0; i < 5; i++) {
            const char *word = strsep(&rest, "\t");
            snprintf(r->words[i], sizeof r->words[i], "%s", word != NULL ? word : "");
        }
    }
    return file != NULL && fclose(file) == 0;
}

/* ---- Lines ---- */

static void print_settings(const char *kind, const int *which, size_t n)
{
    printf("%s", kind);
    for (size_t i = 0; i < n; i++) {
        const option_choice *c = which[i] >= 0 ? settings[which[i]].choice : NULL;
        if (c != NULL) {
            printf("\t%s\t%s", c->row->names[0], c->text);
        }
    }
    printf("\n");
}

static uint32_t count_new(const line *l, int at)
{
    uint32_t n = 0;
    for (uint32_t f = 0; f < n_factors; f++) {
        for (uint32_t g = 0; g < f && l->of[f] >= 0; g++) {
            n += l->of[g] >= 0 && *triple(at, l->of[f], l->of[g]) == OPEN;
        }
    }
    return n;
}

/* Gives the factor the setting that covers most of what is open and can stand there. */
static void decide_best(line *l, uint32_t factor)
{
    uint32_t gains[MOST_SETTINGS];
    for (int i = 0; i < factors[factor].n; i++) {
        gains[i] = 1 + 4 * count_new(l, factors[factor].first + i) + roll(4);
    }
    for (int tries = 0; tries < factors[factor].n; tries++) {
        int best = 0;
        for (int i = 1; i < factors[factor].n; i++) {
            best = gains[i] > gains[best] ? i : best;
        }
        line tried = *l;
        if (decide(&tried, factors[factor].first + best) && is_good(&tried)) {
            *l = tried;
            return;
        }
        gains[best] = 0;
    }
    l->of[factor] = factors[factor].first; /* without it, what stands already can stand */
}

static void make_line(line *l)
{
    uint32_t order[MOST_FACTORS];
    for (uint32_t f = 0; f < n_factors; f++) {
        uint32_t at = roll(f + 1);
        order[f] = order[at];
        order[at] = f;
    }
    for (uint32_t f = 0; f < n_factors; f++) {
        if (l->of[order[f]] < 0) {
            decide_best(l, order[f]);
        }
    }
    for (uint32_t f = 0; f < n_factors; f++) {
        for (uint32_t g = 0; g < f; g++) {
            for (uint32_t h = 0; h < g; h++) {
                *triple(l->of[f], l->of[g], l->of[h]) = COVERED;
            }
        }
    }
    print_settings("line", l->of, n_factors);
}

static void cover(int a, int b, int c, uint64_t counts[3])
{
    line l;
    const int which[3] = {a, b, c};
    bool good = pair_is_good[a][b] && pair_is_good[a][c] && pair_is_good[b][c];
    if (good && can_stand(which, 3, &l)) {
        make_line(&l);
    } else {
        *triple(a, b, c) = REFUSED;
    }
    if (good && *triple(a, b, c) == REFUSED) {
        print_settings("refused", which, 3);
    }
    counts[*triple(a, b, c)]++;
}

int main(int argc, char **argv)
{
    uint64_t counts[3] = {0, 0, 0};
    for (command = cli_commands; strcmp(command->name, "run") != 0; command++) {
    }
    if (argc != 4 || freopen(argv[1], "w", stderr) == NULL || !read_rules(argv[3]) ||
        !list_settings()) {
        return 2;
    }
    dice = strtoull(argv[2], NULL, 10) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    triples = calloc((size_t)n_settings * (size_t)n_settings, (size_t)n_settings);
    if (triples == NULL) {
        return 2;
    }
    for (int a = 0; a < n_settings; a++) {
        for (int b = a + 1; b < n_settings; b++) {
            line l;
            pair_is_good[a][b] =
                settings[a].factor != settings[b].factor && can_stand((const int[]){a, b}, 2, &l);
        }
    }
    for (int a = 0; a < n_settings; a++) {
        for (int b = a + 1; b < n_settings; b++) {
            for (int c = b + 1; c < n_settings; c++) {
                if (settings[a].factor == settings[b].factor ||
                    settings[b].factor == settings[c].factor) {
                    continue;
                }
                if (*triple(a, b, c) == OPEN) {
                    cover(a, b, c, counts);
                } else {
                    counts[*triple(a, b, c)]++;
                }
            }
        }
    }
    printf("counts\t%u\t%llu\t%llu\n", n_factors, (unsigned long long)counts[COVERED],
           (unsigned long long)counts[REFUSED]);
    free(triples);
    return 0;
}
