/* SPDX-License-Identifier: MIT */
/* The page of memory through which a driver tells the preloaded library (fault_preload.c) which
 * system calls go wrong, and through which that tells what it did. It is a file that both map; its
 * path is in the environment variable FAULT_PAGE. */
#ifndef TESTS_FAULTS_PAGE_H
#define TESTS_FAULTS_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What goes wrong: groups of calls that fail in the same ways. */
typedef enum fault_class {
    FAULT_OPEN,       /* open, fopen, opendir */
    FAULT_STAT,       /* stat, fstat, statx, access */
    FAULT_READ,       /* read, pread, fread */
    FAULT_MAP,        /* mmap, munmap */
    FAULT_ADVISE,     /* madvise, posix_fadvise, mincore, sched_setaffinity */
    FAULT_ALLOC,      /* malloc, calloc, realloc, aligned_alloc, strdup */
    FAULT_THREAD,     /* pthread_create */
    FAULT_RING,       /* io_uring_setup, io_uring_register, eventfd */
    FAULT_ENTER,      /* io_uring_enter: submissions and waits */
    FAULT_COMPLETION, /* the result of a read that io_uring carried out */
    FAULT_WAIT,       /* pthread_cond_wait, pthread_cond_timedwait */
    FAULT_WRITE,      /* write, fwrite, fflush, fsync, ftruncate, renameat, flock, fclose */
    FAULT_CLASSES
} fault_class;

/* How. */
typedef enum fault_kind {
    FAULT_FAIL,  /* an error that the call may return */
    FAULT_SHORT, /* fewer bytes than were asked for; those behind them are spoilt */
    FAULT_LATE,  /* late_us later */
    FAULT_HANG,  /* a read does not end before let_go is set, or hang_ms have passed */
    FAULT_LIE,   /* one bit of the model's weights is read wrongly, and nothing says so */
    FAULT_WAKE,  /* EINTR, or a wait that ends for no reason */
    FAULT_KINDS
} fault_kind;

typedef struct fault_page {
    /* set by the driver */
    _Atomic uint32_t profile;
    _Atomic uint32_t armed;
    _Atomic uint32_t let_go;
    _Atomic uint64_t seed;
    _Atomic uint32_t late_us, hang_ms;
    /* Reads lie about this file, from this offset on: about weights, which have checksums. */
    _Atomic uint64_t lie_inode, lie_from;
    /* Of a million calls of the class, so many go wrong in this way. */
    _Atomic uint32_t rates[FAULT_CLASSES][FAULT_KINDS];
    /* Besides, the nth call of this class (from 0) goes wrong in this way; < 0: none. */
    _Atomic int64_t nth;
    _Atomic uint32_t nth_class, nth_kind;
    /* told by the library */
    _Atomic uint32_t loaded;
    _Atomic uint64_t n_calls[FAULT_CLASSES];
    _Atomic uint64_t n_faults[FAULT_CLASSES][FAULT_KINDS];
    /* told by fault_api.c, which makes many runs in one process */
    _Atomic uint64_t n_runs, n_failed, n_wrong, n_gave_up, n_leaks;
} fault_page;

/* What comes together in one run. */
typedef enum fault_profile {
    PROFILE_MILD,    /* what every program has to bear: short reads, EINTR, waits that end early */
    PROFILE_ANY,     /* every call may fail */
    PROFILE_NTH,     /* one call of the run goes wrong */
    PROFILE_MEMORY,  /* allocations fail */
    PROFILE_DISK,    /* reads fail, at random */
    PROFILE_HANG,    /* reads do not end */
    PROFILE_LIE,     /* reads bring wrong bytes */
    PROFILE_REFUSED, /* io_uring, threads, maps are refused */
    PROFILE_WRITE,   /* writes fail */
    PROFILE_LATE,    /* everything takes its time */
    FAULT_PROFILES
} fault_profile;

extern const char *const fault_class_names[FAULT_CLASSES];
extern const char *const fault_kind_names[FAULT_KINDS];
extern const char *const fault_profile_names[FAULT_PROFILES];

/* Whether nothing may fail. */
static inline bool fault_profile_is_mild(fault_profile profile)
{
    return profile == PROFILE_MILD || profile == PROFILE_LATE;
}

/* Sets rates, nth call and times. n_calls: of a run without faults, by class; for PROFILE_NTH. */
void fault_page_set(fault_page *page, fault_profile profile, uint64_t seed,
                    const uint64_t *n_calls);
/* A file of this path, mapped and with everything 0; NULL when that cannot be. */
fault_page *fault_page_create(const char *path);
fault_page *fault_page_map(const char *path);

#endif
