/* SPDX-License-Identifier: MIT */
#include "cli_progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli_format.h"

#define SHOW_AFTER_NS 1000000000u
#define SHOW_EVERY_NS 100000000u

void cli_progress_start(cli_progress *progress, const cli_options *options, const char *label)
{
    memset(progress, 0, sizeof *progress);
    progress->terminal = options->terminal;
    progress->enabled = !options->quiet && !options->json && isatty(STDERR_FILENO);
    progress->label = label;
    progress->start_ns = cli_now_ns();
    progress->outer = progress->terminal->working;
    progress->terminal->working = progress;
}

/* The terminal's columns, so that the line does not wrap. */
static int columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static bool is_due(const cli_progress *progress)
{
    uint64_t now = cli_now_ns();
    return progress->enabled && now - progress->start_ns >= SHOW_AFTER_NS &&
           now - progress->last_ns >= SHOW_EVERY_NS;
}

static void show(cli_progress *progress, double fraction, const char *behind)
{
    char line[256];
    static const char bar[] = "####################";
    const int width = (int)sizeof bar - 1;
    const int most = columns() - 1;
    int full = (int)(fraction * width);
    cli_terminal *terminal = progress->terminal;
    int size = snprintf(line, sizeof line, "%s [%.*s%*s] %3.0f%%%s", progress->label, full, bar,
                        width - full, "", fraction * 100, behind);
    size = size < most ? size : most;
    pthread_mutex_lock(&terminal->mutex);
    int rest = terminal->shown > size ? terminal->shown - size : 0;
    fprintf(stderr, "\r%.*s%*s", size, line, rest, "");
    fflush(stderr);
    terminal->shown = size + rest;
    pthread_mutex_unlock(&terminal->mutex);
    progress->last_ns = cli_now_ns();
}

void cli_progress_show(cli_progress *progress, double fraction)
{
    cli_progress_show_words(progress, fraction, "");
}

void cli_progress_show_words(cli_progress *progress, double fraction, const char *behind)
{
    progress->fraction = fraction;
    if (is_due(progress)) {
        show(progress, fraction, behind);
    }
}

/* Prints "1.2 of 9.8 GiB"; also prints the first number's unit if it differs. */
static int print_bytes(char *out, size_t size, const moe_pass_progress *pass)
{
    char read[CLI_FORMAT_SIZE], all[CLI_FORMAT_SIZE];
    cli_format_bytes(read, pass->bytes_read);
    if (pass->bytes_expected == 0) {
        return snprintf(out, size, ", %s", read);
    }
    cli_format_bytes(all, pass->bytes_expected);
    char *unit = strchr(read, ' ');
    if (unit != NULL && strcmp(unit, strchr(all, ' ')) == 0) {
        *unit = '\0';
    }
    return snprintf(out, size, ", %s of %s", read, all);
}

void cli_progress_pass(const moe_pass_progress *pass, void *user)
{
    char behind[128];
    const cli_terminal *terminal = user;
    cli_progress *progress = terminal->working;
    if (progress == NULL || !is_due(progress)) {
        return;
    }
    int n = snprintf(behind, sizeof behind, "  layer %u of %u", pass->layer, pass->n_layer);
    if (pass->bytes_read > 0) {
        n += print_bytes(behind + n, sizeof behind - (size_t)n, pass);
    }
    if (pass->seconds_expected > 0) {
        snprintf(behind + n, sizeof behind - (size_t)n, ", %.0f s left",
                 pass->seconds_expected - pass->seconds);
    }
    double rows = progress->n_rows == 0 ? 0 : (double)pass->rows_done / (double)progress->n_rows;
    show(progress, progress->fraction + rows < 1 ? progress->fraction + rows : 1, behind);
}

/* Call with the mutex held. */
static void take_away(cli_terminal *terminal)
{
    if (terminal->shown > 0) {
        fprintf(stderr, "\r%*s\r", terminal->shown, "");
        fflush(stderr);
    }
    terminal->shown = 0;
}

void cli_progress_end(cli_progress *progress)
{
    if (progress->terminal->working == progress) { /* it has not ended already */
        progress->terminal->working = progress->outer;
    }
    pthread_mutex_lock(&progress->terminal->mutex);
    take_away(progress->terminal);
    pthread_mutex_unlock(&progress->terminal->mutex);
}

void cli_terminal_note(cli_terminal *terminal, const char *line)
{
    pthread_mutex_lock(&terminal->mutex);
    take_away(terminal);
    fprintf(stderr, "moe-offload: note: %s\n", line);
    pthread_mutex_unlock(&terminal->mutex);
}
