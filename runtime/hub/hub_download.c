/* SPDX-License-Identifier: MIT */
/* Several connections fetch a piece of the file each. If a connection breaks, its piece is
 * continued where it stopped. Meanwhile a thread computes the checksum of the bytes that are there
 * without a gap. A server that ignores ranges sends the whole file over one connection. */
#include "hub_download.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli_format.h"
#include "cli_interrupt.h"
#include "hub_pieces.h"
#include "hub_sum.h"

#define CONNECTIONS    8
#define BUFFER_BYTES   (256L << 10)
#define PROGRESS_BYTES (64u << 10) /* a round of tries that brings this much has not failed */
#define SPEED_NS       1000000000u
#define NS             1000000000.0

typedef struct transfer {
    struct download *download;
    CURL *curl; /* NULL: idle */
    bool ranged;
    struct curl_slist *headers;
    uint64_t from, at, end;
    hub_answer answer; /* its headers */
    char reason[CURL_ERROR_SIZE];
} transfer;

typedef struct download {
    hub_http *http;
    const char *repo, *commit;
    hub_file *file;
    hub_place place;
    hub_pieces pieces;
    hub_meter *meter;
    CURLM *multi;
    transfer transfers[CONNECTIONS];
    unsigned n_active;
    /* The number of failed rounds of tries in a row, and the last failure. */
    unsigned n_failed;
    uint64_t failed_at; /* bytes that were there at the last failed round */
    uint64_t wait_until_ns;
    bool wrong_range, too_much;
    hub_answer failure;
} download;

/* ---- The file's address ---- */

bool hub_escape(const char *path, const char *kept, char *out, size_t size)
{
    size_t n = 0;
    for (; *path != '\0' && n + 4 < size; path++) {
        bool plain = strchr("-._~", *path) != NULL || strchr(kept, *path) != NULL ||
                     (*path >= '0' && *path <= '9') ||
                     ((*path | 0x20) >= 'a' && (*path | 0x20) <= 'z');
        n += (size_t)snprintf(out + n, size - n, plain ? "%c" : "%%%02X", (unsigned char)*path);
    }
    return *path == '\0';
}

bool hub_file_address(const hub_http *http, const char *repo, const char *commit, const char *path,
                      char *url, size_t size)
{
    char escaped[3 * HUB_QUANT_SIZE];
    return hub_escape(path, "/", escaped, sizeof escaped) &&
           snprintf(url, size, "%s/%s/resolve/%s/%s", http->endpoint, repo, commit, escaped) <
               (int)size;
}

int hub_locate(hub_http *http, const char *repo, const char *commit, hub_file *file,
               hub_place *place)
{
    char url[2048];
    hub_answer answer;
    if (!hub_file_address(http, repo, commit, file->path, url, sizeof url)) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: the name is too long", file->path);
    }
    int code = hub_http_get(http, url, "0-0", 1, file->path, &answer);
    cli_buffer_free(&answer.body);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    place->ranges = answer.status == 206;
    memcpy(place->url, answer.url, sizeof place->url);
    uint64_t size = answer.linked || answer.total == 0 ? answer.size : answer.total;
    if (size != file->size || (answer.total != 0 && answer.total != size)) {
        return cli_fail(CLI_EXIT_FAILURE,
                        "%s: the hub lists %" PRIu64 " bytes, and would send %" PRIu64, file->path,
                        file->size, answer.total != 0 ? answer.total : size);
    }
    if (answer.sum[0] == '\0' || (file->sum[0] != '\0' && strcmp(file->sum, answer.sum) != 0)) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: the hub names %s checksum of it", file->path,
                        answer.sum[0] == '\0' ? "no" : "more than one");
    }
    memcpy(file->sum, answer.sum, sizeof file->sum);
    return CLI_EXIT_OK;
}

/* ---- Connections ---- */

static size_t on_header(char *line, size_t one, size_t size, void *user)
{
    hub_answer_take_header(&((transfer *)user)->answer, line, one * size);
    return one * size;
}

static size_t on_bytes(char *bytes, size_t one, size_t size, void *user)
{
    transfer *t = user;
    download *d = t->download;
    long status = 0;
    size_t n = one * size;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status / 100 != 2) {
        return n; /* ignores the body of an error */
    }
    if (status == 200 && t->ranged) {
        d->place.ranges = false;
        return 0;
    }
    if (status == 206 && (t->answer.from != t->from || t->answer.total != d->file->size)) {
        d->wrong_range = true;
        return 0;
    }
    if (n > t->end - t->at) {
        d->too_much = true;
        return 0;
    }
    if (!hub_pieces_write(&d->pieces, t->at, bytes, n)) {
        return 0;
    }
    t->at += n;
    return n;
}

