/* SPDX-License-Identifier: MIT */
#include "cli_nearest.h"

#include <string.h>

#define LONGEST      64 /* longer words have no near ones */
#define LEAST_PREFIX 4

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Returns how many letters must be inserted, dropped, replaced, or swapped with a neighbour to turn
 * a into b. */
static size_t distance(const char *a, const char *b)
{
    size_t rows[3][LONGEST + 1];
    size_t n = strlen(a), m = strlen(b);
    if (n > LONGEST || m > LONGEST) {
        return LONGEST;
    }
    for (size_t j = 0; j <= m; j++) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= n; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3], *second = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            row[j] = least(least(above[j], row[j - 1]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                row[j] = least(row[j], second[j - 2] + 1);
            }
        }
    }
    return rows[n % 3][m];
}

void cli_nearest_try(cli_nearest *nearest, const char *candidate)
{
    size_t size = strlen(nearest->typed);
    size_t most = size / 4 < 3 ? size / 4 + 1 : 3;
    size_t d = size >= LEAST_PREFIX && strncmp(candidate, nearest->typed, size) == 0
                   ? 1
                   : distance(nearest->typed, candidate);
    if (d <= most && d < size && (nearest->word == NULL || d < nearest->distance)) {
        nearest->word = candidate;
        nearest->distance = d;
    }
}
