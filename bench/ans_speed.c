// SPDX-License-Identifier: MIT
/* What an order-0 entropy coder with one fixed table makes of a file's bytes, and how fast one core
 * decodes them: range asymmetric numeral systems (rANS), 16 interleaved states of 32 bits,
 * frequencies of 12 bits, steps of 16 bits.
 *
 *     ans_speed FILE    # prints: bytes, coded bytes, GB decoded in a second of the core (median of
 * 9) of 9)
 *
 * Exit status 1 if the file cannot be read, is smaller than a block of states, or does not come
 * back as it was. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STATES 16
#define BITS   12
#define TOTAL  (1u << BITS)
#define LOW    (1u << 16)
#define TIMES  9

typedef struct {
    uint32_t frequency[256];
    uint32_t start[256];
    uint32_t slot[TOTAL]; /* symbol, frequency - 1 and distance from the start: 8, 12 and 12 bits */
} table_t;

/* Frequencies that sum to TOTAL; a symbol that occurs has at least 1. */
static void make_table(table_t *t, const uint8_t *data, size_t n)
{
    size_t count[256] = {0};
    for (size_t i = 0; i < n; i++)
        count[data[i]]++;
    uint32_t sum = 0;
    for (int s = 0; s < 256; s++) {
        t->frequency[s] = (uint32_t)((double)count[s] * TOTAL / (double)n);
        if (count[s] > 0 && t->frequency[s] == 0)
            t->frequency[s] = 1;
        sum += t->frequency[s];
    }
    while (sum != TOTAL) { /* the most frequent symbol feels it least */
        int most = 0;
        for (int s = 1; s < 256; s++)
            most = t->frequency[s] > t->frequency[most] ? s : most;
        t->frequency[most] += sum < TOTAL ? 1 : UINT32_MAX;
        sum += sum < TOTAL ? 1 : UINT32_MAX;
    }
    uint32_t at = 0;
    for (uint32_t s = 0; s < 256; s++) {
        t->start[s] = at;
        for (uint32_t i = 0; i < t->frequency[s]; i++)
            t->slot[at++] = s << 24 | (t->frequency[s] - 1) << 12 | i;
    }
}

/* Writes words backwards from end; returns where they begin. n is a multiple of STATES. */
static uint16_t *encode(const table_t *t, const uint8_t *data, size_t n, uint16_t *end)
{
    uint32_t state[STATES];
    for (int j = 0; j < STATES; j++)
        state[j] = LOW;
    for (size_t i = n; i-- > 0;) {
        uint32_t *x = &state[i % STATES];
        const uint32_t f = t->frequency[data[i]];
        if (*x >= (uint64_t)f << (32 - BITS)) {
            *--end = (uint16_t)*x;
            *x >>= 16;
        }
        *x = *x / f << BITS | (*x % f + t->start[data[i]]);
    }
    for (int j = STATES; j-- > 0;) {
        *--end = (uint16_t)state[j];
        *--end = (uint16_t)(state[j] >> 16);
    }
    return end;
}

static void decode(const table_t *t, const uint16_t *from, uint8_t *out, size_t n)
{
    uint32_t state[STATES];
    for (int j = 0; j < STATES; j++, from += 2)
        state[j] = (uint32_t)from[0] << 16 | from[1];
    for (size_t i = 0; i < n; i += STATES) {
        for (int j = 0; j < STATES; j++) {
            const uint32_t slot = t->slot[state[j] & (TOTAL - 1)];
            const uint32_t x =
                ((slot >> 12 & (TOTAL - 1)) + 1) * (state[j] >> BITS) + (slot & (TOTAL - 1));
            const uint32_t refill = x < LOW;
            out[i + (size_t)j] = (uint8_t)(slot >> 24);
            state[j] = x << 16 * refill | (*from & (0 - refill)); /* no branch */
            from += refill;
        }
    }
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The whole file, rounded down to a multiple of STATES bytes; NULL if that is nothing. */
static uint8_t *read_all(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return NULL;
    uint8_t *data = NULL;
    if (fseek(file, 0, SEEK_END) == 0 && ftell(file) >= STATES) {
        *n = (size_t)ftell(file) / STATES * STATES;
        data = malloc(*n);
        if (data != NULL && (fseek(file, 0, SEEK_SET) != 0 || fread(data, 1, *n, file) != *n)) {
            free(data);
            data = NULL;
        }
    }
    fclose(file);
    return data;
}

int main(int argc, char **argv)
{
    static table_t table;
    size_t n = 0;
    uint8_t *data = argc == 2 ? read_all(argv[1], &n) : NULL;
    const size_t n_words = n + 4 * STATES; /* a symbol gives 12 bits at most, so this is enough */
    uint16_t *words = malloc((n_words + 1) * sizeof(*words)); /* decode() looks one word ahead */
    uint8_t *back = malloc(n + 1);
    if (data == NULL || words == NULL || back == NULL) {
        fprintf(stderr, "usage: ans_speed FILE (of at least %d bytes)\n", STATES);
        return 1;
    }
    make_table(&table, data, n);
    const uint16_t *coded = encode(&table, data, n, words + n_words);
    double seconds[TIMES];
    for (int i = 0; i < TIMES; i++) {
        const double began = cpu_s();
        decode(&table, coded, back, n);
        seconds[i] = cpu_s() - began;
    }
    if (memcmp(data, back, n) != 0) {
        fprintf(stderr, "%s: did not come back as it was\n", argv[1]);
        return 1;
    }
    qsort(seconds, TIMES, sizeof(*seconds), by_size);
    printf("%zu %zu %.3f\n", n, (size_t)(words + n_words - coded) * 2,
           1e-9 * (double)n / seconds[TIMES / 2]);
    free(data);
    free(words);
    free(back);
    return 0;
}
