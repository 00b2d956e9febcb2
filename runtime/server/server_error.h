/* SPDX-License-Identifier: MIT */
/* Why a request is refused or has failed. */
#ifndef SERVER_ERROR_H
#define SERVER_ERROR_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/moe.h>

/* An error in the shape that OpenAI's clients expect. */
typedef struct server_error {
    unsigned status;  /* of HTTP; 0: no error */
    const char *type; /* "invalid_request_error", ... */
    const char *code; /* NULL: null */
    char field[64];   /* "": null */
    char message[MOE_ERROR_MESSAGE_SIZE + 128];
} server_error;

/* False always, so that a check can end with it. field may be NULL. */
__attribute__((format(printf, 5, 6))) bool server_fail(server_error *error, unsigned status,
                                                       const char *code, const char *field,
                                                       const char *format, ...);
/* The error of a failed call of the library. */
bool server_fail_status(server_error *error, int status, const moe_error *err);

/* Keywords of schemas that answers are not held to, as the client is told of them. */
enum { SERVER_DROPPED_BYTES = 512 };
const char *server_dropped_keyword(unsigned i); /* NULL: there are no more */
/* Those that are told of in the text, a bit for each. */
uint32_t server_dropped_bits(const char *dropped);
/* Adds words to dropped[SERVER_DROPPED_BYTES], as far as they fit. */
void server_note_dropped(char *dropped, const char *where, const char *words);

#endif
