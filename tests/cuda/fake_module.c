/* SPDX-License-Identifier: MIT */
#include "fake_module.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cuda/cuda_loader.h"

void find_fake_module(fake_module *fake)
{
    moe_cuda_module_choice choice;
    moe_error err = {""};
    if (moe_cuda_module_load(&choice, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    Dl_info info;
    assert_int_not_equal(dladdr((const void *)choice.module, &info), 0);
    void *handle = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(handle);
    *(void **)&fake->init = dlsym(handle, "fake_machine_init");
    *(void **)&fake->set = dlsym(handle, "fake_machine_set");
    *(void **)&fake->usage = dlsym(handle, "fake_get_usage");
    assert_true(fake->init != NULL && fake->set != NULL && fake->usage != NULL);
    dlclose(handle);
}

void assert_nothing_left(const fake_module *fake)
{
    fake_usage usage;
    fake->usage(&usage);
    assert_int_equal(usage.device_blocks, 0);
    assert_int_equal(usage.host_blocks, 0);
    assert_int_equal(usage.streams, 0);
    assert_int_equal(usage.events, 0);
    assert_int_equal(usage.blas_handles, 0);
    assert_int_equal(usage.graphs, 0);
}
