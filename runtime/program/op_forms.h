/* SPDX-License-Identifier: MIT */
/* The forms that operations need of a device (moe_form). */
#ifndef MOE_PROGRAM_OP_FORMS_H
#define MOE_PROGRAM_OP_FORMS_H

#include "runtime/program/program.h"

/* The forms that an operation needs: a set of MOE_FORM_BIT(). */
uint64_t moe_op_forms(const moe_program *program, const moe_op *op);

/* MOE_OK if the device carries out every operation. Otherwise MOE_ERR_UNSUPPORTED; the message
 * names the first operation that the device lacks, and its layer. */
int moe_program_check_device(const moe_program *program, const moe_device *device, moe_error *err);
/* Whether operations first .. end - 1 need no forms but these. Forms that only passes which choose
 * positions need are not counted. */
bool moe_program_is_within(const moe_program *program, moe_span span, uint64_t forms);
/* by_stream: whether each layer gets from the layers before it only x and, perhaps, the positions
 * that they chose. The second function says whether some layer uses such positions. */
bool moe_program_is_by_stream(const moe_program *program);
bool moe_program_carries_choice(const moe_program *program);
/* Whether a layer can be resumed at `mixed` from x alone, and the operations up to `rest` can be
 * run as often as wanted. */
bool moe_program_resumes_by_stream(const moe_program *program, uint32_t layer);
/* Whether a layer's experts read the norm of a single stream, and this norm is the operation at
 * `mixed`. Then their input is quickly computed again from x. */
bool moe_program_norms_experts_input(const moe_program *program, uint32_t layer);
/* Whether a recording can hold whole passes: all operations can be recorded, and each layer can be
 * resumed at `mixed` from x alone. The host resumes a layer there when an expert is missing. */
bool moe_program_is_recordable(const moe_program *program, const moe_device *device);

#endif
