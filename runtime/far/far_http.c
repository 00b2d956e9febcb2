/* SPDX-License-Identifier: MIT */
/* Fetches ranges of a file on a web server. Each thread that fetches takes a connection from a list
 * of idle ones. A redirect is followed once: later requests go straight to the address to which it
 * led. Such an address of storage is valid for an hour or so; when it is refused, the next request
 * asks the first address again. */
#include "far_http.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli_format.h"
#include "cli_interrupt.h"
#include "hub_http.h"
#include "hub_sum.h"

/* A read of the engine may take 30 s by default, so all tries of a request together take less. */
#define TRIES           3
#define SECONDS_WITHOUT 8L
#define CONNECT_SECONDS 5L
#define MOST_IDLE       32
/* For so long after a failure, requests have one try. */
#define FAILING_NS UINT64_C(10000000000)

struct far_http {
    /* Set at open, never changed. */
    const char *url, *name;
    hub_http settings; /* its connection is only for the first request */
    uint64_t size;
    char sum[HUB_SUM_SIZE];      /* the file's, which a hub named when it redirected; "": none */
    pthread_mutex_t lock;        /* guards all that follows */
    char tag[128], modified[64]; /* marks of the file's version in answers */
    CURL *idle[MOST_IDLE];
    unsigned n_idle;
    char direct[HUB_URL_SIZE]; /* where a redirect led; "": ask url */
    bool told;                 /* an error has been printed since a request last succeeded */
    uint64_t failed_ns;        /* when a request last failed for good; 0: none since a success */
};

static void close_connection(far_http *h, CURL *curl)
{
    pthread_mutex_lock(&h->lock);
    bool keeps = h->n_idle < MOST_IDLE;
    if (keeps) {
        h->idle[h->n_idle++] = curl;
    }
    pthread_mutex_unlock(&h->lock);
    if (!keeps) {
        curl_easy_cleanup(curl);
    }
}

static CURL *take_connection(far_http *h)
{
    CURL *curl = NULL;
    pthread_mutex_lock(&h->lock);
    if (h->n_idle > 0) {
        curl = h->idle[--h->n_idle];
    }
    pthread_mutex_unlock(&h->lock);
    return curl != NULL ? curl : curl_easy_init();
}

/* ---- Messages ---- */

/* Whether this is the first error, which is then printed. Threads tend to fail together, and one
 * line is enough. */
static bool is_first(far_http *h)
{
    pthread_mutex_lock(&h->lock);
    bool first = !h->told;
    h->told = true;
    pthread_mutex_unlock(&h->lock);
    return first;
}

static int fail_in_words(far_http *h, const hub_answer *answer)
{
    if (answer->untrusted) {
        return hub_http_fail_trust(answer, h->name);
    }
    if (answer->reason[0] != '\0') {
        return cli_fail(CLI_EXIT_FAILURE,
                        "%s: %s; what has come is kept: run the command again when the server "
                        "answers",
                        h->name, answer->reason);
    }
    switch (answer->status) {
    case 401:
    case 403:
        return cli_fail(CLI_EXIT_FAILURE,
                        "%s: the server refuses access (%ld): the address may have expired, or "
                        "need a key (HF_TOKEN goes to the hub alone)",
                        h->name, answer->status);
    case 404:
    case 410:
        return cli_fail(CLI_EXIT_FAILURE, "%s: the server has no such file (%ld)", h->name,
                        answer->status);
    case 429:
        return cli_fail(CLI_EXIT_FAILURE,
                        "%s: the server has had too many requests (429): try again in %u seconds",
                        h->name, answer->retry_after > 0 ? answer->retry_after : 60);
    default:
        return cli_fail(CLI_EXIT_FAILURE, "%s: the server answers with status %ld%s", h->name,
                        answer->status, answer->status >= 500 ? ": try again later" : "");
    }
}

/* ---- What the first answer says ---- */