static int start(download *d, transfer *t, uint64_t from, uint64_t end)
{
    char range[64];
    t->download = d;
    t->from = t->at = from;
    t->end = end;
    t->answer = (hub_answer){0};
    t->reason[0] = '\0';
    t->curl = curl_easy_init();
    if (t->curl == NULL || !hub_http_prepare(d->http, t->curl, d->place.url, &t->headers)) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for a connection");
    }
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, from, end - 1);
    t->ranged = d->place.ranges;
    curl_easy_setopt(t->curl, CURLOPT_RANGE, t->ranged ? range : NULL);
    curl_easy_setopt(t->curl, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    curl_easy_setopt(t->curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(t->curl, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->curl, CURLOPT_PRIVATE, t);
    curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, t->reason);
    if (curl_multi_add_handle(d->multi, t->curl) != CURLM_OK) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for a connection");
    }
    d->n_active++;
    return CLI_EXIT_OK;
}

static void stop(download *d, transfer *t)
{
    if (t->curl != NULL) {
        curl_multi_remove_handle(d->multi, t->curl);
        curl_easy_cleanup(t->curl);
        curl_slist_free_all(t->headers);
        t->curl = NULL;
        t->headers = NULL;
        hub_pieces_give(&d->pieces, t->from);
        d->n_active--;
    }
}

static int start_idle(download *d)
{
    uint64_t from, end;
    int code = CLI_EXIT_OK;
    if (cli_now_ns() < d->wait_until_ns) {
        return code;
    }
    for (unsigned i = 0; i < CONNECTIONS && code == CLI_EXIT_OK; i++) {
        transfer *t = &d->transfers[i];
        if (t->curl != NULL || (!d->place.ranges && d->n_active > 0)) {
            continue;
        }
        if (!d->place.ranges) {
            code = start(d, t, 0, d->file->size);
        } else if (hub_pieces_take(&d->pieces, &from, &end)) {
            code = start(d, t, from, end);
        }
    }
    return code;
}

/* ---- What went wrong ---- */

/* Counts a failure. The first failure of a round of tries makes all connections wait; further ones
 * belong to the same round. */
static int count_failure(download *d, const hub_answer *failure)
{
    uint64_t now = cli_now_ns();
    if (now < d->wait_until_ns) {
        return CLI_EXIT_OK;
    }
    d->n_failed = d->pieces.there > d->failed_at + PROGRESS_BYTES ? 1 : d->n_failed + 1;
    d->failed_at = d->pieces.there;
    unsigned seconds = failure->retry_after;
    if (d->n_failed >= d->http->tries || seconds > 300) {
        return hub_http_fail(d->http, failure, d->file->path);
    }
    d->wait_until_ns = now + (uint64_t)(NS * (seconds > 0 ? seconds : 0.25 * (1u << d->n_failed)));
    return CLI_EXIT_OK;
}

static int judge(download *d, transfer *t, CURLcode done)
{
    hub_answer *a = &t->answer;
    if (d->pieces.error != 0) {
        return cli_fail(CLI_EXIT_FAILURE, "%s cannot be written: %s%s", d->file->path,
                        strerror(d->pieces.error),
                        d->pieces.error == ENOSPC ? " (what has come is kept)" : "");
    }
    if (d->wrong_range || d->too_much) {
        return cli_fail(CLI_EXIT_FAILURE, "%s: the server sends %s", d->file->path,
                        d->too_much ? "more than was asked for"
                                    : "another part than was asked for");
    }
    if (a->status == 200 && done == CURLE_WRITE_ERROR && t->ranged) {
        return CLI_EXIT_OK; /* the server ignores ranges: one connection begins again from the
                             * start */
    }
    if (done != CURLE_OK) {
        hub_answer_take_failure(a, done, t->reason);
        return a->untrusted ? hub_http_fail(d->http, a, d->file->path) : count_failure(d, a);
    }
    if (a->status / 100 == 2) {
        if (t->at < t->end) {
            snprintf(a->reason, sizeof a->reason, "the connection ended too early");
            return count_failure(d, a);
        }
        return CLI_EXIT_OK;
    }
    if (hub_http_is_passing(a)) {
        return count_failure(d, a);
    }
    /* Addresses of storage expire after about an hour: ask the hub for a new one. */
    int code = count_failure(d, a);
    return code == CLI_EXIT_OK ? hub_locate(d->http, d->repo, d->commit, d->file, &d->place) : code;
}

static int take_ended(download *d)
{
    CURLMsg *message;
    int left, code = CLI_EXIT_OK;
    while (code == CLI_EXIT_OK && (message = curl_multi_info_read(d->multi, &left)) != NULL) {
        if (message->msg == CURLMSG_DONE) {
            transfer *t = NULL;
            CURLcode done = message->data.result;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&t);
            curl_easy_getinfo(message->easy_handle, CURLINFO_RESPONSE_CODE, &t->answer.status);
            stop(d, t);
            code = judge(d, t, done);
        }
    }
    return code;
}

