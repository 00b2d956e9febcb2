/* SPDX-License-Identifier: MIT */
/* Conversations that continue, are saved and loaded, and /learn in one: runs the command on a
 * terminal and types lines into it. Later commands use what it leaves; the file is whole whenever
 * the command is killed; and if it cannot be written, the command says so and the conversation goes
 * on. Usage: test_chat_learn COMMAND MODEL.gguf (one with a chat template). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define N_KILLS 10

static const char *command;
static const char *model;
static char folder[] = "/tmp/moe-chat-learn-XXXXXX";

typedef struct talk {
    pid_t child;
    int terminal; /* what is typed */
    int out;      /* both of the command's streams */
    char text[65536];
    size_t n;
    size_t seen; /* up to the end of the last word awaited */
} talk;

static void start(talk *t, const char *path)
{
    int ends[2];
    *t = (talk){.terminal = posix_openpt(O_RDWR | O_NOCTTY)};
    assert_true(t->terminal >= 0 && grantpt(t->terminal) == 0 && unlockpt(t->terminal) == 0);
    assert_int_equal(pipe(ends), 0);
    t->child = fork();
    if (t->child == 0) {
        setsid();
        dup2(open(ptsname(t->terminal), O_RDWR), 0);
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        execl(command, "moe-offload", "run", "-m", path, "-c", "256", "-n", "6", "--temp", "0",
              "-t", "2", "--quiet", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    t->out = ends[0];
}

static void type(const talk *t, const char *line)
{
    assert_int_equal(write(t->terminal, line, strlen(line)), strlen(line));
}

/* Reads until the text has that word behind the last one awaited; "": all that comes. */
static void await(talk *t, const char *word)
{
    const char *at = NULL;
    while (*word == '\0' || (at = strstr(t->text + t->seen, word)) == NULL) {
        ssize_t got = read(t->out, t->text + t->n, sizeof t->text - 1 - t->n);
        if (got <= 0 && *word != '\0') {
            fail_msg("no '%s' in: %s", word, t->text);
        }
        if (got <= 0) {
            return;
        }
        t->n += (size_t)got;
        t->text[t->n] = '\0';
    }
    t->seen = (size_t)(at - t->text) + strlen(word);
}

static int leave(talk *t)
{
    int status;
    type(t, "/exit\n");
    await(t, "");
    assert_int_equal(waitpid(t->child, &status, 0), t->child);
    close(t->terminal);
    close(t->out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The sidecar's name, and a link to the model beside it. */
static void link_model(char *path, char *sidecar, const char *name)
{
    snprintf(path, 128, "%s/%s.gguf", folder, name);
    snprintf(sidecar, 128, "%s/%s.moe-cal.gguf", folder, name);
    (void)unlink(sidecar);
    (void)unlink(path);
    assert_int_equal(symlink(model, path), 0);
}

/* What plan makes of the sidecar: it is whole, and used. */
static void check_used(const char *path, const char *sidecar)
{
    char line[512];
    char out[8192];
    snprintf(line, sizeof line, "'%s' plan -m '%s' --calibration '%s' -c 256 --json", command, path,
             sidecar);
    FILE *plan = popen(line, "r");
    assert_non_null(plan);
    size_t n = fread(out, 1, sizeof out - 1, plan);
    out[n] = '\0';
    assert_int_equal(pclose(plan), 0);
    assert_non_null(strstr(out, "\"hit_rate_is_calibrated\": true"));
}

static void learns(void **state)
{
    (void)state;
    char path[128], sidecar[128];
    talk t;
    link_model(path, sidecar, "learns");
    start(&t, path);
    await(&t, "> ");
    type(&t, "/learn\n");
    await(&t, "nothing has been evaluated");
    type(&t, "Tell me a story.\n");
    await(&t, "> ");
    type(&t, "/learn\n");
    await(&t, "learnt from ");
    await(&t, "> ");
    type(&t, "/help\n");
    await(&t, "/learn");
    assert_int_equal(leave(&t), 0);
    assert_non_null(strstr(t.text, sidecar));
    check_used(path, sidecar);
    /* Another conversation adds to it. */
    start(&t, path);
    await(&t, "> ");
    type(&t, "Another one.\n");
    await(&t, "> ");
    type(&t, "/learn\n");
    await(&t, "learnt from ");
    assert_int_equal(leave(&t), 0);
    check_used(path, sidecar);
}

static void killed(void **state)
{
    (void)state;
    char path[128], sidecar[128];
    int n_there = 0;
    link_model(path, sidecar, "killed");
    for (int i = 0; i < N_KILLS; i++) {
        talk t;
        start(&t, path);
        await(&t, "> ");
        type(&t, "Hello.\n");
        await(&t, "> ");
        type(&t, "/learn\n");
        struct timespec pause = {0, 300000 * i};
        nanosleep(&pause, NULL);
        assert_int_equal(kill(t.child, SIGKILL), 0);
        assert_int_equal(waitpid(t.child, NULL, 0), t.child);
        close(t.terminal);
        close(t.out);
        if (access(sidecar, F_OK) == 0) {
            check_used(path, sidecar);
            n_there++;
        }
    }
    print_message("a sidecar after %d of %d kills\n", n_there, N_KILLS);
}

/* A folder that nobody may write to, root neither: that of the process's own descriptors. */
static void read_only_folder(void **state)
{
    (void)state;
    char path[64];
    talk t;
    int fd = open(model, O_RDONLY);
    assert_true(fd >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    start(&t, path);
    await(&t, "> ");
    type(&t, "Hello.\n");
    await(&t, "> ");
    type(&t, "/learn\n");
    await(&t, "moe-cal.gguf");
    await(&t, "> ");
    type(&t, "/help\n"); /* it goes on */
    await(&t, "/reset");
    assert_int_equal(leave(&t), 0);
    assert_null(strstr(t.text, "learnt from"));
    close(fd);
}

/* Types the line and returns how many prompt tokens the conversation has evaluated so far. */
static long prompt_tokens_after(talk *t, const char *line)
{
    type(t, line);
    await(t, "> ");
    type(t, "/stats\n");
    await(t, "prompt: ");
    long n = strtol(t->text + t->seen, NULL, 10);
    await(t, "> ");
    return n;
}

/* A second question evaluates what is new, not all that was said; so it does after /load. */
static void goes_on(void **state)
{
    (void)state;
    char line[128];
    talk t;
    start(&t, model);
    await(&t, "> ");
    long first = prompt_tokens_after(&t, "Hello, and good morning to everybody who is here.\n");
    snprintf(line, sizeof line, "/save %s/talk\n", folder);
    type(&t, line);
    await(&t, "talk.messages.json");
    await(&t, "> ");
    long second = prompt_tokens_after(&t, "More.\n");
    assert_in_range(second - first, 1, first - 1);
    snprintf(line, sizeof line, "/load %s/talk\n", folder);
    type(&t, line);
    await(&t, "loaded ");
    await(&t, "> ");
    assert_int_equal(prompt_tokens_after(&t, "More.\n") - second, second - first);
    snprintf(line, sizeof line, "/load %s/nothing\n", folder);
    type(&t, line);
    await(&t, "nothing.messages.json, which /save writes");
    await(&t, "> ");
    assert_int_equal(leave(&t), 0);
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    char line[160];
    snprintf(line, sizeof line, "rm -rf '%s'", folder);
    return system(line);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: test_chat_learn COMMAND MODEL.gguf\n");
        return 2;
    }
    command = argv[1];
    model = argv[2];
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learns),
        cmocka_unit_test(killed),
        cmocka_unit_test(read_only_folder),
        cmocka_unit_test(goes_on),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
