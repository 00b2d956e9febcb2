/* SPDX-License-Identifier: MIT */
#include "cli_drive_speed.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moe/lab.h>

#include "cli_engine.h"
#include "cli_interrupt.h"

#define BLOCK_BYTES (UINT64_C(1) << 20)
#define N_BLOCKS    256u

/* Fills the buffer with random bytes, which no drive can compress. */
static void fill(uint64_t *words, uint64_t *state)
{
    for (size_t i = 0; i < BLOCK_BYTES / sizeof *words; i++) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        words[i] = *state;
    }
}

static int write_file(int fd, const char *path)
{
    uint64_t state = 88172645463325252u;
    uint64_t *words = malloc(BLOCK_BYTES);
    int code = words == NULL ? cli_fail(CLI_EXIT_FAILURE, "out of memory for a test of the drive")
                             : CLI_EXIT_OK;
    for (unsigned i = 0; i < N_BLOCKS && code == CLI_EXIT_OK; i++) {
        fill(words, &state);
        if (cli_interrupted()) {
            code = CLI_EXIT_INTERRUPTED;
        } else if (write(fd, words, BLOCK_BYTES) != (ssize_t)BLOCK_BYTES) {
            code = cli_fail(CLI_EXIT_FAILURE, "%s cannot be written: %s", path, strerror(errno));
        }
    }
    free(words);
    if (code == CLI_EXIT_OK && fsync(fd) != 0) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s cannot be written: %s", path, strerror(errno));
    }
    return code;
}

int cli_drive_speed(const char *beside, double *bytes_per_s)
{
    char path[PATH_MAX];
    moe_storage_test test;
    moe_storage_speed speed = {.struct_size = sizeof speed};
    moe_error err = {""};
    int n = snprintf(path, sizeof path, "%s.drive", beside);
    int fd = n > 0 && (size_t)n < sizeof path
                 ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)
                 : -1;
    if (fd < 0) {
        return cli_fail(CLI_EXIT_FAILURE, "%s.drive cannot be made: %s", beside, strerror(errno));
    }
    int code = write_file(fd, path);
    close(fd);
    moe_storage_test_init(&test);
    test.path = path;
    test.total_bytes = N_BLOCKS * BLOCK_BYTES;
    int status = code == CLI_EXIT_OK ? moe_storage_measure(&test, &speed, &err) : MOE_OK;
    unlink(path);
    *bytes_per_s = speed.bytes_per_s;
    return status == MOE_OK ? code : cli_report(status, &err);
}
