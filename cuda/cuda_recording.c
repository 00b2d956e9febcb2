/* SPDX-License-Identifier: MIT */
/* Recordings as CUDA graphs: launches are captured once, and replayed with other inputs.
 *
 * Operations read the step's inputs in their steady block (cuda_step.c), as they do outside of
 * recordings. Parcels (cuda_staging.c) get places behind the inputs and are sent once, when the
 * recording is made, so graphs contain only kernels. The shape of some launches also depends on how
 * many pages the rows see. A recording launches these for as many pages as the block has room for.
 * While a recording is under way no call may wait or allocate. */
#include <stdlib.h>

#include "cuda/cuda_forms.h"
#include "cuda/cuda_internal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

static const char what[] = "recording operations";

static void drop(moe_cuda_steady *steady, uint32_t number)
{
    if (number < steady->n_execs && steady->execs[number] != NULL) {
        (void)cudaGraphExecDestroy(steady->execs[number]);
        steady->execs[number] = NULL;
    }
}

static void drop_all(moe_cuda_steady *steady)
{
    for (uint32_t i = 0; i < steady->n_execs; i++) {
        drop(steady, i);
    }
}

void moe_cuda_recording_close(moe_cuda_steady *steady)
{
    drop_all(steady);
    free(steady->execs);
    steady->execs = NULL;
    steady->n_execs = 0;
}

int moe_cuda_recording_drop(moe_cuda_device *cuda, moe_cuda_steady *steady, moe_error *err)
{
    int status = steady->n_execs > 0 ? moe_cuda_wait(cuda, what, err) : MOE_OK;
    drop_all(steady);
    return status;
}

static bool takes_step(const moe_device *device)
{
    const moe_cuda_device *cuda = (const moe_cuda_device *)device;
    return cuda->step.inputs != NULL && cuda->step.at != NULL;
}

static int play(moe_device *device, uint32_t number, bool *played, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    const moe_cuda_steady *steady = cuda->step.inputs != NULL ? cuda->step.at : NULL;
    *played = false;
    int status = moe_cuda_begin(cuda, err);
    if (status != MOE_OK || steady == NULL || number >= steady->n_execs ||
        steady->execs[number] == NULL) {
        return status;
    }
    status = moe_cuda_check(cuda, cudaGraphLaunch(steady->execs[number], cuda->stream),
                            "cudaGraphLaunch", "playing a recording", err);
    *played = status == MOE_OK;
    return status;
}

/* Refuses a recording without marking the device as failed: the device only does not offer
 * recording, or lacks the memory for it. */
static int refuse(cudaError_t code, const char *call, moe_error *err)
{
    (void)moe_cuda_translate(code, call, what, err);
    return MOE_ERR_UNSUPPORTED;
}

static int need_number(moe_cuda_steady *steady, uint32_t number, moe_error *err)
{
    if (number < steady->n_execs) {
        return MOE_OK;
    }
    cudaGraphExec_t *execs = moe_realloc_array(steady->execs, (size_t)number + 1, sizeof *execs);
    if (execs == NULL) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "no memory for recording %u", number);
    }
    for (uint32_t i = steady->n_execs; i <= number; i++) {
        execs[i] = NULL;
    }
    steady->execs = execs;
    steady->n_execs = number + 1;
    return MOE_OK;
}

static int record(moe_device *device, uint32_t number, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_cuda_steady *steady = cuda->step.at;
    MOE_TRY(moe_cuda_begin(cuda, err));
    if (cuda->step.inputs == NULL || steady == NULL) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "what is recorded is of steps of 1 to %u rows",
                        MOE_CUDA_STEADY_ROWS);
    }
    MOE_TRY(need_number(steady, number, err));
    drop(steady, number);
    /* The relaxed mode lets other threads keep using the link; their calls are not recorded. It
     * also allows calls that this thread needs, such as loading a kernel's code at its first
     * launch. */
    cudaError_t code = cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeRelaxed);
    if (code != cudaSuccess) {
        return moe_cuda_refuses_recording(code)
                   ? refuse(code, "cudaStreamBeginCapture", err)
                   : moe_cuda_give_up(cuda, code, "cudaStreamBeginCapture", what, err);
    }
    cuda->recording = (moe_cuda_recording){.under_way = true,
                                           .number = number,
                                           .begin = steady->recordings_used,
                                           .scratch = steady->scratch};
    return MOE_OK;
}

/* Sends the recording's own arrays before it is replayed. */
static int send_arrays(moe_cuda_device *cuda, moe_error *err)
{
    const moe_cuda_steady *steady = cuda->step.at;
    size_t at = steady->recordings_at + cuda->recording.begin;
    size_t bytes = steady->recordings_used - cuda->recording.begin;
    return bytes == 0
               ? MOE_OK
               : moe_cuda_transfer_queue(cuda, steady->block.device + at, steady->block.host + at,
                                         bytes, cudaMemcpyHostToDevice, what, err);
}

static int record_end(moe_device *device, int status, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_cuda_steady *steady = cuda->step.at;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t *exec = &steady->execs[cuda->recording.number];
    if (status == MOE_OK) {
        status = moe_cuda_launched(cuda, what, err);
    }
    moe_cuda_forget_rows(cuda);
    cuda->recording.under_way = false;
    const char *call = "cudaStreamEndCapture";
    cudaError_t code = cudaStreamEndCapture(cuda->stream, &graph);
    if (code == cudaSuccess && status == MOE_OK) {
        call = "cudaGraphInstantiate";
        code = cudaGraphInstantiate(exec, graph, 0);
    }
    if (code != cudaSuccess) {
        (void)cudaGetLastError();
        *exec = NULL;
    }
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    if (status != MOE_OK || code != cudaSuccess) {
        steady->recordings_used = cuda->recording.begin;
        steady->scratch = cuda->recording.scratch;
    }
    if (status != MOE_OK) {
        return status; /* the error has probably ended the capture */
    }
    if (code != cudaSuccess) {
        return moe_cuda_refuses_recording(code) ? refuse(code, call, err)
                                                : moe_cuda_give_up(cuda, code, call, what, err);
    }
    bool played;
    status = send_arrays(cuda, err);
    return status != MOE_OK ? status : play(device, cuda->recording.number, &played, err);
}

const moe_recording_ops moe_cuda_recording_ops = {
    .max_rows = MOE_CUDA_STEADY_ROWS,
    .forms = MOE_CUDA_RECORDED_FORMS,
    .takes_step = takes_step,
    .resident_experts = moe_cuda_op_resident_experts,
    .play = play,
    .record = record,
    .record_end = record_end,
};
