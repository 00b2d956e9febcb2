/* SPDX-License-Identifier: MIT */
/* Shared by the tests of the I/O engines: a file of known bytes, guarded buffers, and a reader. */
#ifndef MOE_TEST_IO_FIXTURE_H
#define MOE_TEST_IO_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "offload/io/io_fault.h"
#include "offload/io/range_reader.h"

/* No multiple of any alignment. */
#define IO_FILE_BYTES ((12u << 20) + 1237u)
#define IO_MAX_SLOTS  64u
#define IO_MAX_LOG    8u

typedef struct io_file {
    char path[64];
    int fd;
    uint64_t size;
    uint8_t *bytes; /* what the file holds */
} io_file;

/* A file in the current folder. The seed decides its bytes. */
void io_file_create(io_file *file, uint64_t size, uint64_t seed);
void io_file_remove(io_file *file);
/* Opens the file as a source of file->size bytes; asserts success. */
moe_byte_source *io_file_source(const io_file *file);

/* Memory that is followed, at once, by a page that must not be touched. */
typedef struct io_guarded {
    uint8_t *memory;
    size_t bytes; /* a multiple of 4096 */
    size_t mapped;
} io_guarded;

void io_guarded_create(io_guarded *guarded, size_t bytes);
void io_guarded_free(io_guarded *guarded);

/* The engine a contract suite runs over. */
typedef struct io_variant {
    const char *name;
    moe_io_kind kind;
    const moe_io_ops *ops; /* of kind */
    bool buffered;
    bool wrapped; /* in a fault engine that injects nothing */
} io_variant;

extern const io_variant io_variants[];
extern const size_t io_n_variants;

typedef struct io_fixture {
    const io_variant *variant;
    io_file files[2];
    moe_io_fault fault;
    moe_range_reader_options options; /* for io_fixture_open() */
    moe_byte_source *range_files[2];
    moe_range_reader *reader;
    char log[IO_MAX_LOG][512];
    uint32_t n_log;
    io_guarded slots[IO_MAX_SLOTS]; /* each as large as slot_bytes and no larger */
    uint32_t n_slots;
} io_fixture;

void io_fixture_init(io_fixture *f, const io_variant *variant, const io_file files[2]);
/* Opens f->reader by f->options; asserts success. */
void io_fixture_open(io_fixture *f);
/* Slots that each hold a range of so many bytes, exactly. After open. */
void io_fixture_slots(io_fixture *f, uint32_t n, uint64_t range_bytes);
/* Closes the reader (asserting that it drained) and frees the slots. */
void io_fixture_close(io_fixture *f);

/* Submits a range of a file into a slot; the tag is the slot. */
bool io_submit(io_fixture *f, uint32_t slot, uint32_t file, uint64_t offset, uint64_t size);
/* The range's bytes are the file's. */
void io_check_bytes(io_fixture *f, const moe_range_done *done, uint32_t file, uint64_t offset,
                    uint64_t size);
/* Reads one range and returns its report. */
moe_range_done io_read_one(io_fixture *f, uint32_t file, uint64_t offset, uint64_t size);

/* xorshift; never 0. */
uint64_t io_random(uint64_t *state);

typedef void (*io_case_fn)(io_fixture *f);
typedef struct io_case {
    const char *name;
    io_case_fn run;
} io_case;

/* Runs every case on every variant that `wanted` accepts (NULL: all): test names are
 * "variant: case". */
int io_run_cases(const char *group, const io_case *cases, size_t n_cases,
                 bool (*wanted)(const io_variant *));

#endif
