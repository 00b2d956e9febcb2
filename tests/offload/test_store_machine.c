/* SPDX-License-Identifier: MIT */
/* Whole engines on machines that refuse something: io_uring, at once or during a run; locked
 * memory; address space; file descriptors. Also a model file that is replaced while it is open.
 * Each case runs in a child process that has lost the facility under test: the text is the same, or
 * the error says what is missing. Usage: test_store_machine ORACLE-FOLDER */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <moe/moe.h>

#define N_PROMPT 40
#define N_DECODE 20
#define HANG_S   1800u

static char model_path[1024];
static int32_t expected[N_DECODE];

/* What the engine told. */
typedef struct told {
    char line[512];
    uint32_t n;
} told;

static void keep_line(const char *line, void *user)
{
    told *t = user;
    snprintf(t->line, sizeof t->line, "%s", line);
    t->n++;
}

static int open_engine(moe_engine **engine, told *t, moe_error *err)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.device = "cpu";
    options.calibration = "none";
    options.n_threads = 2;
    options.context = 256;
    options.prefill_chunk = 32;
    options.expert_cache_share = 0.3;
    options.log = keep_line;
    options.user = t;
    return moe_engine_open(engine, &options, err);
}

static bool write_tokens(moe_engine *engine, int32_t *tokens, size_t n, moe_error *err)
{
    moe_session_options options;
    moe_session_options_init(&options);
    options.sampling.temperature = 0.0f;
    moe_session *session;
    int32_t prompt[N_PROMPT];
    for (int32_t i = 0; i < N_PROMPT; i++) {
        prompt[i] = i * i * 7 % 288;
    }
    bool good = moe_session_create(&session, engine, &options, err) == MOE_OK &&
                moe_session_feed(session, prompt, N_PROMPT, err) == MOE_OK;
    for (size_t taken = 0; good && taken < n;) {
        good = moe_step(engine, &session, 1, err) == MOE_OK;
        taken += moe_session_take(session, tokens + taken, n - taken);
    }
    moe_session_close(&session);
    return good;
}

/* NULL, or what is wrong with the text. */
static const char *check_tokens(moe_engine *engine)
{
    int32_t tokens[N_DECODE];
    moe_error error;
    if (!write_tokens(engine, tokens, N_DECODE, &error)) {
        return "a step failed";
    }
    return memcmp(tokens, expected, sizeof tokens) == 0 ? NULL : "other tokens";
}

static int make_expected(void **state)
{
    (void)state;
    moe_engine *engine;
    moe_error error;
    told t = {.n = 0};
    assert_int_equal(open_engine(&engine, &t, &error), MOE_OK);
    assert_true(write_tokens(engine, expected, N_DECODE, &error));
    moe_engine_close(&engine);
    return 0;
}

typedef const char *(*child_fn)(int argument);

