/* SPDX-License-Identifier: MIT */
/* The fake module is made of libraries; a module has a source too. */
extern const char moe_fake_module[];
const char moe_fake_module[] = "emulated";
