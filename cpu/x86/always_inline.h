/* SPDX-License-Identifier: MIT */
/* Kernels are written once for all types and shapes. Inlined with constants, each instance becomes
 * a loop of its own. In sanitizer builds the compiler decides about inlining: sanitizers find the
 * same faults in the one function, and inlined instances compile ten times slower. */
#ifndef MOE_X86_ALWAYS_INLINE_H
#define MOE_X86_ALWAYS_INLINE_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MOE_SANITIZED
#endif
#endif
#if defined(MOE_SANITIZED) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MOE_INLINE static inline
#else
#define MOE_INLINE static inline __attribute__((always_inline))
#endif

#endif
