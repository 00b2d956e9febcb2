/* SPDX-License-Identifier: MIT */
#include "cli_progress.h"

#include <stdio.h>
#include <string.h>
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
}

void cli_progress_show(cli_progress *progress, double fraction)
{
    static const char bar[] = "##############################";
    const int width = (int)sizeof bar - 1;
    uint64_t now = cli_now_ns();
    if (!progress->enabled || now - progress->start_ns < SHOW_AFTER_NS ||
        now - progress->last_ns < SHOW_EVERY_NS) {
        return;
    }
    int full = (int)(fraction * width);
    cli_terminal *terminal = progress->terminal;
    pthread_mutex_lock(&terminal->mutex);
    fprintf(stderr, "\r%s [%.*s%*s] %3.0f%%", progress->label, full, bar, width - full, "",
            fraction * 100);
    fflush(stderr);
    terminal->shown = (int)strlen(progress->label) + 40;
    pthread_mutex_unlock(&terminal->mutex);
    progress->last_ns = now;
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
