/* SPDX-License-Identifier: MIT */
#include "cuda/cuda_loader.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moe/version.h>

#include "runtime/base/error.h"
#include "runtime/host/module_path.h"

/* The names that a module's file may have, newer CUDA versions first. Each has the first driver
 * that knows its CUDA version. */
typedef struct module_kind {
    const char *file;
    uint32_t least_driver;
} module_kind;

static const module_kind kinds[] = {
    {MOE_CUDA_MODULE_FILE, 580},
    {MOE_CUDA12_MODULE_FILE, 525},
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

static int check_module(const moe_cuda_module *module, const char *path, moe_error *err)
{
    bool same = module->abi == MOE_CUDA_MODULE_ABI && module->ops_bytes == sizeof(moe_device_ops) &&
                strcmp(module->version, MOE_VERSION_TEXT) == 0;
    if (same) {
        return MOE_OK;
    }
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s belongs to another build (interface %u, not %u); install library and "
                    "module together",
                    path, module->abi, MOE_CUDA_MODULE_ABI);
}

static int open_module(const moe_cuda_module **out, const char *path, moe_error *err)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "the CUDA module cannot be loaded: %s",
                        dlerror());
    }
    moe_cuda_module_fn entry;
    *(void **)&entry = dlsym(handle, MOE_CUDA_MODULE_ENTRY);
    *out = entry != NULL ? entry() : NULL;
    int status = *out != NULL
                     ? check_module(*out, path, err)
                     : moe_fail(err, MOE_ERR_UNSUPPORTED, "%s has no " MOE_CUDA_MODULE_ENTRY, path);
    (void)dlclose(handle); /* the object stays mapped: RTLD_NODELETE */
    return status;
}

/* The kinds of modules that were tried, in order, up to the one that is used. */
typedef struct module_search {
    bool found[N_KINDS];
    const moe_cuda_module *opened[N_KINDS]; /* NULL: not found, or cannot be used */
    moe_error first_error;                  /* of the modules that cannot be used */
    uint32_t driver;
} module_search;

static bool driver_knows(uint32_t driver, const moe_cuda_module *module)
{
    return driver / 1000 >= module->cuda_version / 1000;
}

static int fail_none(const module_search *search, moe_error *err)
{
    const moe_cuda_module *first = search->opened[0];
    const moe_cuda_module *older = search->opened[1];
    const moe_cuda_module *tried = first != NULL ? first : older;
    if (tried == NULL && search->first_error.message[0] != '\0') {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s", search->first_error.message);
    }
    if (tried == NULL) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "there is no CUDA module (" MOE_CUDA_MODULE_FILE "): it is built where "
                        "nvcc is found (-Dcuda=enabled) and lies beside the library");
    }
    uint32_t driver = search->driver;
    char other[sizeof search->first_error.message + 2] = "";
    if (driver >= 12000 && !search->found[1]) {
        snprintf(other, sizeof other,
                 ", or " MOE_CUDA12_MODULE_FILE " beside the library (built with -Dcuda12=PATH)");
    } else if (search->first_error.message[0] != '\0') {
        snprintf(other, sizeof other, "; %s", search->first_error.message);
    }
    uint32_t needed = older != NULL ? older->cuda_version : first->cuda_version;
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "the NVIDIA driver is too old: it knows CUDA %u.%u, and %u.0 is needed; "
                    "install driver %u or newer%s",
                    driver / 1000, driver % 1000 / 10, needed / 1000,
                    kinds[older != NULL || needed < 13000 ? 1 : 0].least_driver, other);
}

static void say_why(moe_cuda_module_choice *out, const module_search *search, size_t taken)
{
    if (taken == 0) {
        return;
    }
    if (search->opened[0] != NULL) {
        uint32_t needed = search->opened[0]->cuda_version;
        snprintf(out->why, sizeof out->why,
                 "the driver knows CUDA %u.%u: %s is used, because %s needs %u.0 (driver %u)",
                 search->driver / 1000, search->driver % 1000 / 10, kinds[taken].file,
                 kinds[0].file, needed / 1000, kinds[0].least_driver);
    } else {
        snprintf(out->why, sizeof out->why, "%s is used: %.160s", kinds[taken].file,
                 search->found[0] ? search->first_error.message : "there is no other");
    }
}

/* Whether there is a module of this kind and it is the one to use. */
static bool try_kind(module_search *search, const char *folder, size_t kind)
{
    char path[PATH_MAX];
    moe_error err = {""};
    const moe_cuda_module *module = NULL;
    search->found[kind] = moe_module_find_from(path, folder, "cuda/module/", kinds[kind].file);
    if (!search->found[kind]) {
        return false;
    }
    if (open_module(&module, path, &err) != MOE_OK) {
        if (search->first_error.message[0] == '\0') {
            search->first_error = err;
        }
        return false;
    }
    search->opened[kind] = module;
    search->driver = module->driver_version();
    /* Without a driver the other kinds will not work either. */
    return search->driver == 0 || driver_knows(search->driver, module);
}

int moe_cuda_module_load_from(moe_cuda_module_choice *out, const char *folder, moe_error *err)
{
    module_search search = {0};
    *out = (moe_cuda_module_choice){0};
    for (size_t kind = 0; kind < N_KINDS; kind++) {
        if (try_kind(&search, folder, kind)) {
            out->module = search.opened[kind];
            out->driver_version = search.driver;
            snprintf(out->file, sizeof out->file, "%s", kinds[kind].file);
            say_why(out, &search, kind);
            return MOE_OK;
        }
    }
    out->driver_version = search.driver;
    return fail_none(&search, err);
}

int moe_cuda_module_load(moe_cuda_module_choice *out, moe_error *err)
{
    char folder[PATH_MAX];
    if (!moe_module_folder(folder)) {
        const module_search nothing = {0};
        *out = (moe_cuda_module_choice){0};
        return fail_none(&nothing, err);
    }
    return moe_cuda_module_load_from(out, folder, err);
}

bool moe_cuda_gpu_seen(void)
{
    return access("/proc/driver/nvidia/version", F_OK) == 0 || access("/dev/nvidia0", F_OK) == 0;
}

static bool is_new(const uint32_t *indices, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (indices[i] == indices[n]) {
            return false;
        }
    }
    return true;
}

bool moe_cuda_parse_name(const char *text, uint32_t indices[MOE_MAX_CARDS], uint32_t *n)
{
    *n = 0;
    if (strcmp(text, "cuda") == 0) {
        indices[(*n)++] = 0;
        return true;
    }
    static const char prefix[] = "cuda:";
    if (strncmp(text, prefix, sizeof prefix - 1) != 0) {
        return false;
    }
    const char *next = text + sizeof prefix - 1;
    for (bool more = true; more; next++) {
        char *end;
        if (*n == MOE_MAX_CARDS || *next < '0' || *next > '9') {
            return false;
        }
        unsigned long value = strtoul(next, &end, 10);
        indices[*n] = (uint32_t)value;
        if (value >= 1000 || !is_new(indices, *n) || (*end != '\0' && *end != ',')) {
            return false;
        }
        ++*n;
        more = *end == ',';
        next = end;
    }
    return true;
}
