/* SPDX-License-Identifier: MIT */
#include "cli_report_chart.h"

#include <math.h>

enum { WIDTH = 720, HEIGHT = 380, LEFT = 64, RIGHT = 16, TOP = 24, BOTTOM = 52 };

typedef struct scale {
    double x_min, x_max, y_max;
    bool log_x;
} scale;

void cli_chart_text(FILE *page, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '&':
            fputs("&amp;", page);
            break;
        case '<':
            fputs("&lt;", page);
            break;
        case '>':
            fputs("&gt;", page);
            break;
        case '"':
            fputs("&quot;", page);
            break;
        default:
            if ((unsigned char)*text >= ' ') {
                fputc(*text, page);
            }
        }
    }
}

static double x_of(const scale *s, double x)
{
    double share = s->log_x ? log(x / s->x_min) / log(s->x_max / s->x_min)
                            : (x - s->x_min) / (s->x_max - s->x_min);
    return LEFT + share * (WIDTH - LEFT - RIGHT);
}

static double y_of(const scale *s, double y)
{
    return TOP + (1 - y / s->y_max) * (HEIGHT - TOP - BOTTOM);
}

/* Returns the step between marks of an axis: 1, 2 or 5 times a power of ten, so that about n steps
 * reach `most`. */
static double step_of(double most, int n)
{
    double power = pow(10, floor(log10(most / n)));
    double share = most / n / power;
    return power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
}

static scale scale_of(const cli_chart *c)
{
    scale s = {.x_min = INFINITY, .x_max = -INFINITY, .y_max = 0, .log_x = c->log_x};
    for (size_t k = 0; k < c->n_curves; k++) {
        const cli_chart_curve *curve = &c->curves[k];
        for (size_t i = 0; i < curve->n; i++) {
            s.y_max = fmax(s.y_max, curve->has_band ? curve->high[i] : curve->y[i]);
            if (!curve->flat) {
                s.x_min = fmin(s.x_min, curve->x[i]);
                s.x_max = fmax(s.x_max, curve->x[i]);
            }
        }
    }
    if (c->mark != NULL) {
        s.x_min = fmin(s.x_min, c->mark_x);
        s.x_max = fmax(s.x_max, c->mark_x);
    }
    s.x_min = c->log_x ? s.x_min * 0.95 : 0;
    s.x_max = c->log_x ? s.x_max * 1.05 : fmax(s.x_max, s.x_min + 1e-9);
    s.y_max = c->y_most > 0 ? c->y_most : fmax(1.08 * s.y_max, 1e-9);
    return s;
}

/* ---- Axes ---- */

static void x_tick(const scale *s, double x, FILE *page)
{
    fprintf(page,
            "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>"
            "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n",
            x_of(s, x), TOP, x_of(s, x), HEIGHT - BOTTOM, x_of(s, x), HEIGHT - BOTTOM + 18, x);
}

static void write_x_axis(const scale *s, FILE *page)
{
    static const double of_ten[] = {1, 2, 5};
    static const double fine[] = {1, 1.5, 2, 3, 4, 5, 6, 8};
    const bool is_short = s->x_max / s->x_min < 8;
    const double *marks = is_short ? fine : of_ten;
    const size_t n_marks = is_short ? sizeof fine / sizeof *fine : sizeof of_ten / sizeof *of_ten;
    if (s->log_x) {
        double power = pow(10, floor(log10(s->x_min)));
        for (; power <= s->x_max; power *= 10) {
            for (size_t i = 0; i < n_marks; i++) {
                if (power * marks[i] >= s->x_min && power * marks[i] <= s->x_max) {
                    x_tick(s, power * marks[i], page);
                }
            }
        }
        return;
    }
    const double step = step_of(s->x_max, 10);
    for (int i = 0; i * step <= s->x_max * (1 + 1e-9); i++) {
        x_tick(s, i * step, page);
    }
}

