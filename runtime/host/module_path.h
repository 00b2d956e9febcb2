/* SPDX-License-Identifier: MIT */
/* Finds the library's modules: shared objects that it loads when their functions are needed. */
#ifndef MOE_HOST_MODULE_PATH_H
#define MOE_HOST_MODULE_PATH_H

#include <limits.h>
#include <stdbool.h>

/* Finds the folder of the file that holds this code, with a final slash. */
bool moe_module_folder(char folder[PATH_MAX]);
/* Finds a module in `folder`, in `built` (where the build puts it), or where it is installed.
 * folder, built: with a final slash. */
bool moe_module_find_from(char path[PATH_MAX], const char *folder, const char *built,
                          const char *file);
bool moe_module_find(char path[PATH_MAX], const char *built, const char *file);

#endif
