/* SPDX-License-Identifier: MIT */
/* Routes, and nothing else; chosen_list.cu routes one row and goes on. */
#include "cuda/kernels/route.cuh"

__global__ __launch_bounds__(ROUTE_THREADS) void moe_route_rows(route_args args)
{
    __shared__ route_shared shared;
    route_row(args, blockIdx.x, &shared);
}

void moe_cuda_route(moe_cuda_stream stream, const moe_router_gate *gate, const float *logits,
                    const float *bias, const uint32_t *given, uint32_t n_rows, uint32_t *experts,
                    float *weights, float *probs)
{
    route_args args = {*gate, logits, bias, given, experts, weights, probs};
    if (n_rows > 0)
        MOE_LAUNCH(moe_route_rows, n_rows, ROUTE_THREADS, 0, stream, args);
}
