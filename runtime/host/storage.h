/* SPDX-License-Identifier: MIT */
/* Describes where a file is stored: file system, block device, and the alignment that direct reads
 * need. */
#ifndef MOE_HOST_STORAGE_H
#define MOE_HOST_STORAGE_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/status.h>

typedef struct moe_storage {
    char file_system[32]; /* "ext4"; "" when not known */
    char mount_point[256];
    char mount_source[256]; /* "/dev/nvme0n1p2" */
    bool has_device;        /* false on tmpfs, network file systems, ...: the fields below are 0 */
    char device[64];        /* the whole disk: "nvme0n1", "md0", "sda" */
    char device_model[64];  /* "" when the disk has no name */
    bool is_nvme;
    bool is_rotational;
    uint32_t logical_block_bytes;
    uint32_t physical_block_bytes;
    uint32_t read_ahead_kb;
    uint64_t device_bytes;
    bool direct_io;               /* the file can be opened with O_DIRECT */
    uint32_t direct_memory_align; /* as the kernel states it (statx); 0: not stated */
    uint32_t direct_offset_align;
} moe_storage;

/* MOE_ERR_IO when the file cannot be opened. Fields that cannot be determined stay empty. */
int moe_storage_read(moe_storage *storage, const char *path, moe_error *err);

#endif
