/* SPDX-License-Identifier: MIT */
/* The command's words for the engine ("--io uring", "--low-bit below=0.5") as values of the
 * library's enumerations and structs. */
#ifndef CLI_ENGINE_WORDS_H
#define CLI_ENGINE_WORDS_H

#include <moe/lab.h>
#include <moe/lossy_modes.h>

#include "cli_copies.h"
#include "cli_overrides.h"
#include "cli_workers.h"

/* The library's options and the structs attached to them. It must not move once it is filled in. */
typedef struct cli_engine_settings {
    moe_engine_options options;
    moe_lossy_options lossy;
    moe_lab_options lab;
    cli_overrides overrides;
    cli_copies copies;
    cli_workers workers;
} cli_engine_settings;

/* Initialises the settings and fills in the values that the command has as words; the rest keeps
 * its defaults. Returns an exit code; errors have been printed. */
int cli_engine_words(cli_engine_settings *settings, const cli_options *options);

/* Converts the word; NULL is auto. Returns an exit code; errors have been printed. */
int cli_io_kind(moe_io_kind *kind, const char *word);

#endif
