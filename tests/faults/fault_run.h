/* SPDX-License-Identifier: MIT */
/* One run of the command, or of the program of the API, with the preloaded library. */
#ifndef TESTS_FAULTS_RUN_H
#define TESTS_FAULTS_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/faults/fault_page.h"

#define FAULT_PROMPT "the cat and the dog went out"

typedef struct scenario {
    const char *name;
    const char *arguments; /* words; those in capitals are replaced */
    bool writes_file;      /* OUT, which is the same where the command succeeds */
    bool has_sidecar;      /* checksums: reads may lie */
    bool writes_tokens;    /* judged by them (fault_text.h) */
} scenario;

typedef struct outcome {
    int status; /* of waitpid() */
    bool hung;
    bool asked; /* SIGINT was sent */
    size_t n_text, n_file, n_err;
    char *text, *file, *err;
} outcome;

/* The programs, and a folder with all that they read and write. */
typedef struct workplace {
    const char *command, *api, *preload;
    char folder[64];
    char page_path[96], out[96], cal[96], text_path[96], err_path[96], long_path[96];
    char model[96]; /* a copy: what a run leaves beside it is no other run's */
    fault_page *page;
    bool tells; /* the command's statistics are JSON, with a hash of the tokens */
} workplace;

/* Runs the scenario to its end. interrupt_ms: Ctrl-C after so long; 0: none. */
outcome fault_run(const workplace *place, const scenario *s, uint64_t seed, bool on_terminal,
                  uint64_t interrupt_ms);
void fault_release(outcome *o);
/* All of a file, and a zero byte; NULL: it cannot be read. */
char *fault_contents(const char *path, size_t *size);
uint64_t fault_now_ms(void);

#endif