/* ---- The line of progress ---- */

static void show(hub_meter *meter, uint64_t bytes)
{
    char there[CLI_FORMAT_SIZE], all[CLI_FORMAT_SIZE], behind[160];
    uint64_t now = cli_now_ns();
    bytes += meter->before;
    if (now - meter->last_ns >= SPEED_NS) {
        double speed = (double)(bytes - meter->last_bytes) * NS / (double)(now - meter->last_ns);
        meter->bytes_per_s =
            meter->bytes_per_s > 0 ? 0.7 * meter->bytes_per_s + 0.3 * speed : speed;
        meter->last_ns = now;
        meter->last_bytes = bytes;
    }
    int n = snprintf(behind, sizeof behind, "  %s of %s", cli_format_bytes(there, bytes),
                     cli_format_bytes(all, meter->all));
    if (meter->bytes_per_s > 1) {
        uint64_t left = (uint64_t)((double)(meter->all - bytes) / meter->bytes_per_s);
        snprintf(behind + n, sizeof behind - (size_t)n,
                 left >= 3600 ? ", %.1f MB/s, %" PRIu64 " h %02" PRIu64 " min left"
                              : ", %.1f MB/s, %" PRIu64 ":%02" PRIu64 " left",
                 meter->bytes_per_s / 1e6, left >= 3600 ? left / 3600 : left / 60,
                 left >= 3600 ? left / 60 % 60 : left % 60);
    }
    cli_progress_show_words(meter->progress, (double)bytes / (double)meter->all, behind);
}

/* ---- The whole ---- */

static int fetch_all(download *d, hub_sum *sum)
{
    int running;
    int code = CLI_EXIT_OK;
    while (code == CLI_EXIT_OK && hub_pieces_prefix(&d->pieces) < d->file->size) {
        if (cli_interrupted()) {
            return CLI_EXIT_INTERRUPTED;
        }
        code = start_idle(d);
        if (code == CLI_EXIT_OK && (curl_multi_perform(d->multi, &running) != CURLM_OK ||
                                    curl_multi_poll(d->multi, NULL, 0, 100, NULL) != CURLM_OK)) {
            code = cli_fail(CLI_EXIT_FAILURE, "out of memory for connections");
        }
        code = code == CLI_EXIT_OK ? take_ended(d) : code;
        hub_sum_advance(sum, hub_pieces_prefix(&d->pieces));
        show(d->meter, d->pieces.there);
    }
    return code;
}

/* Waits until the thread has seen the last byte. */
static int wait_for_sum(hub_sum *sum)
{
    const struct timespec tick = {0, 20000000};
    uint64_t bytes;
    while (!hub_sum_is_done(sum, &bytes)) {
        if (cli_interrupted()) {
            return CLI_EXIT_INTERRUPTED;
        }
        nanosleep(&tick, NULL);
    }
    return CLI_EXIT_OK;
}

static int fetch_and_check(download *d, const hub_cache *cache)
{
    int code = hub_pieces_open(&d->pieces, cache, d->file);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    hub_sum *sum = hub_sum_start(d->pieces.fd, d->file->size, d->file->sum);
    d->multi = curl_multi_init();
    if (sum == NULL || d->multi == NULL) {
        code = cli_fail(CLI_EXIT_FAILURE, "out of memory for a download");
    }
    code = code == CLI_EXIT_OK ? fetch_all(d, sum) : code;
    code = code == CLI_EXIT_OK ? wait_for_sum(sum) : code;
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        stop(d, &d->transfers[i]);
    }
    curl_multi_cleanup(d->multi);
    bool right = sum != NULL && hub_sum_end(&sum);
    if (code == CLI_EXIT_OK) {
        code = hub_pieces_finish(&d->pieces, cache, d->file->sum, right);
        if (code == CLI_EXIT_OK && !right) {
            code = cli_fail(CLI_EXIT_FAILURE,
                            "%s: what came has another checksum than the hub names, and is thrown "
                            "away: try again",
                            d->file->path);
        }
    }
    return code;
}

int hub_download(hub_http *http, const hub_cache *cache, const char *commit, const char *repo,
                 hub_file *file, hub_meter *meter)
{
    download *d = calloc(1, sizeof *d);
    if (d == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for a download");
    }
    *d = (download){.http = http, .repo = repo, .commit = commit, .file = file, .meter = meter};
    d->pieces.fd = d->pieces.book_fd = -1;
    int code = hub_locate(http, repo, commit, file, &d->place);
    code = code == CLI_EXIT_OK ? fetch_and_check(d, cache) : code;
    hub_pieces_close(&d->pieces);
    free(d);
    return code;
}
