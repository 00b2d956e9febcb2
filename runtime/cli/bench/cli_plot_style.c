/* SPDX-License-Identifier: MIT */
#include "cli_plot_style.h"

#include <string.h>

/* Okabe and Ito's, yellow darker; then two greys. From the eleventh curve on colours come again,
 * with other dashes. */
static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000",
                                      "#56b4e9", "#e69f00", "#8a7a00", "#767676", "#b0b0b0"};

#define N_COLOURS (sizeof colours / sizeof *colours)

void cli_plot_style(FILE *script)
{
    for (size_t k = 0; k < 3 * N_COLOURS; k++) {
        fprintf(script, "set linetype %zu lc rgb '%s' dt %zu pt %zu lw 2 ps 0.8\n", k + 1,
                colours[k % N_COLOURS], 1 + (k + k / N_COLOURS) % 5, 1 + k % 15);
    }
    fputs("set key outside noenhanced\nset grid lc rgb '#d8d8d8' lt 1 lw 1\n", script);
}

const char *cli_plot_words(const char *column)
{
    static const char *const words[][2] = {
        {"expert_cache", "experts in memory (% of all)"},
        {"policy", "cache policy"},
        {"prefetch", "read-ahead"},
        {"io", "way of reading"},
        {"engine", "way of reading"},
        {"threads", "threads"},
        {"block", "longest read (bytes)"},
        {"depth", "reads at a time"},
        {"drive", "drive"},
        {"tokens_per_s", "tokens a second"},
        {"hit_percent", "hit rate (%)"},
        {"gb_per_s", "read from the drive (GB/s)"},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(column, words[i][0]) == 0) {
            return words[i][1];
        }
    }
    return column;
}
