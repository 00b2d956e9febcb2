/* SPDX-License-Identifier: MIT */
#include "tests/faults/fault_page.h"

#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#define HANG_MS 60000u
#define LATE_US 1500u

const char *const fault_class_names[FAULT_CLASSES] = {
    [FAULT_OPEN] = "open",     [FAULT_STAT] = "stat",
    [FAULT_READ] = "read",     [FAULT_MAP] = "map",
    [FAULT_ADVISE] = "advise", [FAULT_ALLOC] = "allocate",
    [FAULT_THREAD] = "thread", [FAULT_RING] = "ring",
    [FAULT_ENTER] = "enter",   [FAULT_COMPLETION] = "completion",
    [FAULT_WAIT] = "wait",     [FAULT_WRITE] = "write",
};
const char *const fault_kind_names[FAULT_KINDS] = {
    [FAULT_FAIL] = "fail", [FAULT_SHORT] = "short", [FAULT_LATE] = "late",
    [FAULT_HANG] = "hang", [FAULT_LIE] = "lie",     [FAULT_WAKE] = "wake",
};
const char *const fault_profile_names[FAULT_PROFILES] = {
    [PROFILE_MILD] = "mild",     [PROFILE_ANY] = "any",         [PROFILE_NTH] = "nth",
    [PROFILE_MEMORY] = "memory", [PROFILE_DISK] = "disk",       [PROFILE_HANG] = "hang",
    [PROFILE_LIE] = "lie",       [PROFILE_REFUSED] = "refused", [PROFILE_WRITE] = "write",
    [PROFILE_LATE] = "late",
};

fault_page *fault_page_map(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    void *page = mmap(NULL, sizeof(fault_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return page == MAP_FAILED ? NULL : page;
}

fault_page *fault_page_create(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(fault_page)) != 0) {
        return NULL;
    }
    close(fd);
    return fault_page_map(path);
}

static uint64_t next(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

/* At most `most` of a million, and seldom near it. */
static uint32_t up_to(uint64_t *random, uint32_t most)
{
    uint64_t share = next(random) % 1000u;
    return (uint32_t)(most * share * share / 1000000u) + 1;
}

static void set_mild(fault_page *page, uint64_t *random)
{
    page->rates[FAULT_READ][FAULT_SHORT] = up_to(random, 600000);
    page->rates[FAULT_READ][FAULT_WAKE] = up_to(random, 300000);
    page->rates[FAULT_COMPLETION][FAULT_SHORT] = up_to(random, 600000);
    page->rates[FAULT_ENTER][FAULT_WAKE] = up_to(random, 600000);
    page->rates[FAULT_WAIT][FAULT_WAKE] = up_to(random, 800000);
    page->rates[FAULT_READ][FAULT_LATE] = up_to(random, 10000);
}

static void set_all(fault_page *page, fault_kind kind, uint64_t *random, uint32_t most)
{
    for (int class = 0; class < FAULT_CLASSES; class ++) {
        page->rates[class][kind] = up_to(random, most);
    }
}

/* A class that the run has calls of, and one of those. */
static void set_nth(fault_page *page, uint64_t *random, const uint64_t *n_calls)
{
    uint32_t class = (uint32_t)(next(random) % FAULT_CLASSES);
    for (int i = 0; i < FAULT_CLASSES && (n_calls == NULL || n_calls[class] == 0); i++) {
        class = (class + 1) % FAULT_CLASSES;
    }
    if (n_calls == NULL || n_calls[class] == 0) {
        return;
    }
    bool reads = class == FAULT_READ || class == FAULT_COMPLETION;
    page->nth_class = class;
    page->nth_kind = reads && next(random) % 3 == 0 ? FAULT_SHORT : FAULT_FAIL;
    page->nth = (int64_t)(next(random) % n_calls[class]);
}

static void set_refused(fault_page *page, uint64_t *random)
{
    page->rates[FAULT_RING][FAULT_FAIL] = up_to(random, 600000);
    page->rates[FAULT_THREAD][FAULT_FAIL] = up_to(random, 300000);
    page->rates[FAULT_ADVISE][FAULT_FAIL] = up_to(random, 900000);
    page->rates[FAULT_MAP][FAULT_FAIL] = up_to(random, 100000);
    page->rates[FAULT_OPEN][FAULT_FAIL] = up_to(random, 100000);
    page->rates[FAULT_STAT][FAULT_FAIL] = up_to(random, 200000);
    page->rates[FAULT_ENTER][FAULT_FAIL] = up_to(random, 100000);
}

static void clear(fault_page *page)
{
    for (int class = 0; class < FAULT_CLASSES; class ++) {
        for (int kind = 0; kind < FAULT_KINDS; kind++) {
            page->rates[class][kind] = 0;
        }
        page->n_calls[class] = 0;
    }
    page->nth = -1;
    page->let_go = 0;
    page->late_us = LATE_US;
    page->hang_ms = HANG_MS;
}

void fault_page_set(fault_page *page, fault_profile profile, uint64_t seed, const uint64_t *n_calls)
{
    uint64_t random = seed * 0x9e3779b97f4a7c15u + 0x1234567u;
    clear(page);
    page->seed = seed;
    page->profile = profile;
    next(&random);
    switch (profile) {
    case PROFILE_MILD:
        set_mild(page, &random);
        break;
    case PROFILE_NTH:
        set_nth(page, &random, n_calls);
        break;
    case PROFILE_MEMORY:
        page->rates[FAULT_ALLOC][FAULT_FAIL] = up_to(&random, 50000);
        break;
    case PROFILE_DISK:
        page->rates[FAULT_READ][FAULT_FAIL] = up_to(&random, 100000);
        page->rates[FAULT_READ][FAULT_SHORT] = up_to(&random, 200000);
        page->rates[FAULT_COMPLETION][FAULT_FAIL] = up_to(&random, 300000);
        page->rates[FAULT_COMPLETION][FAULT_SHORT] = up_to(&random, 300000);
        break;
    case PROFILE_HANG:
        page->rates[FAULT_READ][FAULT_HANG] = up_to(&random, 50000);
        page->rates[FAULT_COMPLETION][FAULT_HANG] = up_to(&random, 50000);
        break;
    case PROFILE_LIE:
        page->rates[FAULT_READ][FAULT_LIE] = up_to(&random, 200000);
        page->rates[FAULT_COMPLETION][FAULT_LIE] = up_to(&random, 200000);
        break;
    case PROFILE_REFUSED:
        set_refused(page, &random);
        break;
    case PROFILE_WRITE:
        page->rates[FAULT_WRITE][FAULT_FAIL] = up_to(&random, 100000);
        page->rates[FAULT_WRITE][FAULT_SHORT] = up_to(&random, 100000);
        break;
    case PROFILE_LATE:
        set_all(page, FAULT_LATE, &random, 10000);
        break;
    default:
        set_all(page, FAULT_FAIL, &random, 20000);
        set_all(page, FAULT_WAKE, &random, 20000);
        break;
    }
}
