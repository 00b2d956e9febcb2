/* SPDX-License-Identifier: MIT */
#include "tests/simulation/virtual_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/simulation/fibers.h"

#define ROOM       ((size_t)32 << 20)
#define PAGE       ((size_t)4096)
#define MAX_BLOCKS 256u
#define MAX_USES   1024u
#define FRESH      0xa5
#define AWAY       0x5a

typedef struct block {
    uint8_t *begin;
    size_t bytes;
    int kind;
    bool live;
} block;

typedef struct use {
    const uint8_t *begin, *end;
    vm_use use;
    const char *what;
    bool live;
} use;

static uint8_t *room;
static size_t taken;
static block blocks[MAX_BLOCKS];
static uint32_t n_blocks;
static use uses[MAX_USES];
static uint32_t n_uses; /* all live ones are before it */
static uint8_t is_away[ROOM / PAGE];

void vm_reset(void)
{
    if (room == NULL) {
        room = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED) {
            abort();
        }
    }
    memset(is_away, 0, taken / PAGE + 1);
    taken = 0;
    n_blocks = 0;
    n_uses = 0;
}

void *vm_alloc(size_t bytes, int kind, bool pages)
{
    size_t unit = pages ? PAGE : 64;
    size_t at = (taken + unit - 1) / unit * unit;
    if (n_blocks == MAX_BLOCKS || bytes > ROOM - at) {
        return NULL;
    }
    taken = at + bytes;
    blocks[n_blocks++] = (block){room + at, bytes, kind, true};
    memset(room + at, FRESH, bytes);
    return room + at;
}

static bool overlap(const uint8_t *a, const uint8_t *a_end, const uint8_t *b, const uint8_t *b_end)
{
    return a < b_end && b < a_end;
}

/* Somebody still uses memory that goes away. */
static void check_unused(const uint8_t *begin, size_t bytes, const char *why)
{
    for (uint32_t i = 0; i < n_uses; i++) {
        if (uses[i].live && overlap(begin, begin + bytes, uses[i].begin, uses[i].end)) {
            sim_fail("memory is %s while it is used: %s", why, uses[i].what);
        }
    }
}

void vm_free(void *memory, size_t bytes)
{
    for (uint32_t i = 0; i < n_blocks; i++) {
        if (blocks[i].begin == memory && blocks[i].live) {
            if (blocks[i].bytes != bytes) {
                sim_fail("%zu bytes are freed of a block of %zu", bytes, blocks[i].bytes);
            }
            check_unused(memory, bytes, "freed");
            blocks[i].live = false;
            memset(memory, AWAY, bytes);
            return;
        }
    }
    sim_fail("memory is freed that is not allocated");
}

void vm_set_away(void *memory, size_t bytes, bool away)
{
    size_t first = (size_t)((uint8_t *)memory - room);
    if (first % PAGE != 0 || bytes % PAGE != 0 || first + bytes > taken) {
        sim_fail("no whole pages go to the system or come from it");
    }
    check_unused(memory, bytes, away ? "given up" : "taken back");
    for (size_t page = first / PAGE; page < (first + bytes) / PAGE; page++) {
        if (is_away[page] == (uint8_t)away) {
            sim_fail("a page is %s twice", away ? "given up" : "taken back");
        }
        is_away[page] = (uint8_t)away;
    }
    memset(memory, away ? AWAY : 0, bytes);
}

int vm_kind_of(const void *memory, size_t bytes)
{
    const uint8_t *at = memory;
    for (uint32_t i = 0; i < n_blocks; i++) {
        if (blocks[i].live && at >= blocks[i].begin &&
            at + bytes <= blocks[i].begin + blocks[i].bytes) {
            size_t offset = (size_t)(at - room);
            for (size_t page = offset / PAGE; page * PAGE < offset + bytes; page++) {
                if (is_away[page] != 0) {
                    return -1;
                }
            }
            return blocks[i].kind;
        }
    }
    return -1;
}

uint32_t vm_n_live(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_blocks; i++) {
        n += blocks[i].live;
    }
    return n;
}

size_t vm_offset_of(const void *memory)
{
    return (size_t)((const uint8_t *)memory - room);
}

uint32_t vm_begin(const void *memory, size_t bytes, vm_use kind, const char *what)
{
    const uint8_t *begin = memory;
    uint32_t place = n_uses;
    for (uint32_t i = 0; i < n_uses; i++) {
        if (!uses[i].live) {
            place = i;
        } else if ((kind == VM_WRITE || uses[i].use == VM_WRITE) &&
                   overlap(begin, begin + bytes, uses[i].begin, uses[i].end)) {
            sim_fail("%s, while: %s", what, uses[i].what);
        }
    }
    if (place == MAX_USES) {
        sim_fail("too many uses of memory at once");
    }
    n_uses += place == n_uses;
    uses[place] = (use){begin, begin + bytes, kind, what, true};
    return place;
}

void vm_end(uint32_t number)
{
    uses[number].live = false;
    while (n_uses > 0 && !uses[n_uses - 1].live) {
        n_uses--;
    }
}

void vm_end_all(vm_use kind)
{
    for (uint32_t i = n_uses; i > 0; i--) {
        if (i <= n_uses && uses[i - 1].live && uses[i - 1].use == kind) {
            vm_end(i - 1);
        }
    }
}