static void write_axes(const cli_chart *c, const scale *s, FILE *page)
{
    const double step = step_of(s->y_max, 6);
    write_x_axis(s, page);
    for (int i = 0; i * step <= s->y_max * (1 + 1e-9); i++) {
        fprintf(page,
                "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                LEFT, y_of(s, i * step), WIDTH - RIGHT, y_of(s, i * step), LEFT - 8,
                y_of(s, i * step) + 4, i * step);
    }
    fprintf(page, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">", (LEFT + WIDTH - RIGHT) / 2,
            HEIGHT - 10);
    cli_chart_text(page, c->x_label);
    fprintf(page,
            "</text>\n<text transform=\"translate(14 %d) rotate(-90)\" text-anchor=\"middle\">",
            (TOP + HEIGHT - BOTTOM) / 2);
    cli_chart_text(page, c->y_label);
    fputs("</text>\n", page);
    if (c->mark != NULL) {
        const double x = x_of(s, c->mark_x);
        const bool is_right = x > WIDTH * 0.6;
        fprintf(page,
                "<line class=\"mark\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>"
                "<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">",
                x, TOP - 4, x, HEIGHT - BOTTOM, is_right ? fmin(x + 16, WIDTH - 2) : x - 16,
                TOP - 9, is_right ? "end" : "start");
        cli_chart_text(page, c->mark);
        fputs("</text>\n", page);
    }
}

/* ---- Curves ---- */

static void write_dot(size_t k, double x, double y, FILE *page)
{
    switch (k % 4) {
    case 0:
        fprintf(page, "<circle class=\"d%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", k, x, y);
        break;
    case 1:
        fprintf(page, "<rect class=\"d%zu\" x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\"/>", k,
                x - 3.5, y - 3.5);
        break;
    case 2:
        fprintf(page, "<path class=\"d%zu\" d=\"M%.1f %.1fl5 8h-10z\"/>", k, x, y - 5);
        break;
    default:
        fprintf(page, "<path class=\"d%zu\" d=\"M%.1f %.1fl5 5l-5 5l-5 -5z\"/>", k, x, y - 5);
    }
}

static void write_band(const cli_chart_curve *curve, size_t k, const scale *s, FILE *page)
{
    fprintf(page, "<path class=\"b%zu\" d=\"", k);
    for (size_t i = 0; i < curve->n; i++) {
        fprintf(page, "%c%.1f %.1f", i == 0 ? 'M' : 'L', x_of(s, curve->x[i]),
                y_of(s, curve->high[i]));
    }
    for (size_t i = curve->n; i-- > 0;) {
        fprintf(page, "L%.1f %.1f", x_of(s, curve->x[i]), y_of(s, curve->low[i]));
    }
    fputs("Z\"/>\n", page);
}

static void write_curve(const cli_chart_curve *curve, size_t k, const scale *s, FILE *page)
{
    if (curve->has_band) {
        write_band(curve, k, s, page);
    }
    if (curve->flat) {
        fprintf(page, "<path class=\"c%zu\" d=\"M%d %.1fH%d\"/>\n", k, LEFT, y_of(s, curve->y[0]),
                WIDTH - RIGHT);
        return;
    }
    if (!curve->dots) {
        fprintf(page, "<path class=\"c%zu\" d=\"", k);
        for (size_t i = 0; i < curve->n; i++) {
            fprintf(page, "%c%.1f %.1f", i == 0 ? 'M' : 'L', x_of(s, curve->x[i]),
                    y_of(s, curve->y[i]));
        }
        fputs("\"/>\n", page);
    }
    for (size_t i = 0; i < curve->n; i++) {
        write_dot(k, x_of(s, curve->x[i]), y_of(s, curve->y[i]), page);
    }
    fputc('\n', page);
}

static void write_legend(const cli_chart *c, FILE *page)
{
    fputs("<p class=\"legend\">", page);
    for (size_t k = 0; k < c->n_curves; k++) {
        fputs("<span><svg width=\"34\" height=\"12\" aria-hidden=\"true\">", page);
        if (!c->curves[k].dots) {
            fprintf(page, "<path class=\"c%zu\" d=\"M1 6H33\"/>", k);
        }
        if (!c->curves[k].flat) {
            write_dot(k, 17, 6, page);
        }
        fputs("</svg> ", page);
        cli_chart_text(page, c->curves[k].name);
        fputs("</span>\n", page);
    }
    fputs("</p>\n", page);
}

void cli_chart_write(const cli_chart *c, FILE *page)
{
    const scale s = scale_of(c);
    fputs("<figure><figcaption>", page);
    cli_chart_text(page, c->title);
    fputs("</figcaption>\n", page);
    write_legend(c, page);
    fprintf(page, "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH,
            HEIGHT);
    cli_chart_text(page, c->title);
    fputs("\">\n", page);
    write_axes(c, &s, page);
    for (size_t k = 0; k < c->n_curves; k++) {
        write_curve(&c->curves[k], k, &s, page);
    }
    fputs("</svg></figure>\n", page);
}
