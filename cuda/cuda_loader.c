/* SPDX-License-Identifier: MIT */
#include "cuda/cuda_loader.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moe/version.h>

#include "cuda/library_folder.h" /* of the build: MOE_LIBRARY_FOLDER */
#include "runtime/base/error.h"

/* From the folder of this code. The last is the installation's, from its programs. */
static const char *const places[] = {
    "",
    "cuda/module/",
    "moe-offload/",
    "../" MOE_LIBRARY_FOLDER "/moe-offload/",
};

/* The folder of the file that this function was loaded from, with a slash at its end. */
static bool own_folder(char folder[PATH_MAX])
{
    Dl_info info;
    char path[PATH_MAX];
    if (dladdr((const void *)&moe_cuda_module_load, &info) == 0 || info.dli_fname == NULL) {
        return false;
    }
    /* A program's name is what it was started by, and may not be a path. */
    bool resolved = strchr(info.dli_fname, '/') != NULL && realpath(info.dli_fname, path) != NULL;
    if (!resolved && realpath("/proc/self/exe", path) == NULL) {
        return false;
    }
    char *slash = strrchr(path, '/');
    if (slash == NULL) {
        return false;
    }
    slash[1] = '\0';
    memcpy(folder, path, strlen(path) + 1);
    return true;
}

static bool find_module(char path[PATH_MAX], const char *folder)
{
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        int length = snprintf(path, PATH_MAX, "%s%s%s", folder, places[i], MOE_CUDA_MODULE_FILE);
        if (length > 0 && length < PATH_MAX && access(path, R_OK) == 0) {
            return true;
        }
    }
    return false;
}

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

int moe_cuda_module_load(const moe_cuda_module **out, moe_error *err)
{
    char folder[PATH_MAX];
    char path[PATH_MAX];
    *out = NULL;
    if (!own_folder(folder) || !find_module(path, folder)) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "there is no CUDA module (" MOE_CUDA_MODULE_FILE "): it is built where "
                        "nvcc is found (-Dcuda=enabled) and lies beside the library");
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "the CUDA module cannot be loaded: %s",
                        dlerror());
    }
    moe_cuda_module_fn entry;
    *(void **)&entry = dlsym(handle, MOE_CUDA_MODULE_ENTRY);
    const moe_cuda_module *module = entry != NULL ? entry() : NULL;
    int status = module != NULL
                     ? check_module(module, path, err)
                     : moe_fail(err, MOE_ERR_UNSUPPORTED, "%s has no " MOE_CUDA_MODULE_ENTRY, path);
    (void)dlclose(handle); /* it stays mapped: RTLD_NODELETE */
    *out = status == MOE_OK ? module : NULL;
    return status;
}

bool moe_cuda_gpu_seen(void)
{
    return access("/proc/driver/nvidia/version", F_OK) == 0 || access("/dev/nvidia0", F_OK) == 0;
}

bool moe_cuda_parse_name(const char *text, uint32_t *index)
{
    *index = 0;
    if (strcmp(text, "cuda") == 0) {
        return true;
    }
    static const char prefix[] = "cuda:";
    size_t length = sizeof prefix - 1;
    if (strncmp(text, prefix, length) != 0 || text[length] < '0' || text[length] > '9') {
        return false;
    }
    char *end;
    unsigned long value = strtoul(text + length, &end, 10);
    *index = (uint32_t)value;
    return *end == '\0' && value < 1000;
}
