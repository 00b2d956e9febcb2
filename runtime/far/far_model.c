/* SPDX-License-Identifier: MIT */
#include "far_model.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <moe/model_file.h>

#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_progress.h"
#include "far_cache.h"
#include "far_origin.h"
#include "hub_model.h"
#include "hub_net.h"

#define FIRST_BYTES   (UINT64_C(1) << 20) /* of a header */
#define MOST_HEADER   (UINT64_C(1) << 30)
#define MOST_PARTS    1000u
#define ADDRESS_SIZE  8192
#define FILLERS       4u
#define RETRY_SECONDS 5 /* until a filling that failed is tried again */
#define END_SECONDS   15

typedef struct part {
    far_origin *origin;
    far_cache *cache;
    uint64_t header; /* bytes fetched of it */
    char path[PATH_MAX];
} part;

struct far_model {
    part *parts;
    size_t n, n_whole;
    char folder[PATH_MAX / 2];
    char sidecar[PATH_MAX]; /* beside a file on a slower drive */
    uint64_t limit;         /* of --disk-cache; UINT64_MAX: none */
    const cli_options *options;
    atomic_bool stop, told_whole; /* ... or that it does not fit */
    atomic_uint n_reads;          /* under way */
    pthread_t fillers[FILLERS];
    unsigned n_fillers;
};

static bool is_address(const char *text)
{
    return strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0;
}

bool far_model_is_asked(const cli_options *options)
{
    if (options->hub_model != NULL) {
        return options->disk_cache != NULL && !hub_is_offline(options) &&
               !hub_model_is_here(options);
    }
    return options->disk_cache != NULL || (options->model != NULL && is_address(options->model));
}

static void note(const far_model *m, const char *line)
{
    if (!m->options->quiet && !m->options->json) {
        cli_terminal_note(m->options->terminal, line);
    }
}

/* ---- What the engine reads ---- */

static int64_t read_part(const char *path, void *dst, size_t size, uint64_t offset, void *user)
{
    far_model *m = user;
    int64_t got = -ENOENT;
    atomic_fetch_add(&m->n_reads, 1);
    for (size_t i = 0; i < m->n && got == -ENOENT; i++) {
        if (strcmp(far_cache_path(m->parts[i].cache), path) == 0) {
            got = atomic_load(&m->stop) ? -ECANCELED
                                        : far_cache_read(m->parts[i].cache, dst, size, offset);
            break;
        }
    }
    atomic_fetch_sub(&m->n_reads, 1);
    return got;
}

/* ---- The rest, while nobody waits ---- */

static void wait_ms(const far_model *m, unsigned ms)
{
    const struct timespec tick = {0, 10000000};
    for (unsigned waited = 0; waited < ms && !atomic_load(&m->stop); waited += 10) {
        nanosleep(&tick, NULL);
    }
}

static void tell_full(far_model *m, int error)
{
    char line[PATH_MAX + 128];
    if (!atomic_exchange(&m->told_whole, true)) {
        snprintf(line, sizeof line, "%s: %s: what is not there is fetched when it is needed",
                 m->folder, strerror(error));
        note(m, line);
    }
}

static void *fill(void *user)
{
    far_model *m = user;
    for (size_t i = 0; i < m->n && !atomic_load(&m->stop);) {
        uint64_t before = far_origin_fetched(m->parts[i].origin);
        int result = far_cache_fill_more(m->parts[i].cache);
        if (result == 1) {
            i++;
        } else if (far_cache_write_error(m->parts[i].cache) != 0) {
            tell_full(m, far_cache_write_error(m->parts[i].cache));
            return NULL;
        } else if (result == EBADMSG) {
            return NULL;
        } else if (result != 0) {
            wait_ms(m, 1000 * RETRY_SECONDS);
        } else if (far_origin_fetched(m->parts[i].origin) == before) {
            wait_ms(m, 10); /* somebody waits for other blocks */
        }
    }
    if (!atomic_load(&m->stop) && !atomic_exchange(&m->told_whole, true)) {
        char line[PATH_MAX + 64];
        snprintf(line, sizeof line, "all of the model is in %s now", m->folder);
        note(m, line);
    }
    return NULL;
}

/* ---- Options ---- */

