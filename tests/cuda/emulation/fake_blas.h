/* SPDX-License-Identifier: MIT */
/* What the stand-in for cuBLAS (fake_blas.cpp) needs of the one for the runtime. */
#ifndef MOE_EMULATION_FAKE_BLAS_H
#define MOE_EMULATION_FAKE_BLAS_H

#include <functional>

#include "cuda_runtime_api.h"

namespace emulation
{
/* What a call returns, which the machine may want to fail. */
cudaError_t enter_call(const char *call);
/* Puts a product on the stream; code as of a kernel's launch. */
cudaError_t queue_product(cudaStream_t stream, std::function<void()> product);
void count_blas_handles(int change);
} // namespace emulation

#endif
