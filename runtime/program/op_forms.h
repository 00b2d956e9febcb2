/* SPDX-License-Identifier: MIT */
/* The forms that operations need of a device (moe_form). */
#ifndef MOE_PROGRAM_OP_FORMS_H
#define MOE_PROGRAM_OP_FORMS_H

#include "runtime/program/program.h"

/* A set of MOE_FORM_BIT(). */
uint64_t moe_op_forms(const moe_program *program, const moe_op *op);

/* MOE_OK if the device carries out every operation. Else MOE_ERR_UNSUPPORTED, which names the first
 * unsupported operation and its layer. */
int moe_program_check_device(const moe_program *program, const moe_device *device, moe_error *err);
/* Whether operations first .. end - 1 have no other forms than these; does not count forms of
 * passes that choose positions. */
bool moe_program_is_within(const moe_program *program, moe_span span, uint64_t forms);
/* Whether a layer uses only x of the layers before it, apart from positions that they chose; and
 * whether it uses those positions. */
bool moe_program_is_by_stream(const moe_program *program);
bool moe_program_carries_choice(const moe_program *program);
/* Whether a layer can be taken up from `mixed` with x alone, and up to `rest` as often as wanted.
 */
bool moe_program_resumes_by_stream(const moe_program *program, uint32_t layer);
/* Whether a layer's experts read the norm of a single stream, which is its operation `mixed`. So
 * their input is quickly computed again from x. */
bool moe_program_norms_experts_input(const moe_program *program, uint32_t layer);
/* Whether a recording can hold whole passes: all operations can be recorded, and a layer can be
 * resumed from `mixed` with x alone, which happens when an expert is missing. */
bool moe_program_is_recordable(const moe_program *program, const moe_device *device);

#endif