/* "DIR:SIZE" or "DIR", whose size is the model's. */
static int read_option(far_model *m, const cli_options *options, char folder[PATH_MAX / 2])
{
    const char *given = options->disk_cache;
    cli_size size = {0, 0};
    if (given == NULL) {
        return cli_fail(CLI_EXIT_USAGE,
                        "-m %.100s: say where its bytes may be kept: --disk-cache DIR[:SIZE] "
                        "(a command that has no such option needs the file itself)",
                        options->model);
    }
    const char *colon = strrchr(given, ':');
    bool has_size = colon != NULL && cli_size_parse(colon + 1, &size);
    int length = colon != NULL ? (int)(colon - given) : (int)strlen(given);
    if (size.share != 0.0 || (colon != NULL && !has_size && isdigit((unsigned char)colon[1]))) {
        return cli_fail(CLI_EXIT_USAGE, "--disk-cache: the size must be bytes, as in %.*s:100G",
                        length, given);
    }
    if (length == 0 || length >= PATH_MAX / 4) {
        return cli_fail(CLI_EXIT_USAGE, "--disk-cache must be DIR or DIR:SIZE, not '%s'", given);
    }
    length = has_size ? length : (int)strlen(given); /* a colon may be part of a name */
    snprintf(folder, PATH_MAX / 2, "%.*s", length, given);
    m->limit = has_size ? size.bytes : UINT64_MAX;
    return CLI_EXIT_OK;
}

static int make_folders(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *at = folder + 1; *at != '\0'; at++) {
        if (*at != '/' && at[1] != '\0') {
            continue;
        }
        char kept = at[1];
        bool last = kept == '\0';
        if (!last) {
            *at = '\0';
        }
        if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
            return cli_fail(CLI_EXIT_FAILURE, "%s cannot be made: %s", folder, strerror(errno));
        }
        if (!last) {
            *at = '/';
        }
    }
    return CLI_EXIT_OK;
}

/* ---- Parts ---- */

/* "....-00002-of-00005.gguf": how many parts there are, and where the number is. 1: it has none. */
static unsigned count_parts(const char *address, size_t *number)
{
    unsigned i, n;
    size_t end = strcspn(address, "?#");
    const size_t tail = strlen("-00001-of-00002.gguf");
    *number = 0;
    if (end <= tail || sscanf(address + end - tail, "-%5u-of-%5u.gguf", &i, &n) != 2 || n < 2 ||
        n > MOST_PARTS || i < 1 || i > n) {
        return 1;
    }
    *number = end - tail + 1;
    return n;
}

/* The path of a part: parts of one model are in one folder. */
static int path_of(const far_model *m, const char *address, char *path, size_t size)
{
    char name[256];
    far_origin_file_name(address, name, sizeof name);
    return snprintf(path, size, "%s/%s", m->folder, name) < (int)size
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_USAGE, "--disk-cache: the path is too long");
}

static int open_part(far_model *m, part *p, const char *address)
{
    char path[PATH_MAX];
    int code = path_of(m, address, path, sizeof path);
    code = code == CLI_EXIT_OK ? far_origin_open(&p->origin, address, &m->stop) : code;
    return code == CLI_EXIT_OK ? far_cache_open(&p->cache, path, p->origin, m->limit) : code;
}

/* Calls for each part with its address; `given` is one of them. */
static int for_parts(far_model *m, const char *given,
                     int (*call)(far_model *m, part *p, const char *address))
{
    char address[ADDRESS_SIZE], digits[8];
    size_t number;
    int code = CLI_EXIT_OK;
    snprintf(address, sizeof address, "%s", given);
    (void)count_parts(address, &number);
    for (size_t i = 0; i < m->n && code == CLI_EXIT_OK; i++) {
        if (number > 0) {
            snprintf(digits, sizeof digits, "%05u", (unsigned)(i + 1) % 100000u);
            memcpy(address + number, digits, 5);
        }
        code = call(m, &m->parts[i], address);
    }
    return code;
}

static int look_for_all(far_model *m, part *p, const char *address)
{
    int code = path_of(m, address, p->path, sizeof p->path);
    m->n_whole += code == CLI_EXIT_OK && is_address(address) && far_cache_has_all(p->path);
    return code;
}

