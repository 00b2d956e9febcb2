/* SPDX-License-Identifier: MIT */
/* Simulated drives behind the contract of an I/O engine (offload/io/io_engine.h): reads end in any
 * order, late, short, with errors, with wrong bytes, twice, or never. */
#ifndef MOE_TESTS_VIRTUAL_DISK_H
#define MOE_TESTS_VIRTUAL_DISK_H

#include "offload/io/io_engine.h"
#include "tests/simulation/fibers.h"

#define VD_MAX_FILES 16u
#define VD_MAX_READS 128u
/* A transient fault, and one that a retry mends, comes at most so many times in a row. */
#define VD_MOST_IN_ROW 3u

/* How often what happens, in thousandths of reads. */
typedef struct vd_faults {
    uint32_t short_read, transient, slow, soft_error, hard_error, flip, hang, twice, refused;
} vd_faults;

typedef struct vd_read {
    moe_io_read read;
    uint32_t use;
    int32_t result;
    bool live, flipped;
} vd_read;

typedef struct virtual_disk {
    /* Set before the reader is opened. */
    const uint8_t *bytes[VD_MAX_FILES]; /* of each file, whatever drive it is on */
    uint64_t sizes[VD_MAX_FILES];
    uint32_t n_files; /* of a drive */
    uint32_t n_drives;
    vd_faults faults[8];       /* of each drive */
    uint64_t read_ns;          /* about what a read takes */
    uint64_t slow_ns, hang_ns; /* the most that slow and hanging ones take */
    uint32_t never_per_mille;  /* of the hangs, those that never end */
    bool refuses_to_open;
    bool no_direct; /* direct reads are refused one by one */
    bool blocks;    /* submit() returns when the reads have ended, as the engine "sync" does */
    uint64_t seed;
    /* From open on. */
    sim_dice dice;
    uint32_t n_read_files; /* of all drives */
    vd_read reads[VD_MAX_READS];
    uint32_t n_in_flight;
    moe_io_completion done[2 * VD_MAX_READS];
    uint32_t n_done;
    bool woken, closed;
    uint8_t in_row[VD_MAX_READS]; /* by the reader's block */
    uint64_t n_reads, n_hung, n_faults;
} virtual_disk;

extern const moe_io_ops virtual_disk_ops; /* the context is a virtual_disk */

#endif
