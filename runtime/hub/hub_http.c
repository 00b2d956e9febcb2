/* SPDX-License-Identifier: MIT */
#include "hub_http.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <moe/version.h>

#include "cli_interrupt.h"
#include "hub_cache.h"

#define MOST_REDIRECTS  10
#define TRIES           5
#define MOST_WAIT       300u /* seconds that a hub may ask for */
#define CONNECT_SECONDS 20L
#define SECONDS_WITHOUT 30L
#define LARGEST_FILE    (UINT64_C(1) << 50)
#define HUB             "https://huggingface.co"

bool hub_is_url(const char *text)
{
    return (strncmp(text, "https://", 8) == 0 || strncmp(text, "http://", 7) == 0) &&
           strpbrk(text, " \t\r\n") == NULL;
}

/* The authorities of the hub's own programs, if these variables name others than the system's. */
static int find_authorities(hub_http *http)
{
    static const char *const names[] = {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *path = getenv(names[i]);
        if (path == NULL || path[0] == '\0') {
            continue;
        }
        http->authorities = path;
        return access(path, R_OK) == 0 ? CLI_EXIT_OK
                                       : cli_fail(CLI_EXIT_USAGE, "%s: %s cannot be read: %s",
                                                  names[i], path, strerror(errno));
    }
    return CLI_EXIT_OK;
}

int hub_http_open(hub_http *http)
{
    char token[900];
    const char *endpoint = getenv("HF_ENDPOINT");
    const char *seconds = getenv("HF_HUB_DOWNLOAD_TIMEOUT");
    *http = (hub_http){.seconds = seconds != NULL ? strtol(seconds, NULL, 10) : 0,
                       .connect_seconds = CONNECT_SECONDS,
                       .tries = TRIES};
    http->seconds = http->seconds > 0 && http->seconds < 86400 ? http->seconds : SECONDS_WITHOUT;
    endpoint = endpoint == NULL || endpoint[0] == '\0' ? HUB : endpoint;
    if (!hub_is_url(endpoint) || strlen(endpoint) >= sizeof http->endpoint) {
        return cli_fail(CLI_EXIT_USAGE, "HF_ENDPOINT must be http://HOST or https://HOST, not '%s'",
                        endpoint);
    }
    snprintf(http->endpoint, sizeof http->endpoint, "%s", endpoint);
    for (size_t n = strlen(http->endpoint); n > 0 && http->endpoint[n - 1] == '/'; n--) {
        http->endpoint[n - 1] = '\0';
    }
    int code = find_authorities(http);
    code = code == CLI_EXIT_OK ? hub_cache_token(token, sizeof token) : code;
    if (code == CLI_EXIT_OK && token[0] != '\0') {
        snprintf(http->authorization, sizeof http->authorization, "Authorization: Bearer %s",
                 token);
    }
    if (code == CLI_EXIT_OK && curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) {
        http->curl = curl_easy_init();
    }
    return code == CLI_EXIT_OK && http->curl == NULL
               ? cli_fail(CLI_EXIT_FAILURE, "libcurl does not start")
               : code;
}

void hub_http_close(hub_http *http)
{
    if (http->curl != NULL) {
        curl_easy_cleanup(http->curl);
        curl_global_cleanup();
    }
    *http = (hub_http){0};
}

/* ---- Addresses ---- */

/* Whether the address has the hub's scheme, host and port: only then may it see the token. */
static bool is_of_hub(const hub_http *http, const char *url)
{
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *a = curl_url(), *b = curl_url();
    bool same = a != NULL && b != NULL &&
                curl_url_set(a, CURLUPART_URL, http->endpoint, 0) == CURLUE_OK &&
                curl_url_set(b, CURLUPART_URL, url, 0) == CURLUE_OK;
    for (size_t i = 0; same && i < sizeof parts / sizeof parts[0]; i++) {
        char *x = NULL, *y = NULL;
        same = curl_url_get(a, parts[i], &x, CURLU_DEFAULT_PORT) == CURLUE_OK &&
               curl_url_get(b, parts[i], &y, CURLU_DEFAULT_PORT) == CURLUE_OK &&
               strcasecmp(x, y) == 0;
        curl_free(x);
        curl_free(y);
    }
    curl_url_cleanup(a);
    curl_url_cleanup(b);
    return same;
}

