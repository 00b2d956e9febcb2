/* SPDX-License-Identifier: MIT */
/* Loads the module with the wire over UCX, so that neither building nor starting the library needs
 * UCX. */
#include <dlfcn.h>
#include <limits.h>
#include <string.h>

#include <moe/version.h>

#include "runtime/base/error.h"
#include "runtime/host/module_path.h"
#include "runtime/wire/wire.h"

static int open_module(const moe_wire_module **out, const char *path, moe_error *err)
{
    /* Threads and handlers of UCX may outlive the wire, so the module is never unloaded. */
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "the module for workers cannot be loaded: %s",
                        dlerror());
    }
    moe_wire_module_fn entry;
    *(void **)&entry = dlsym(handle, MOE_WIRE_MODULE_ENTRY);
    *out = entry != NULL ? entry() : NULL;
    bool same = *out != NULL && (*out)->abi == MOE_WIRE_MODULE_ABI &&
                strcmp((*out)->version, MOE_VERSION_TEXT) == 0;
    (void)dlclose(handle);
    return same
               ? MOE_OK
               : moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "%s belongs to another build; install library and module together", path);
}

int moe_wire_open(moe_wire **out, const moe_wire_options *options, moe_error *err)
{
    char path[PATH_MAX];
    const moe_wire_module *module = NULL;
    if (!moe_module_find(path, "runtime/wire/module/", MOE_WIRE_MODULE_FILE)) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "there is no module for workers (" MOE_WIRE_MODULE_FILE
                        "): it is built where UCX is found (libucx-dev; -Dworkers=enabled) and "
                        "lies beside the library");
    }
    MOE_TRY(open_module(&module, path, err));
    return module->open(out, options, err);
}
