/* SPDX-License-Identifier: MIT */
/* Describes the machine as the engine sees it. No engine is needed. Errors and ownership are as in
 * moe.h.
 *
 * Threads (the groups are explained in moe.h):
 *   free: moe_machine_describe */
#ifndef MOE_MACHINE_H
#define MOE_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Describes the machine in a JSON object (UTF-8, terminated): packages, cores, caches, NUMA nodes,
 * memory and its cgroup limit, huge pages, CPU features and kernels, I/O facilities, GPUs (or why
 * there are none), and, if model_path is not NULL, the storage that holds it. *json: release with
 * moe_free(). */
MOE_API int moe_machine_describe(const char *model_path, char **json, moe_error *err);

#ifdef __cplusplus
}
#endif
#endif