int hub_http_turn_to(hub_http *http, const char *url)
{
    CURLU *parts = curl_url();
    char *scheme = NULL, *host = NULL, *port = NULL;
    if (!is_of_hub(http, url)) {
        http->authorization[0] = '\0';
    }
    bool good = parts != NULL && curl_url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK &&
                curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
                curl_url_get(parts, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
                curl_url_get(parts, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK;
    good = good && snprintf(http->endpoint, sizeof http->endpoint, "%s://%s:%s", scheme, host,
                            port) < (int)sizeof http->endpoint;
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(parts);
    return good ? CLI_EXIT_OK
                : cli_fail(CLI_EXIT_USAGE, "'%.200s' is no address of a web server", url);
}

/* A redirect leads to HTTP(S), and never from an encrypted hub to an address that is not. */
static bool may_follow(const hub_http *http, const char *url)
{
    return strncmp(url, "https://", 8) == 0 ||
           (strncmp(url, "http://", 7) == 0 && strncmp(http->endpoint, "http://", 7) == 0);
}

static void set_authorities(const hub_http *http, CURL *curl)
{
    struct stat facts;
    if (http->authorities != NULL) {
        bool folder = stat(http->authorities, &facts) == 0 && S_ISDIR(facts.st_mode);
        curl_easy_setopt(curl, CURLOPT_CAINFO, folder ? NULL : http->authorities);
        curl_easy_setopt(curl, CURLOPT_CAPATH, folder ? http->authorities : NULL);
    }
}

bool hub_http_prepare(const hub_http *http, CURL *curl, const char *url,
                      struct curl_slist **headers)
{
    *headers = NULL;
    if (http->authorization[0] != '\0' && is_of_hub(http, url)) {
        *headers = curl_slist_append(NULL, http->authorization);
        if (*headers == NULL) {
            return false;
        }
    }
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, *headers);
    curl_easy_setopt(curl, CURLOPT_URL, url);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "moe-offload/" MOE_VERSION_TEXT);
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, http->connect_seconds);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, http->seconds);
    set_authorities(http, curl);
    return true;
}

/* ---- Answers ---- */

/* Returns the header's value if the line has this name; NULL: it has another. */
static const char *value_of(const char *line, const char *name, size_t *size)
{
    size_t n = strlen(name);
    if (*size <= n || strncasecmp(line, name, n) != 0 || line[n] != ':') {
        return NULL;
    }
    const char *value = line + n + 1;
    *size -= n + 1;
    for (; *size > 0 && isspace((unsigned char)*value); value++, (*size)--) {
    }
    while (*size > 0 && isspace((unsigned char)value[*size - 1])) {
        (*size)--;
    }
    return value;
}

/* Takes abc from W/"abc" or "abc", if it is a SHA-256 or git's SHA-1 of a file. */
static void take_sum(hub_answer *answer, const char *value, size_t size, bool linked)
{
    char text[HUB_SUM_SIZE];
    if (size > 2 && memcmp(value, "W/", 2) == 0) {
        value += 2;
        size -= 2;
    }
    if (size > 2 && value[0] == '"' && value[size - 1] == '"') {
        value++;
        size -= 2;
    }
    bool fits = size < sizeof text && (linked || !answer->linked);
    snprintf(text, sizeof text, "%.*s", fits ? (int)size : 0, value);
    if (hub_is_hex(text, 64) || hub_is_hex(text, 40)) {
        memcpy(answer->sum, text, sizeof text);
        answer->linked |= linked;
    }
}

/* "bytes 0-99/1234" */
static void take_range(hub_answer *answer, const char *text)
{
    uint64_t from, to, size;
    if (sscanf(text, "bytes %" SCNu64 "-%" SCNu64 "/%" SCNu64, &from, &to, &size) == 3 &&
        from <= to && to < size && size <= LARGEST_FILE) {
        answer->from = from;
        answer->to = to;
        answer->total = size;
    }
}

void hub_answer_take_header(hub_answer *answer, const char *line, size_t size)
{
    static const char *const names[] = {"X-Linked-Etag", "ETag",         "X-Linked-Size",
                                        "X-Repo-Commit", "Retry-After",  "Content-Range",
                                        "X-Error-Code",  "Last-Modified"};
    char text[128];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t n = size;
        const char *value = value_of(line, names[i], &n);
        if (value == NULL) {
            continue;
        }
        snprintf(text, sizeof text, "%.*s", n < sizeof text ? (int)n : 0, value);
        if (i < 2) {
            take_sum(answer, value, n, i == 0);
            if (i == 1) {
                memcpy(answer->tag, text, sizeof text);
            }
        } else if (i == 2 && text[0] != '\0' && strspn(text, "0123456789") == strlen(text)) {
            answer->size = strtoull(text, NULL, 10);
        } else if (i == 3 && hub_is_hex(text, 40)) {
            snprintf(answer->commit, sizeof answer->commit, "%.40s", text);
        } else if (i == 4) {
            unsigned long seconds = strtoul(text, NULL, 10);
            answer->retry_after = seconds < 1000000 ? (unsigned)seconds : 1000000;
        } else if (i == 5) {
            take_range(answer, text);
        } else if (i == 6) {
            snprintf(answer->hub_error, sizeof answer->hub_error, "%.63s", text);
        } else if (i == 7) {
            snprintf(answer->modified, sizeof answer->modified, "%.63s", text);
        }
    }
}

