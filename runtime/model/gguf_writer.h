/* SPDX-License-Identifier: MIT */
/* Writes small GGUF v3 files from metadata and tensors in memory. Keys and tensors are written in
 * the order in which they are added, so the same calls give the same bytes. If memory is short, the
 * writer remembers it, and moe_gguf_writer_save() reports it. */
#ifndef MOE_MODEL_GGUF_WRITER_H
#define MOE_MODEL_GGUF_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>

typedef struct moe_gguf_writer moe_gguf_writer;

/* NULL when memory is short. */
moe_gguf_writer *moe_gguf_writer_create(void);
void moe_gguf_writer_free(moe_gguf_writer **writer);

void moe_gguf_writer_u32(moe_gguf_writer *writer, const char *key, uint32_t value);
void moe_gguf_writer_u64(moe_gguf_writer *writer, const char *key, uint64_t value);
void moe_gguf_writer_string(moe_gguf_writer *writer, const char *key, const char *value);
/* Adds a tensor. type: a number of GGUF's tensor types. data (`bytes` long) must live until
 * save. */
void moe_gguf_writer_tensor(moe_gguf_writer *writer, const char *name, uint32_t type,
                            uint32_t n_dims, const uint64_t *dims, const void *data,
                            uint64_t bytes);

/* Like moe_gguf_writer_tensor(), but the tensor's bytes come while the file is saved. */
void moe_gguf_writer_later(moe_gguf_writer *writer, const char *name, uint32_t type,
                           uint32_t n_dims, const uint64_t *dims, uint64_t bytes);

/* Returns the next bytes of such a tensor. Tensors are numbered from 0 in the order of adding. The
 * bytes are valid until the next call. */
typedef int (*moe_gguf_bytes_fn)(uint64_t tensor, const void **bytes, size_t *n, void *user,
                                 moe_error *err);
/* The function that save calls for tensors without data, in order, until it has all their bytes. */
void moe_gguf_writer_set_source(moe_gguf_writer *writer, moe_gguf_bytes_fn source, void *user);

/* Atomic: afterwards the file is the old or the new one. */
int moe_gguf_writer_save(const moe_gguf_writer *writer, const char *path, moe_error *err);

#endif
