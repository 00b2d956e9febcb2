/* SPDX-License-Identifier: MIT */
/* Lists the tables of a sidecar as tensors of its file, for the code that reads and writes the
 * file. */
#ifndef MOE_SIDECAR_CALIBRATION_TABLES_H
#define MOE_SIDECAR_CALIBRATION_TABLES_H

#include "runtime/sidecar/calibration.h"

/* The version of the format. Version 1 had a fingerprint that did not cover the weights, and no
 * key .tables. */
#define MOE_CALIBRATION_VERSION        2u
#define MOE_CALIBRATION_TABLES_CHECKED 10u /* under one checksum: all but gram */
#define MOE_CALIBRATION_TABLE_GRAM     MOE_CALIBRATION_TABLES_CHECKED
/* GGUF's numbers of the tensor types used here. */
#define MOE_GGUF_TYPE_F32 0u
#define MOE_GGUF_TYPE_I16 25u
#define MOE_GGUF_TYPE_I64 27u

/* One tensor of the file, and the memory that holds its values. */
typedef struct moe_calibration_table {
    const char *name;
    uint32_t type;
    uint32_t n_dims;
    uint64_t dims[3]; /* dims[0] is the row length */
    void **memory;
    uint64_t bytes;
} moe_calibration_table;

/* Lists the tables, [MOE_CALIBRATION_TABLES_CHECKED + 1], in the order of the file. */
void moe_calibration_list_tables(moe_calibration *calibration, moe_calibration_table *tables);
/* Returns the table that holds what was learnt about drafts. */
moe_calibration_table moe_calibration_drafts_table(moe_calibration *calibration);
/* Continues the checksum `hash` over the table's bytes. */
uint64_t moe_calibration_mix_table(uint64_t hash, const moe_calibration_table *table);
/* Returns the checksum over the tables that serve to find damage. */
uint64_t moe_calibration_mix_integrity(const moe_calibration *calibration);

#endif