/* Runs fn in a child; it returns NULL, or what went wrong, or "skip". */
static void in_child(child_fn fn, int argument)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(HANG_S);
        const char *wrong = fn(argument);
        if (wrong != NULL && strcmp(wrong, "skip") != 0) {
            fprintf(stderr, "in the child: %s\n", wrong);
        }
        _exit(wrong == NULL ? 0 : strcmp(wrong, "skip") == 0 ? 77 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The system call fails so in every thread from here on. */
static bool forbid(uint32_t call, int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

static bool has_io_uring(moe_engine *engine)
{
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    return strstr(info.io, "io_uring") != NULL;
}

static const char *without_io_uring(int error)
{
    moe_engine *engine;
    moe_error err;
    told t = {.n = 0};
    if (!forbid(SYS_io_uring_setup, error)) {
        return "skip";
    }
    if (open_engine(&engine, &t, &err) != MOE_OK) {
        return "open";
    }
    if (has_io_uring(engine)) {
        return "which engine";
    }
    if (t.n != 1 || strstr(t.line, strerror(error)) == NULL) {
        return "not one line that tells it";
    }
    const char *wrong = check_tokens(engine);
    moe_engine_close(&engine);
    return wrong;
}

static void io_uring_refused(void **state)
{
    (void)state;
    in_child(without_io_uring, ENOSYS);
    in_child(without_io_uring, EPERM);
}

/* A sandbox closes around the running engine. */
static const char *io_uring_taken_away(int error)
{
    moe_engine *engine;
    moe_error err = {""};
    told t = {.n = 0};
    int32_t tokens[N_DECODE];
    if (open_engine(&engine, &t, &err) != MOE_OK || check_tokens(engine) != NULL) {
        return "before";
    }
    if (!has_io_uring(engine) || !forbid(SYS_io_uring_enter, error)) {
        return "skip";
    }
    if (write_tokens(engine, tokens, N_DECODE, &err)) {
        return "reads succeed without io_uring_enter";
    }
    if (strstr(err.message, "layer ") == NULL || strstr(err.message, "expert ") == NULL ||
        strstr(err.message, model_path) == NULL || strstr(err.message, strerror(error)) == NULL) {
        fprintf(stderr, "%s\n", err.message);
        return "the error";
    }
    moe_engine_close(&engine);
    return NULL;
}

static void io_uring_refused_later(void **state)
{
    (void)state;
    in_child(io_uring_taken_away, EPERM);
    in_child(io_uring_taken_away, EAGAIN);
}

/* Who may lock any amount of memory loses that right. */
static bool limit_locked_memory(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    struct rlimit limit = {64u << 10, 64u << 10};
    if (syscall(SYS_capget, &header, data) != 0) {
        return false;
    }
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    data[0].permitted &= ~(1u << CAP_IPC_LOCK);
    return syscall(SYS_capset, &header, data) == 0 && setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
}

static const char *without_memlock(int argument)
{
    (void)argument;
    moe_engine *engine;
    moe_error err;
    told t = {.n = 0};
    if (!limit_locked_memory()) {
        return "skip";
    }
    if (open_engine(&engine, &t, &err) != MOE_OK) {
        return "open";
    }
    if (!has_io_uring(engine)) {
        return "skip";
    }
    const char *wrong = check_tokens(engine);
    if (wrong == NULL && (t.n != 1 || strstr(t.line, "RLIMIT_MEMLOCK") == NULL)) {
        wrong = "not one line that tells it";
    }
    moe_engine_close(&engine);
    return wrong;
}

static void locked_memory_refused(void **state)
{
    (void)state;
    in_child(without_memlock, 0);
}

static int n_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

/* One more descriptor each time, until there are enough. */
static const char *few_descriptors(int argument)
{
    (void)argument;
    close_range(3, ~0u, 0); /* what the test was started with */
    int before = n_descriptors();
    rlim_t n = (rlim_t)before;
    for (int n_failures = 0;; n++) {
        moe_engine *engine = NULL;
        moe_error err = {""};
        told t = {.n = 0};
        struct rlimit limit = {n, 256};
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
            return "skip";
        }
        int status = open_engine(&engine, &t, &err);
        if (status == MOE_OK) {
            const char *wrong = check_tokens(engine);
            moe_engine_close(&engine);
            return n_failures >= 2 ? wrong : "opened with next to none";
        }
        n_failures++;
        if (strstr(err.message, strerror(EMFILE)) == NULL || engine != NULL) {
            fprintf(stderr, "status %d: %s\n", status, err.message);
            return "the error";
        }
        if (n_descriptors() != before) {
            return "descriptors left behind";
        }
    }
}

static void descriptors_refused(void **state)
{
    (void)state;
    in_child(few_descriptors, 0);
}

static rlim_t address_space(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    bool good = file != NULL && fscanf(file, "%llu", &pages) == 1;
    if (file != NULL) {
        fclose(file);
    }
    return good ? (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) : 0;
}

/* A little more address space each time (ulimit -v), until there is enough: what the kernel refuses
 * is then not our own allocations alone, but maps, stacks and what libraries allocate. */
static const char *little_address_space(int argument)
{
    (void)argument;
    rlim_t first = address_space();
    if (first > (rlim_t)1 << 40) {
        return "skip"; /* a sanitizer's shadow memory, which is mapped as it is needed */
    }
    for (rlim_t n_failures = 0;; n_failures++) {
        moe_engine *engine = NULL;
        moe_error err = {""};
        told t = {.n = 0};
        int32_t tokens[N_DECODE];
        struct rlimit limit = {first + (n_failures << 13), RLIM_INFINITY};
        if (first == 0 || setrlimit(RLIMIT_AS, &limit) != 0) {
            return "skip";
        }
        bool good = open_engine(&engine, &t, &err) == MOE_OK &&
                    write_tokens(engine, tokens, N_DECODE, &err);
        moe_engine_close(&engine);
        if (good) {
            return n_failures < 10                                ? "opened with next to none"
                   : memcmp(tokens, expected, sizeof tokens) == 0 ? NULL
                                                                  : "other tokens";
        }
        if (strstr(err.message, "memory") == NULL) {
            fprintf(stderr, "%s\n", err.message);
            return "the error";
        }
    }
}

static void address_space_refused(void **state)
{
    (void)state;
    in_child(little_address_space, 0);
}

static bool copy_file(const char *from, const char *to)
{
    char bytes[65536];
    FILE *in = fopen(from, "rb");
    FILE *out = fopen(to, "wb");
    bool good = in != NULL && out != NULL;
    for (size_t n = 1; good && n > 0;) {
        n = fread(bytes, 1, sizeof bytes, in);
        good = fwrite(bytes, 1, n, out) == n;
    }
    return fclose(out) == 0 && fclose(in) == 0 && good;
}

/* Another file takes the model's name, as a download that is finished does: what is read is what
 * was opened. No expert is mapped, so that a file cut short is an error and no SIGBUS. */
static void file_replaced(void **state)
{
    (void)state;
    char kept[sizeof model_path];
    char folder[] = "/tmp/moe-replaced-XXXXXX";
    char path[128], other[128], line[1024];
    memcpy(kept, model_path, sizeof kept);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    snprintf(other, sizeof other, "%s/other.gguf", folder);
    assert_true(copy_file(model_path, path));
    FILE *file = fopen(other, "wb");
    fputs("something else", file);
    fclose(file);
    strcpy(model_path, path);
    moe_engine *engine;
    moe_error error;
    told t = {.n = 0};
    assert_int_equal(open_engine(&engine, &t, &error), MOE_OK);
    assert_int_equal(rename(other, path), 0);
    assert_null(check_tokens(engine));
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL) {
        assert_null(strstr(line, "model.gguf"));
    }
    fclose(maps);
    moe_engine_close(&engine);
    assert_int_not_equal(open_engine(&engine, &t, &error), MOE_OK);
    memcpy(model_path, kept, sizeof kept);
    unlink(path);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_store_machine ORACLE-FOLDER\n");
        return 2;
    }
    snprintf(model_path, sizeof model_path, "%s/olmoe/model.gguf", argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(io_uring_refused),      cmocka_unit_test(io_uring_refused_later),
        cmocka_unit_test(locked_memory_refused), cmocka_unit_test(descriptors_refused),
        cmocka_unit_test(file_replaced),         cmocka_unit_test(address_space_refused),
    };
    return cmocka_run_group_tests(tests, make_expected, NULL);
}