void hub_answer_take_failure(hub_answer *answer, CURLcode done, const char *reason)
{
    answer->untrusted = done == CURLE_PEER_FAILED_VERIFICATION || done == CURLE_SSL_CACERT_BADFILE;
    snprintf(answer->reason, sizeof answer->reason, "%s",
             reason[0] != '\0' ? reason : curl_easy_strerror(done));
}

/* ---- One request ---- */

typedef struct reading {
    hub_answer *answer;
    size_t most;
} reading;

static size_t on_header(char *line, size_t one, size_t size, void *user)
{
    hub_answer_take_header(user, line, one * size);
    return one * size;
}

static size_t on_body(char *bytes, size_t one, size_t size, void *user)
{
    const reading *r = user;
    cli_buffer *body = &r->answer->body;
    size_t n = one * size;
    size_t room = r->most - body->size;
    if (!cli_buffer_append(body, bytes, n < room ? n : room)) {
        return 0;
    }
    r->answer->whole = n <= room;
    return n <= room ? n : 0;
}

static bool must_end(const hub_http *http)
{
    return cli_interrupted() || (http->stop != NULL && atomic_load(http->stop));
}

static int on_time(void *http, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return must_end(http);
}

/* Requests one address without following redirects. *next: the address to which it redirects; "":
 * none. */
static int ask(const hub_http *http, const char *url, const char *range, size_t most,
               hub_answer *answer, char next[HUB_URL_SIZE])
{
    CURL *curl = http->curl;
    struct curl_slist *headers;
    char reason[CURL_ERROR_SIZE] = "";
    char *redirect = NULL;
    reading r = {answer, most};
    curl_easy_reset(curl);
    if (!hub_http_prepare(http, curl, url, &headers)) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for a request");
    }
    answer->whole = true;
    answer->body.size = 0;
    answer->from = answer->to = answer->total = 0;
    curl_easy_setopt(curl, CURLOPT_RANGE, range);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, answer);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &r);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_time);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, http);
    CURLcode done = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &answer->status);
    curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &redirect);
    curl_off_t length = -1;
    curl_easy_getinfo(curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    if (answer->status == 200 && !answer->linked) {
        answer->size = length > 0 ? (uint64_t)length : 0;
    }
    snprintf(next, HUB_URL_SIZE, "%s", redirect == NULL ? "" : redirect);
    snprintf(answer->url, sizeof answer->url, "%s", url);
    if (done != CURLE_OK && (done != CURLE_WRITE_ERROR || answer->whole)) {
        hub_answer_take_failure(answer, done, reason);
    }
    curl_slist_free_all(headers);
    return cli_interrupted() ? CLI_EXIT_INTERRUPTED : CLI_EXIT_OK;
}

/* Requests an address and follows redirects, whose bodies are ignored. */
static int follow(const hub_http *http, const char *url, const char *range, size_t most,
                  const char *what, hub_answer *answer)
{
    char next[HUB_URL_SIZE];
    char at[HUB_URL_SIZE];
    cli_buffer body = answer->body;
    *answer = (hub_answer){.body = body};
    snprintf(at, sizeof at, "%s", url);
    for (unsigned i = 0; i <= MOST_REDIRECTS; i++) {
        int code = ask(http, at, range, most, answer, next);
        if (code != CLI_EXIT_OK || next[0] == '\0') {
            return code;
        }
        if (strlen(next) == HUB_URL_SIZE - 1) {
            return cli_fail(CLI_EXIT_FAILURE,
                            "%s: the hub redirects to an address of more than %d bytes", what,
                            HUB_URL_SIZE - 2);
        }
        if (!may_follow(http, next)) {
            return cli_fail(CLI_EXIT_FAILURE,
                            "%s: the hub redirects to '%.200s', which is not "
                            "encrypted or no web address",
                            what, next);
        }
        memcpy(at, next, sizeof at);
    }
    return cli_fail(CLI_EXIT_FAILURE, "%s: more than %d redirects", what, MOST_REDIRECTS);
}