static int list_parts(far_model *m, const char *address)
{
    size_t number;
    m->n = count_parts(address, &number);
    m->parts = calloc(m->n, sizeof *m->parts);
    if (m->parts == NULL) {
        m->n = 0;
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for the parts of a model");
    }
    /* The limit is of all parts together. */
    m->limit = m->limit == UINT64_MAX ? m->limit : m->limit / m->n;
    return CLI_EXIT_OK;
}

/* Where no option names a sidecar, takes the one beside a file on a slower drive, if there is one
 * and none is beside the copy. */
static void find_sidecar(far_model *m, cli_options *options, const char *address)
{
    static const char gguf[] = ".gguf", ending[] = ".moe-cal.gguf";
    const char *const models[] = {m->parts[0].path, address};
    for (size_t i = 0; i < 2 && !is_address(address) && options->calibration == NULL; i++) {
        size_t stem = strlen(models[i]);
        stem -= stem > strlen(gguf) && strcmp(models[i] + stem - strlen(gguf), gguf) == 0
                    ? strlen(gguf)
                    : 0;
        int n = snprintf(m->sidecar, sizeof m->sidecar, "%.*s%s", (int)stem, models[i], ending);
        if (n < (int)sizeof m->sidecar && access(m->sidecar, R_OK) == 0) {
            options->calibration = m->sidecar;
        }
    }
}

/* ---- Headers ---- */

static int need_header(far_model *m, part *p, uint64_t bytes)
{
    int error = far_cache_need_head(p->cache, bytes);
    p->header = bytes < far_origin_size(p->origin) ? bytes : far_origin_size(p->origin);
    if (error == ENOSPC && far_cache_evicts(p->cache)) {
        char least[CLI_FORMAT_SIZE];
        return cli_fail(CLI_EXIT_USAGE,
                        "--disk-cache: %s is the least that holds this model's header and some "
                        "experts: give more",
                        cli_format_bytes(least, p->header + FAR_LEAST_BYTES));
    }
    (void)m;
    return error == 0          ? CLI_EXIT_OK
           : cli_interrupted() ? CLI_EXIT_INTERRUPTED
                               : cli_fail(CLI_EXIT_FAILURE, "%s: its header cannot be fetched: %s",
                                          far_origin_name(p->origin), strerror(error));
}

/* Fetches more of the file that an error names, until the header is whole: holes read as zeros, so
 * a header that is not whole yet looks like a broken one. */
static int need_headers(far_model *m)
{
    int code = CLI_EXIT_OK;
    for (size_t i = 0; i < m->n && code == CLI_EXIT_OK; i++) {
        code = need_header(m, &m->parts[i], FIRST_BYTES);
    }
    while (code == CLI_EXIT_OK) {
        moe_file *file = NULL;
        moe_error err = {""};
        if (moe_file_open(&file, far_cache_path(m->parts[0].cache), &err) == MOE_OK) {
            moe_file_close(&file);
            break;
        }
        size_t i = m->n - 1;
        while (i > 0 &&
               strstr(err.message, strrchr(far_cache_path(m->parts[i].cache), '/') + 1) == NULL) {
            i--;
        }
        part *p = &m->parts[i];
        if (p->header == far_origin_size(p->origin) || p->header >= MOST_HEADER) {
            return cli_fail(CLI_EXIT_FAILURE, "%s: %s", far_origin_name(p->origin), err.message);
        }
        code = need_header(m, p, 2 * p->header);
    }
    return code;
}

/* ---- The whole ---- */

static void tell_what_is_here(const far_model *m)
{
    char here[CLI_FORMAT_SIZE], all[CLI_FORMAT_SIZE], line[PATH_MAX + 128];
    uint64_t n_here = 0, n_all = 0;
    for (size_t i = 0; i < m->n; i++) {
        far_cache_counts counts;
        far_cache_count(m->parts[i].cache, &counts);
        n_here += counts.bytes_here;
        n_all += far_origin_size(m->parts[i].origin);
    }
    snprintf(line, sizeof line, "%s of the model's %s are in %s; the rest comes %s",
             cli_format_bytes(here, n_here), cli_format_bytes(all, n_all), m->folder,
             far_cache_evicts(m->parts[0].cache) ? "when it is needed"
                                                 : "when it is needed, or while nothing is");
    note(m, line);
}

static bool is_whole(const far_model *m)
{
    bool whole = true;
    for (size_t i = 0; i < m->n; i++) {
        whole = whole && far_cache_is_whole(m->parts[i].cache);
    }
    return whole;
}