static int look(far_http *h, char identity[FAR_IDENTITY_SIZE])
{
    hub_answer answer;
    for (unsigned tried = 0;; tried++) {
        int code = hub_http_try(&h->settings, h->url, "0-0", 1, h->name, &answer);
        cli_buffer_free(&answer.body);
        if (code != CLI_EXIT_OK) {
            return code;
        }
        if (answer.reason[0] == '\0' && answer.status / 100 == 2) {
            break;
        }
        if (!hub_http_is_passing(&answer) || tried + 1 >= h->settings.tries ||
            !hub_http_wait(&h->settings, &answer, tried)) {
            return cli_interrupted() ? CLI_EXIT_INTERRUPTED : fail_in_words(h, &answer);
        }
    }
    if (answer.status != 206 || answer.total == 0 || answer.from != 0) {
        return cli_fail(CLI_EXIT_FAILURE,
                        "%s: the server gives no part of a file (it ignores ranges): download the "
                        "whole file, and give that with -m",
                        h->name);
    }
    h->size = answer.total;
    memcpy(h->sum, answer.linked ? answer.sum : "", answer.linked ? sizeof h->sum : 1);
    memcpy(h->tag, answer.tag, sizeof h->tag);
    memcpy(h->modified, answer.modified, sizeof h->modified);
    memcpy(h->direct, answer.url, sizeof h->direct);
    const char *version = answer.sum[0] != '\0'   ? answer.sum
                          : answer.tag[0] != '\0' ? answer.tag
                                                  : answer.modified;
    snprintf(identity, FAR_IDENTITY_SIZE, "%" PRIu64 " %s", h->size, version);
    if (version[0] == '\0') {
        (void)cli_fail(0,
                       "note: %s: the server names no version of the file (ETag, Last-Modified): "
                       "if it changes there, remove the copy here",
                       h->name);
    }
    return CLI_EXIT_OK;
}

int far_http_open(far_http **out, const char *url, const char *name, const atomic_bool *stop,
                  uint64_t *size, char identity[FAR_IDENTITY_SIZE])
{
    far_http *h = calloc(1, sizeof *h);
    *out = NULL;
    if (h == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for a connection");
    }
    h->url = url;
    h->name = name;
    pthread_mutex_init(&h->lock, NULL);
    int code = hub_http_open(&h->settings);
    code = code == CLI_EXIT_OK ? hub_http_turn_to(&h->settings, url) : code;
    h->settings.stop = stop;
    h->settings.tries = TRIES;
    h->settings.seconds =
        h->settings.seconds < SECONDS_WITHOUT ? h->settings.seconds : SECONDS_WITHOUT;
    h->settings.connect_seconds = CONNECT_SECONDS;
    code = code == CLI_EXIT_OK ? look(h, identity) : code;
    if (code != CLI_EXIT_OK) {
        far_http_close(&h);
        return code;
    }
    *size = h->size;
    *out = h;
    return CLI_EXIT_OK;
}

void far_http_close(far_http **http)
{
    far_http *h = *http;
    if (h != NULL) {
        for (unsigned i = 0; i < h->n_idle; i++) {
            curl_easy_cleanup(h->idle[i]);
        }
        hub_http_close(&h->settings);
        pthread_mutex_destroy(&h->lock);
        free(h);
    }
    *http = NULL;
}

/* ---- Ranges ---- */

static int changed(far_http *h)
{
    if (is_first(h)) {
        (void)cli_fail(0,
                       "%s: the file on the server is another one than when it was opened; run "
                       "the command again",
                       h->name);
    }
    return ESTALE;
}

static int refused(far_http *h, const hub_answer *answer)
{
    if (is_first(h)) {
        (void)fail_in_words(h, answer);
    }
    pthread_mutex_lock(&h->lock);
    h->failed_ns = cli_now_ns();
    pthread_mutex_unlock(&h->lock);
    return answer->reason[0] != '\0'                        ? EHOSTUNREACH
           : answer->status == 401 || answer->status == 403 ? EACCES
           : answer->status == 404 || answer->status == 410 ? ENOENT
           : answer->status == 429                          ? EBUSY
                                                            : EIO;
}

/* Whether the answer is of the version of the file that was opened. If a hub redirected, the
 * checksum that it named decides, and the storage, which may be another one now, may have other
 * marks. Else the answer must have the marks of the answers before. */
static bool is_same_version(far_http *h, const hub_answer *answer)
{
    bool linked = answer->linked && h->sum[0] != '\0';
    pthread_mutex_lock(&h->lock);
    if (linked && strcmp(answer->sum, h->sum) == 0) {
        memcpy(h->tag, answer->tag, sizeof h->tag);
        memcpy(h->modified, answer->modified, sizeof h->modified);
    }
    bool same = answer->total == h->size && strcmp(answer->tag, h->tag) == 0 &&
                strcmp(answer->modified, h->modified) == 0;
    pthread_mutex_unlock(&h->lock);
    return same && (!linked || strcmp(answer->sum, h->sum) == 0);
}

