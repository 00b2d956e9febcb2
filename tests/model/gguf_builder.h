/* SPDX-License-Identifier: MIT */
/* Builds GGUF files in memory, right or wrong, for tests. Keys and tensors are added in file order;
 * gb_finish() lays the file out. Every check of well-formedness is left to the code under test: any
 * type number, count, offset or length can be written.
 *
 *     gguf_builder *b = gb_new();
 *     gb_string(b, "general.architecture", "olmoe");
 *     gb_u32(b, "olmoe.block_count", 2);
 *     gb_tensor(b, "output_norm.weight", MOE_DTYPE_F32, 1, 64);
 *     size_t size;
 *     const uint8_t *bytes = gb_finish(b, &size);
 *     ...
 *     gb_free(b);
 *
 * A builder that runs out of memory aborts: it serves tests only. */
#ifndef MOE_TESTS_GGUF_BUILDER_H
#define MOE_TESTS_GGUF_BUILDER_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/model/gguf.h"

typedef struct gguf_builder gguf_builder;

gguf_builder *gb_new(void);
void gb_free(gguf_builder *b);

/* Metadata. A key added again replaces nothing: it stands in the file twice. */
void gb_u8(gguf_builder *b, const char *key, uint8_t value);
void gb_i32(gguf_builder *b, const char *key, int32_t value);
void gb_u32(gguf_builder *b, const char *key, uint32_t value);
void gb_u64(gguf_builder *b, const char *key, uint64_t value);
void gb_f32(gguf_builder *b, const char *key, float value);
void gb_f64(gguf_builder *b, const char *key, double value);
void gb_bool(gguf_builder *b, const char *key, int value);
void gb_string(gguf_builder *b, const char *key, const char *value);
void gb_array_i32(gguf_builder *b, const char *key, const int32_t *values, size_t n);
void gb_array_f32(gguf_builder *b, const char *key, const float *values, size_t n);
void gb_array_string(gguf_builder *b, const char *key, const char *const *values, size_t n);
/* n strings "t0", "t1", ... */
void gb_array_tokens(gguf_builder *b, const char *key, size_t n);

/* A key with any type number and any bytes as its value. */
void gb_raw_kv(gguf_builder *b, const void *key, size_t key_size, uint32_t type, const void *value,
               size_t value_size);
/* Forgets every key of this name / the tensor of this name (and its data). */
void gb_remove(gguf_builder *b, const char *key);
void gb_remove_tensor(gguf_builder *b, const char *name);
void gb_rename_tensor(gguf_builder *b, const char *name, const char *new_name);

/* A tensor with n_dims dimensions (uint64_t or int arguments are both read as int: keep them below
 * 2^31), placed behind the last one at the next aligned offset. Its data are seeded by its name and
 * are valid for the type: small floats, or blocks whose scales are small. */
void gb_tensor(gguf_builder *b, const char *name, uint32_t type, int n_dims, ...);

/* A tensor entry as it is given, without data of its own. */
typedef struct gb_entry {
    const char *name;
    uint32_t n_dims;
    uint64_t dims[5];
    uint32_t type;
    uint64_t offset;
} gb_entry;
void gb_raw_tensor(gguf_builder *b, const gb_entry *entry);

/* Overrides of what gb_finish() would write. */
void gb_set_magic(gguf_builder *b, const char magic[4]);
void gb_set_version(gguf_builder *b, uint32_t version);
void gb_set_n_kvs(gguf_builder *b, uint64_t n_kvs);
void gb_set_n_tensors(gguf_builder *b, uint64_t n_tensors);
/* Alignment of the layout (default 32); the key general.alignment is not added. */
void gb_set_alignment(gguf_builder *b, uint64_t alignment);

/* The file's bytes, owned by the builder until it is changed or freed. */
const uint8_t *gb_finish(gguf_builder *b, size_t *size);

/* Writes the file; 0, or -1 with errno. */
int gb_write(gguf_builder *b, const char *path);

/* Dimensions of a small random model of a family: all that the family needs is written, with the
 * extra keys and layouts chosen here. */
typedef struct gb_model {
    const char *architecture;
    int n_layer, n_embd, n_vocab, n_head, n_head_kv, head_dim, n_ff, n_expert, n_used, n_ff_expert;
    int n_dense_lead, n_shared, n_group, n_group_used;
    int q_rank, kv_rank, n_rot, v_dim; /* MLA */
    uint32_t matrix_type, expert_type;
    int tied;           /* no output.weight */
    int single_experts; /* one tensor an expert, as in old files */
    int fused_experts;  /* ffn_gate_up_exps */
    int joined_kv;      /* attn_kv_b */
    int selection_bias;
} gb_model;

/* A preset that is valid for the architecture; NULL-free and small (some 100 KB). */
gb_model gb_model_preset(const char *architecture);
/* A builder holding the model. */
gguf_builder *gb_model_build(const gb_model *model);

#endif
