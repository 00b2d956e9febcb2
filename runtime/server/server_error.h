/* SPDX-License-Identifier: MIT */
/* Errors of requests: status, type and message, as clients receive them. */
#ifndef SERVER_ERROR_H
#define SERVER_ERROR_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/moe.h>

/* An error with the members that OpenAI's clients expect. */
typedef struct server_error {
    unsigned status;  /* of HTTP; 0: no error */
    const char *type; /* "invalid_request_error", ... */
    const char *code; /* NULL: null */
    char field[64];   /* "": null */
    char message[MOE_ERROR_MESSAGE_SIZE + 128];
} server_error;

/* Sets the error. Always returns false, so that a check can end with `return server_fail(..)`.
 * field: the request's field that is wrong, or NULL. */
__attribute__((format(printf, 5, 6))) bool server_fail(server_error *error, unsigned status,
                                                       const char *code, const char *field,
                                                       const char *format, ...);
/* Sets the error for a call of the library that failed with this status and message. Always returns
 * false. */
bool server_fail_status(server_error *error, int status, const moe_error *err);

/* The size of a text that tells the client which keywords of its JSON schema the grammar does not
 * enforce. */
enum { SERVER_DROPPED_BYTES = 512 };
const char *server_dropped_keyword(unsigned i); /* NULL: there are no more */
/* Returns a bit for each keyword that such a text names. */
uint32_t server_dropped_bits(const char *dropped);
/* Appends the keywords and the field that they belong to to such a text, as far as there is
 * room. */
void server_note_dropped(char *dropped, const char *where, const char *words);

#endif
