/* SPDX-License-Identifier: MIT */
/* Status codes and the caller-owned error message: the one error rule of the library.
 *
 * Threads (the groups are explained in moe.h):
 *   free: moe_status_name */
#ifndef MOE_STATUS_H
#define MOE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(MOE_BUILDING_LIBRARY)
#define MOE_API __attribute__((visibility("default")))
#else
#define MOE_API
#endif

/* Every function that can fail returns MOE_OK or one of the negative codes. */
typedef enum moe_status {
    MOE_OK = 0,
    MOE_ERR_ARGUMENT = -1,     /* the caller passed something out of range */
    MOE_ERR_MEMORY = -2,       /* an allocation failed */
    MOE_ERR_IO = -3,           /* a file could not be opened, read or written */
    MOE_ERR_FORMAT = -4,       /* a file is malformed, or its weights give no numbers */
    MOE_ERR_UNSUPPORTED = -5,  /* valid, but this build cannot do it */
    MOE_ERR_BUDGET = -6,       /* a memory budget is below what the model needs */
    MOE_ERR_CONTEXT_FULL = -7, /* the session's context has no room for more tokens */
    MOE_ERR_CANCELLED = -8,    /* moe_session_cancel() was called */
    MOE_ERR_MISMATCH = -9,     /* a saved session or table belongs to another model */
    MOE_ERR_DEVICE = -10,      /* the device failed */
    MOE_ERR_INTERNAL = -11     /* a broken invariant: please report it */
} moe_status;

#define MOE_ERROR_MESSAGE_SIZE 512

/* One line, without a newline: it names the file, tensor, offset or option, and a remedy where
 * there is one. Owned by the caller; every function accepts NULL instead. */
typedef struct moe_error {
    char message[MOE_ERROR_MESSAGE_SIZE];
} moe_error;

/* A short constant English name of a status, e.g. "malformed file". Never NULL. */
MOE_API const char *moe_status_name(int status);

#ifdef __cplusplus
}
#endif
#endif
