/* SPDX-License-Identifier: MIT */
#include "cli_program.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Returns the environment with the setting in front; NULL if memory is short. */
static char **environment_with(const char *setting)
{
    size_t n = 0;
    while (environ[n] != NULL) {
        n++;
    }
    char **all = calloc(n + 2, sizeof *all);
    if (all != NULL) {
        size_t at = 0;
        if (setting != NULL) {
            all[at++] = (char *)setting;
        }
        memcpy(all + at, environ, n * sizeof *all);
    }
    return all;
}

/* Creates an input file that no other process sees, so that neither program waits for the other, as
 * with a pipe. */
static int input_file(const cli_buffer *input)
{
    if (input == NULL || input->size == 0) {
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    FILE *file = tmpfile();
    int fd = -1;
    if (file != NULL && fwrite(input->data, 1, input->size, file) == input->size &&
        fflush(file) == 0) {
        fd = dup(fileno(file));
    }
    if (file != NULL) {
        fclose(file);
    }
    return fd >= 0 && lseek(fd, 0, SEEK_SET) == 0 ? fd : -1;
}

static void read_output(int fd, cli_buffer *output)
{
    char chunk[4096];
    ssize_t n;
    while ((n = read(fd, chunk, sizeof chunk)) != 0) {
        if (n < 0 && errno != EINTR) {
            break;
        }
        if (n > 0 && output != NULL) {
            (void)cli_buffer_append(output, chunk, (size_t)n);
        }
    }
}

static int start_and_wait(const char *const *argv, char **environment, int in, const int pipes[2],
                          cli_buffer *output)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    if (posix_spawn_file_actions_init(&actions) != 0) {
        return CLI_PROGRAM_NOT_RUN;
    }
    bool ok =
        posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO) == 0 &&
        posix_spawn_file_actions_adddup2(&actions, pipes[1], STDOUT_FILENO) == 0 &&
        posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0) == 0 &&
        posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)argv, environment) == 0;
    posix_spawn_file_actions_destroy(&actions);
    close(pipes[1]);
    if (!ok) {
        return CLI_PROGRAM_NOT_RUN;
    }
    read_output(pipes[0], output);
    int status;
    pid_t waited;
    do {
        waited = waitpid(pid, &status, 0);
    } while (waited < 0 && errno == EINTR);
    return waited == pid && WIFEXITED(status) ? WEXITSTATUS(status) : CLI_PROGRAM_NOT_RUN;
}

int cli_program_run(const char *const *argv, const char *setting, const cli_buffer *input,
                    cli_buffer *output)
{
    int pipes[2];
    char **environment = environment_with(setting);
    int in = input_file(input);
    int status = CLI_PROGRAM_NOT_RUN;
    if (environment != NULL && in >= 0 && pipe2(pipes, O_CLOEXEC) == 0) {
        status = start_and_wait(argv, environment, in, pipes, output);
        close(pipes[0]);
    }
    if (in >= 0) {
        close(in);
    }
    free(environment);
    return status;
}
