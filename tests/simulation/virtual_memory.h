/* SPDX-License-Identifier: MIT */
/* The memory of a simulated machine, and who may do what to it at a moment: devices read and write
 * it over some time, sessions and computations rely on what is in it. */
#ifndef MOE_TESTS_VIRTUAL_MEMORY_H
#define MOE_TESTS_VIRTUAL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum vm_use {
    VM_READ,  /* a device reads it */
    VM_WRITE, /* a device writes it: nothing is known of its bytes until the end */
    VM_RELIED /* somebody relies on its bytes */
} vm_use;

void vm_reset(void);
/* Aligned to 64 or, if `pages`, to a page. NULL: there is no more. kind: of the caller's choice. */
void *vm_alloc(size_t bytes, int kind, bool pages);
void vm_free(void *memory, size_t bytes);
/* Gives pages to the system, and takes them back. */
void vm_set_away(void *memory, size_t bytes, bool away);
/* The kind of the allocation that holds all the bytes; -1: there is none, or pages are away. */
int vm_kind_of(const void *memory, size_t bytes);
/* Its distance from the first byte of all memory, which is the same in each run. */
size_t vm_offset_of(const void *memory);
/* Allocations that are not freed. */
uint32_t vm_n_live(void);

/* Begins a use, and fails the run if another one is in its way. Its number. */
uint32_t vm_begin(const void *memory, size_t bytes, vm_use use, const char *what);
void vm_end(uint32_t number);
/* Ends all uses of a kind. */
void vm_end_all(vm_use use);

#endif
