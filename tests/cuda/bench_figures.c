/* SPDX-License-Identifier: MIT */
#include "bench_figures.h"

void bench_figure_put(FILE *json, const bench_figure *f)
{
    printf("%-12s %-46s %10.2f %-8s", f->subject, f->of, f->value, f->unit);
    if (f->bound > 0) {
        printf(" %4.0f%% of %s", 100.0 * f->value / f->bound, f->bound_of);
    }
    if (f->beside > 0) {
        printf(" %5.2f times %s", f->value / f->beside, f->beside_of);
    }
    printf("\n");
    fflush(stdout); /* what was measured is kept if the next case hangs */
    if (json == NULL) {
        return;
    }
    fprintf(json, "{\"subject\": \"%s\", \"of\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"",
            f->subject, f->of, f->value, f->unit);
    if (f->bound > 0) {
        fprintf(json, ", \"roofline_share\": %.4f, \"roofline\": \"%s\"", f->value / f->bound,
                f->bound_of);
    }
    if (f->beside > 0) {
        fprintf(json, ", \"ratio\": %.4f, \"ratio_to\": \"%s\"", f->value / f->beside,
                f->beside_of);
    }
    fprintf(json, "}\n");
    fflush(json);
}
