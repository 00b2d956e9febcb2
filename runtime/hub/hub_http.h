/* SPDX-License-Identifier: MIT */
/* Requests to a hub, by libcurl. A request follows only safe redirects, is tried again if it may
 * succeed later, and prints an error in words if it fails. */
#ifndef HUB_HTTP_H
#define HUB_HTTP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <curl/curl.h>

#include "cli_buffer.h"
#include "cli_options.h"
#include "hub_names.h"

enum { HUB_URL_SIZE = 8192 };

typedef struct hub_http {
    CURL *curl; /* for single requests; keeps the connection open */
    char endpoint[512];
    char authorization[1024]; /* a header; "": none */
    long seconds;             /* a connection without a byte for this long is given up */
    long connect_seconds;     /* time limit for connecting */
    unsigned tries;           /* tries of a request */
    const char *authorities;  /* a file or folder of certificates that are trusted; NULL: the
                               * system's */
    const atomic_bool *stop;  /* set to end requests, as Ctrl-C does; NULL: only Ctrl-C ends them */
} hub_http;

/* The last answer of a chain of redirects, with facts from the hub's earlier answers in the
 * chain. */
typedef struct hub_answer {
    long status;
    cli_buffer body;
    bool whole;                        /* false: the body was longer than allowed */
    char url[HUB_URL_SIZE];            /* the address that answered */
    char commit[HUB_COMMIT_SIZE];      /* X-Repo-Commit; "": none */
    char sum[HUB_SUM_SIZE];            /* X-Linked-Etag or ETag, if it is a checksum; else "" */
    bool linked;                       /* sum and size come from X-Linked- headers */
    char tag[128];                     /* the last ETag, as it came */
    char modified[64];                 /* the last Last-Modified */
    uint64_t size;                     /* bytes of the whole file; 0: not known */
    uint64_t from, to;                 /* the range that the answer has */
    uint64_t total;                    /* the file's size by the range's header; 0: no range came */
    unsigned retry_after;              /* Retry-After in seconds; 0: none */
    char hub_error[64];                /* X-Error-Code */
    char reason[CURL_ERROR_SIZE + 64]; /* why there is no answer; "": there is one */
    bool untrusted;                    /* ... because of the server's certificate */
} hub_answer;

/* This function and those below return exit codes. Close *http also after an error. */
int hub_http_open(hub_http *http);
void hub_http_close(hub_http *http);

/* Gets the content of the address, of at most this many bytes. range: "0-99"; NULL: everything.
 * Tries again after time-outs, lost connections, 429 and 5xx. `what` names the thing in errors.
 * Free answer->body. */
int hub_http_get(hub_http *http, const char *url, const char *range, size_t most, const char *what,
                 hub_answer *answer);

/* Like hub_http_get(), but tries once, and fails in words only if the address or a redirect is
 * refused. */
int hub_http_try(hub_http *http, const char *url, const char *range, size_t most, const char *what,
                 hub_answer *answer);
/* Makes requests go to this address instead of the hub's. Sends the token only if the address is
 * the hub's own. Returns an exit code. */
int hub_http_turn_to(hub_http *http, const char *url);
/* Whether this is an address of HTTP or HTTPS. */
bool hub_is_url(const char *text);

/* Whether a request with this answer may succeed when it is tried again. */
bool hub_http_is_passing(const hub_answer *answer);
/* Prints why the request failed; returns an exit code. */
int hub_http_fail(const hub_http *http, const hub_answer *answer, const char *what);
/* Waits before the next try: as long as the hub asks for, otherwise longer each time. False:
 * interrupted or stopped, or the hub asks for more than a few minutes. */
bool hub_http_wait(const hub_http *http, const hub_answer *answer, unsigned tried);

/* Sets what all requests to this address have in common: protocols, time-outs, and the token if the
 * address is the hub's own. Free *headers after the request. False: memory is short. */
bool hub_http_prepare(const hub_http *http, CURL *curl, const char *url,
                      struct curl_slist **headers);
/* Notes why a request failed. reason: libcurl's words; "": none. */
void hub_answer_take_failure(hub_answer *answer, CURLcode done, const char *reason);
/* Prints that the server is not trusted; returns an exit code. */
int hub_http_fail_trust(const hub_answer *answer, const char *what);
/* Takes one header line of an answer. */
void hub_answer_take_header(hub_answer *answer, const char *line, size_t size);

#endif