bool hub_http_is_passing(const hub_answer *answer)
{
    return (answer->reason[0] != '\0' && !answer->untrusted) || answer->status == 408 ||
           answer->status == 429 || answer->status >= 500;
}

bool hub_http_wait(const hub_http *http, const hub_answer *answer, unsigned tried)
{
    double seconds = 0.25 * (double)(1u << (tried < 6 ? tried : 6));
    if (answer->retry_after > MOST_WAIT) {
        return false;
    }
    if (answer->retry_after > 0) {
        seconds = answer->retry_after;
    }
    const struct timespec tick = {0, 50000000};
    for (double waited = 0; waited < seconds && !must_end(http); waited += 0.05) {
        nanosleep(&tick, NULL);
    }
    return !must_end(http);
}

int hub_http_try(hub_http *http, const char *url, const char *range, size_t most, const char *what,
                 hub_answer *answer)
{
    *answer = (hub_answer){0};
    return follow(http, url, range, most, what, answer);
}

int hub_http_get(hub_http *http, const char *url, const char *range, size_t most, const char *what,
                 hub_answer *answer)
{
    *answer = (hub_answer){0};
    for (unsigned tried = 0;; tried++) {
        int code = follow(http, url, range, most, what, answer);
        if (code != CLI_EXIT_OK || (answer->reason[0] == '\0' && answer->status / 100 == 2)) {
            return code;
        }
        if (!hub_http_is_passing(answer) || tried + 1 >= http->tries ||
            !hub_http_wait(http, answer, tried)) {
            return hub_http_fail(http, answer, what);
        }
    }
}

/* ---- Words ---- */

static int fail_forbidden(const hub_http *http, const hub_answer *answer, const char *what)
{
    bool known = http->authorization[0] != '\0';
    if (answer->status == 403 || strcmp(answer->hub_error, "GatedRepo") == 0) {
        return cli_fail(
            CLI_EXIT_FAILURE, "%s: access is not granted (%ld): accept the model's terms on %s%s",
            what, answer->status, http->endpoint,
            known ? ", with the account of HF_TOKEN" : ", and set HF_TOKEN to a token of yours");
    }
    return cli_fail(CLI_EXIT_FAILURE,
                    known ? "%s: the hub does not accept the token, or there is no such repository "
                            "(401): check HF_TOKEN and the name"
                          : "%s: there is no such repository, or it is private (401): check the "
                            "name, or set HF_TOKEN to a token of yours",
                    what);
}

int hub_http_fail_trust(const hub_answer *answer, const char *what)
{
    return cli_fail(CLI_EXIT_FAILURE,
                    "%s: the server is not trusted: %s (SSL_CERT_FILE names the file of the "
                    "authorities to trust in place of the system's)",
                    what, answer->reason);
}

int hub_http_fail(const hub_http *http, const hub_answer *answer, const char *what)
{
    if (cli_interrupted()) {
        return CLI_EXIT_INTERRUPTED;
    }
    if (answer->untrusted) {
        return hub_http_fail_trust(answer, what);
    }
    if (answer->reason[0] != '\0') {
        return cli_fail(CLI_EXIT_FAILURE,
                        "%s: %s; try again: what has come is kept (--offline: what is in the cache "
                        "alone)",
                        what, answer->reason);
    }
    switch (answer->status) {
    case 401:
    case 403:
        return fail_forbidden(http, answer, what);
    case 404:
        if (strcmp(answer->hub_error, "RevisionNotFound") == 0) {
            return cli_fail(CLI_EXIT_FAILURE,
                            "%s: the repository has no such branch, tag or commit (404)", what);
        }
        return cli_fail(CLI_EXIT_FAILURE, "%s: the hub %s has no such repository or file (404)",
                        what, http->endpoint);
    case 429:
        return cli_fail(CLI_EXIT_FAILURE,
                        "%s: the hub has had too many requests (429): try again in %u seconds%s",
                        what, answer->retry_after > 0 ? answer->retry_after : 60,
                        http->authorization[0] == '\0' ? "; with HF_TOKEN it allows more" : "");
    default:
        return cli_fail(CLI_EXIT_FAILURE, "%s: the hub answers with status %ld%s", what,
                        answer->status, answer->status >= 500 ? ": try again later" : "");
    }
}
