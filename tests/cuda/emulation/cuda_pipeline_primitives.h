/* SPDX-License-Identifier: MIT */
/* Stands in for CUDA's header of this name: copies to shared memory that a thread waits for.
 *
 * A copy's target holds NaNs from the moment it is asked for until the thread that asked waits for
 * it, so what is read too early, or filled while others still read it, shows. */
#ifndef MOE_EMULATION_CUDA_PIPELINE_PRIMITIVES_H
#define MOE_EMULATION_CUDA_PIPELINE_PRIMITIVES_H

#include "cuda_runtime.h"

namespace emulation
{
void copy_async(void *shared, const void *global, size_t bytes);
void commit_copies(void);
void wait_for_copies(size_t commits_under_way);
} // namespace emulation

static inline void __pipeline_memcpy_async(void *shared, const void *global, size_t bytes)
{
    emulation::copy_async(shared, global, bytes);
}

static inline void __pipeline_commit(void)
{
    emulation::commit_copies();
}

static inline void __pipeline_wait_prior(size_t commits_under_way)
{
    emulation::wait_for_copies(commits_under_way);
}

#endif