static int start_filling(far_model *m)
{
    if (far_cache_evicts(m->parts[0].cache)) {
        return CLI_EXIT_OK;
    }
    while (m->n_fillers < FILLERS &&
           pthread_create(&m->fillers[m->n_fillers], NULL, fill, m) == 0) {
        m->n_fillers++;
    }
    return m->n_fillers > 0 ? CLI_EXIT_OK
                            : cli_fail(CLI_EXIT_FAILURE, "no thread can be started for a download");
}

static int take(far_model *m, cli_options *options, const char *address, bool header_only)
{
    char place[400];
    int code = read_option(m, options, m->folder);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    size_t n = strlen(m->folder);
    far_origin_place(address, place, sizeof place);
    snprintf(m->folder + n, sizeof m->folder - n, "/%s", place);
    if ((code = make_folders(m->folder)) != CLI_EXIT_OK) {
        return code;
    }
    if ((code = list_parts(m, address)) != CLI_EXIT_OK) {
        return code;
    }
    if ((code = for_parts(m, address, look_for_all)) != CLI_EXIT_OK) {
        return code;
    }
    options->model = m->parts[0].path;
    find_sidecar(m, options, address);
    if (m->n_whole == m->n) {
        return CLI_EXIT_OK; /* as with names of a hub, nobody is asked */
    }
    if ((code = for_parts(m, address, open_part)) != CLI_EXIT_OK) {
        return code;
    }
    if ((code = need_headers(m)) != CLI_EXIT_OK) {
        return code;
    }
    if (is_whole(m)) {
        return CLI_EXIT_OK;
    }
    options->model_is_header = header_only;
    if (header_only) {
        return CLI_EXIT_OK;
    }
    options->read_file = read_part;
    options->read_user = m;
    tell_what_is_here(m);
    return start_filling(m);
}

int far_model_take(far_model **out, cli_options *options, bool header_only)
{
    char address[ADDRESS_SIZE];
    far_model *m = calloc(1, sizeof *m);
    *out = m;
    if (m == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for a far model");
    }
    m->options = options;
    cli_interrupt_install();
    int code = CLI_EXIT_OK;
    if (options->hub_model != NULL) {
        code = hub_net_address(options->hub_model, address, sizeof address);
    } else {
        snprintf(address, sizeof address, "%s", options->model);
        code = strlen(options->model) < sizeof address
                   ? CLI_EXIT_OK
                   : cli_fail(CLI_EXIT_USAGE, "-m: the address is too long");
    }
    code = code == CLI_EXIT_OK ? take(m, options, address, header_only) : code;
    return cli_interrupted() ? CLI_EXIT_INTERRUPTED : code;
}

static void tell_what_came(const far_model *m)
{
    char bytes[CLI_FORMAT_SIZE], line[PATH_MAX + 64];
    uint64_t n = 0;
    for (size_t i = 0; i < m->n; i++) {
        n += m->parts[i].origin != NULL ? far_origin_fetched(m->parts[i].origin) : 0;
    }
    if (n > 0) {
        snprintf(line, sizeof line, "%s came from %s", cli_format_bytes(bytes, n),
                 far_origin_name(m->parts[0].origin));
        note(m, line);
    }
}

int far_model_release(far_model **model)
{
    far_model *m = *model;
    int code = CLI_EXIT_OK;
    *model = NULL;
    if (m == NULL) {
        return code;
    }
    atomic_store(&m->stop, true);
    for (unsigned i = 0; i < m->n_fillers; i++) {
        pthread_join(m->fillers[i], NULL);
    }
    /* An engine that gave up waiting for a read has left its thread behind. */
    const struct timespec tick = {0, 10000000};
    for (unsigned i = 0; atomic_load(&m->n_reads) > 0 && i < END_SECONDS * 100; i++) {
        nanosleep(&tick, NULL);
    }
    if (atomic_load(&m->n_reads) > 0) {
        return code;
    }
    tell_what_came(m);
    for (size_t i = 0; i < m->n; i++) {
        if (m->parts[i].cache != NULL && far_cache_is_spoilt(m->parts[i].cache)) {
            code = CLI_EXIT_FAILURE;
        }
        far_cache_close(&m->parts[i].cache);
        far_origin_close(&m->parts[i].origin);
    }
    free(m->parts);
    free(m);
    return code;
}