/* Checks an answer, and copies the range to dst. Returns 0, EAGAIN (try again), or another errno.
 */
static int judge(far_http *h, hub_answer *answer, uint64_t offset, void *dst, size_t size)
{
    if (answer->status != 206) {
        return answer->status == 200 || answer->status == 412 || answer->status == 416 ? ESTALE
                                                                                       : EAGAIN;
    }
    if (!is_same_version(h, answer)) {
        return ESTALE;
    }
    if (answer->from != offset || answer->to != offset + size - 1 || !answer->whole ||
        answer->body.size != size) {
        snprintf(answer->reason, sizeof answer->reason,
                 "the server sent another part than the "
                 "one asked for");
        return EAGAIN;
    }
    memcpy(dst, answer->body.data, size);
    return 0;
}

static void where_to(far_http *h, char url[HUB_URL_SIZE])
{
    pthread_mutex_lock(&h->lock);
    snprintf(url, HUB_URL_SIZE, "%s", h->direct[0] != '\0' ? h->direct : h->url);
    pthread_mutex_unlock(&h->lock);
}

static void note_address(far_http *h, const char *url)
{
    pthread_mutex_lock(&h->lock);
    snprintf(h->direct, sizeof h->direct, "%s", url);
    if (url[0] != '\0') { /* a request has succeeded: the next failure is told again */
        h->failed_ns = 0;
        h->told = false;
    }
    pthread_mutex_unlock(&h->lock);
}

/* Returns how often a request is tried. If another request has just failed, once: threads that wait
 * for the same lost link would otherwise all try for long. */
static unsigned most_tries(far_http *h)
{
    pthread_mutex_lock(&h->lock);
    bool failing = h->failed_ns != 0 && cli_now_ns() - h->failed_ns < FAILING_NS;
    pthread_mutex_unlock(&h->lock);
    return failing ? 1 : h->settings.tries;
}

static int fetch(far_http *h, hub_http *connection, uint64_t offset, void *dst, size_t size)
{
    char range[64], url[HUB_URL_SIZE];
    hub_answer answer;
    const unsigned tries = most_tries(h);
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, offset, offset + size - 1);
    for (unsigned tried = 0;; tried++) {
        where_to(h, url);
        int code = hub_http_try(connection, url, range, size, h->name, &answer);
        if (code != CLI_EXIT_OK || (h->settings.stop != NULL && atomic_load(h->settings.stop))) {
            cli_buffer_free(&answer.body);
            return ECANCELED;
        }
        int error = answer.reason[0] == '\0' ? judge(h, &answer, offset, dst, size) : EAGAIN;
        cli_buffer_free(&answer.body);
        if (error == 0) {
            note_address(h, answer.url);
            return 0;
        }
        if (error == ESTALE) {
            return changed(h);
        }
        bool moved = strcmp(url, h->url) != 0;
        note_address(h, ""); /* storage may have another address by now */
        bool again = hub_http_is_passing(&answer) || moved;
        if (!again || tried + 1 >= tries || !hub_http_wait(connection, &answer, tried)) {
            return refused(h, &answer);
        }
    }
}

int far_http_fetch(far_http *h, uint64_t offset, void *dst, size_t size)
{
    hub_http connection = h->settings;
    connection.curl = take_connection(h);
    if (connection.curl == NULL) {
        return ENOMEM;
    }
    int error = fetch(h, &connection, offset, dst, size);
    close_connection(h, connection.curl);
    return error;
}

int far_http_check(far_http *h, int fd)
{
    const struct timespec tick = {0, 20000000};
    const atomic_bool *stop = h->settings.stop;
    uint64_t seen;
    if (h->sum[0] == '\0') {
        return 0;
    }
    hub_sum *sum = hub_sum_start(fd, h->size, h->sum);
    if (sum == NULL) {
        return ENOMEM;
    }
    hub_sum_advance(sum, h->size);
    while (!hub_sum_is_done(sum, &seen) && !(stop != NULL && atomic_load(stop))) {
        nanosleep(&tick, NULL);
    }
    bool right = hub_sum_end(&sum);
    if (!right && seen == h->size) {
        (void)cli_fail(0,
                       "%s: what has come has another checksum than the hub names, and is thrown "
                       "away: run the command again",
                       h->name);
    }
    return right ? 0 : seen == h->size ? EBADMSG : ECANCELED;
}
