/* SPDX-License-Identifier: MIT */
/* Runs a fuzz target without libFuzzer: on each file given, and on each file of each folder given,
 * as it is and then mutated.
 *
 *     fuzz_gguf [--mutations N] [--seconds S] [--dictionary FILE] FILE_OR_FOLDER...
 *
 * Mutations also insert and write the dictionary's words. The N mutations (default 0) are drawn
 * from a fixed seed, spread evenly over the inputs, so every run does the same; S (default 60)
 * bounds them in time on slow machines, and the count that was reached is printed. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/clock.h"
#include "tests/fuzz/fuzz.h"

#define MAX_INPUTS 4096
#define ROOM       64 /* for one inserted word */

typedef struct input {
    uint8_t *data;
    size_t size;
} input;

typedef struct inputs {
    input items[MAX_INPUTS];
    size_t n;
} inputs;

/* Words of libFuzzer's dictionaries: NAME="bytes", with \\\\, \\" and \\xAB. */
#define MAX_WORDS 512

typedef struct dictionary {
    uint8_t bytes[MAX_WORDS][64];
    size_t sizes[MAX_WORDS];
    size_t n;
} dictionary;

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 2685821657736338717u;
}

static int load_file(inputs *all, const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat about;
    if (file == NULL || fstat(fileno(file), &about) != 0 || all->n == MAX_INPUTS) {
        perror(path);
        return -1;
    }
    size_t size = (size_t)about.st_size;
    uint8_t *data = malloc(size + 1);
    if (data == NULL || fread(data, 1, size, file) != size) {
        perror(path);
        return -1;
    }
    fclose(file);
    all->items[all->n++] = (input){data, size};
    return 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* In the order of the names, so that every machine draws the same mutations. */
static int load(inputs *all, const char *path)
{
    struct stat about;
    struct dirent **entries;
    int status = 0;
    if (stat(path, &about) != 0) {
        perror(path);
        return -1;
    }
    if (!S_ISDIR(about.st_mode)) {
        return load_file(all, path);
    }
    int n = scandir(path, &entries, NULL, by_name);
    for (int i = 0; i < n; i++) {
        char inner[4096];
        snprintf(inner, sizeof inner, "%s/%s", path, entries[i]->d_name);
        if (status == 0 && entries[i]->d_name[0] != '.') {
            status = load(all, inner);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

static size_t read_word(const char *text, uint8_t *bytes, size_t capacity)
{
    size_t n = 0;
    for (; *text != '\0' && *text != '"' && n < capacity; n++) {
        unsigned value;
        if (text[0] == '\\' && text[1] == 'x' && sscanf(text + 2, "%2x", &value) == 1) {
            bytes[n] = (uint8_t)value;
            text += 4;
        } else {
            text += text[0] == '\\';
            bytes[n] = (uint8_t)*text++;
        }
    }
    return n;
}

static int load_dictionary(dictionary *words, const char *path)
{
    char line[1024];
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        perror(path);
        return -1;
    }
    while (words->n < MAX_WORDS && fgets(line, sizeof line, file) != NULL) {
        const char *quote = line[0] == '#' ? NULL : strchr(line, '"');
        if (quote != NULL) {
            words->sizes[words->n] = read_word(quote + 1, words->bytes[words->n], 64);
            words->n++;
        }
    }
    fclose(file);
    return 0;
}

/* Values at which lengths, counts and offsets go wrong. */
static uint64_t interesting(uint64_t *random)
{
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      7,
                                      31,
                                      32,
                                      127,
                                      128,
                                      255,
                                      256,
                                      65535,
                                      65536,
                                      0x7fffffff,
                                      0x80000000,
                                      0xffffffff,
                                      0x100000000,
                                      INT64_MAX,
                                      UINT64_MAX,
                                      UINT64_MAX - 31};
    return values[next_random(random) % (sizeof values / sizeof values[0])];
}

static void overwrite(uint8_t *data, size_t size, uint64_t value, size_t width, size_t at)
{
    for (size_t i = 0; i < width && at + i < size; i++) {
        data[at + i] = (uint8_t)(value >> (8 * i));
    }
}

/* Writes a word over what stands there, or before it, where there is room. */
static void put_word(uint8_t *data, size_t *size, size_t at, const dictionary *words,
                     uint64_t *random)
{
    size_t word = next_random(random) % words->n;
    size_t length = words->sizes[word];
    if (next_random(random) % 2 == 0 && length <= ROOM) {
        memmove(data + at + length, data + at, *size - at);
        *size += length;
    }
    length = length < *size - at ? length : *size - at;
    memcpy(data + at, words->bytes[word], length);
}

/* One to four small changes. Half of them hit the first 2 KiB, where headers are. */
static void mutate(uint8_t *data, size_t *size, const dictionary *words, uint64_t *random)
{
    for (uint64_t n = 1 + next_random(random) % 4; n > 0 && *size > 0; n--) {
        size_t reach = next_random(random) % 2 == 0 && *size > 2048 ? 2048 : *size;
        size_t at = next_random(random) % reach;
        switch (next_random(random) % (words->n > 0 ? 9 : 7)) {
        case 0:
            data[at] ^= (uint8_t)(1u << next_random(random) % 8);
            break;
        case 1:
            data[at] = (uint8_t)next_random(random);
            break;
        case 2:
            overwrite(data, *size, interesting(random), 4, at);
            break;
        case 3:
            overwrite(data, *size, interesting(random), 8, at);
            break;
        case 4: /* a value of the file, one more or less */
            data[at] = (uint8_t)(data[at] + (next_random(random) % 2 == 0 ? 1 : -1));
            break;
        case 5: { /* a piece of the file repeated elsewhere */
            size_t from = next_random(random) % *size;
            size_t length = next_random(random) % 64;
            length = length < *size - from ? length : *size - from;
            length = length < *size - at ? length : *size - at;
            memmove(data + at, data + from, length);
            break;
        }
        case 6:
            if (next_random(random) % 4 == 0) {
                *size = at;
            }
            break;
        default:
            put_word(data, size, at, words, random);
            break;
        }
    }
}

static int run_mutations(const inputs *all, const dictionary *words, long n_mutations,
                         double seconds)
{
    uint64_t random = 88172645463325252u;
    uint64_t end = moe_now_ns() + (uint64_t)(seconds * 1e9);
    long done = 0;
    while (done < n_mutations && moe_now_ns() < end) {
        const input *source = &all->items[(size_t)done % all->n];
        size_t size = source->size;
        /* Of exact size, so that a sanitizer sees reads beyond it. */
        uint8_t *copy = malloc(size + 4 * ROOM);
        if (copy == NULL) {
            return 1;
        }
        memcpy(copy, source->data, size);
        mutate(copy, &size, words, &random);
        uint8_t *exact = malloc(size == 0 ? 1 : size);
        if (exact == NULL) {
            return 1;
        }
        memcpy(exact, copy, size);
        free(copy);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
        done++;
    }
    printf("%zu inputs, %ld of %ld mutations\n", all->n, done, n_mutations);
    return 0;
}

int main(int argc, char **argv)
{
    static inputs all;
    static dictionary words;
    long n_mutations = 0;
    double seconds = 60;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--mutations") == 0 && i + 1 < argc) {
            n_mutations = strtol(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            seconds = strtod(argv[++i], NULL);
        } else if (strcmp(argv[i], "--dictionary") == 0 && i + 1 < argc) {
            if (load_dictionary(&words, argv[++i]) != 0) {
                return 1;
            }
        } else if (load(&all, argv[i]) != 0) {
            return 1;
        }
    }
    if (all.n == 0) {
        fprintf(stderr,
                "usage: %s [--mutations N] [--seconds S] [--dictionary FILE] "
                "FILE_OR_FOLDER...\n",
                argv[0]);
        return 2;
    }
    for (size_t i = 0; i < all.n; i++) {
        LLVMFuzzerTestOneInput(all.items[i].data, all.items[i].size);
    }
    int status = run_mutations(&all, &words, n_mutations, seconds);
    for (size_t i = 0; i < all.n; i++) {
        free(all.items[i].data);
    }
    return status;
}
