#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reckons what the counted instructions and bytes of the GPU's kernels allow, as a table.

    bench/gpu_reckoning.py

The model is Qwen3-30B-A3B in Q4_K_M with keys and values in F16, all experts on the GPU. Nothing here
is measured: each figure is a least time, by memory, by instructions or by shared memory. The counts are
those of cuda/kernels/README.md (CUDA 13.0, sm_90; on other architectures they differ by a few percent).
The first day with a GPU corrects the table (bench/results/gpu-reckoning.md)."""

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, EXPERTS, USED, FF, TOKENS = 48, 2048, 32, 4, 128, 128, 8, 768, 151936
Q4_K, Q6_K = 144 / 256, 210 / 256  # bytes a weight

# name: bytes a second, multiprocessors, clocks a second, clocks of a matrix instruction
CARDS = {"A100 80 GB": (2.039e12, 108, 1.41e9, 8), "H100 SXM": (3.35e12, 132, 1.7e9, 4),
         "H200": (4.8e12, 132, 1.7e9, 4), "RTX 4090": (1.008e12, 128, 2.52e9, 32)}

# Instructions of all warps for 64 weight rows x N activation rows x 256 elements of Q4_K.
PRODUCT = {16: 11680 / 4, 32: 8736 / 2, 64: 6480}
# Attention by matrix units, heads of 128: instructions of a warp for 16 queries and a page of 64 positions, and
# the loads of fragments among them, of four clocks of shared memory each.
PAGE, PAGE_MATRIX, PAGE_LOADS = 919, 132, 64

ATTENTION = WIDTH * HEAD * (HEADS + 2 * KV_HEADS) + HEADS * HEAD * WIDTH  # weights of a layer
EXPERT = 3 * WIDTH * FF


def decoding_bytes(context):
    """Bytes that a token reads. Half of the layers have values' and down matrices in Q6_K."""
    down, values = WIDTH * FF * USED, WIDTH * HEAD * KV_HEADS
    layer = (ATTENTION + EXPERT * USED) * Q4_K + (down + values) * (Q6_K - Q4_K) / 2
    return LAYERS * layer + TOKENS * WIDTH * Q6_K + LAYERS * 2 * KV_HEADS * HEAD * 2 * context


def product_instructions(rows):
    """Of a prompt's chunk of so many rows, for each row."""
    an_expert = rows * USED / EXPERTS
    tile = 64 if an_expert > 32 else 32 if an_expert > 16 else 16
    each = {n: PRODUCT[n] / (64 * n * 256) for n in PRODUCT}
    return LAYERS * (ATTENTION * each[64] + EXPERT * USED * each[tile])


def attention_clocks(card, context):
    """Of a multiprocessor, for a token of a prompt that sees half of the context; and what bounds it."""
    clocks = CARDS[card][3]
    of_eight = {"matrix units": PAGE_MATRIX * 8 / 4 * clocks, "instructions": PAGE * 8 / 4,
                "shared memory": PAGE_LOADS * 8 * 4 + 64 * HEAD * 2 * 2 / 128}
    bound = max(of_eight, key=of_eight.get)
    return LAYERS * HEADS * (context / 2) * of_eight[bound] / (128 * 64), bound


def main():
    print("| GPU | decoding, 512 | 8k | 32k | prompt, 512 | 8k | 32k | attention of a prompt is bound by | share of "
          "its time at 32k |\n|---|---|---|---|---|---|---|---|---|")
    for card, (bandwidth, processors, clock, _) in CARDS.items():
        cells = [f"{bandwidth / decoding_bytes(n):,.0f}" for n in (512, 8192, 32768)]
        for n in (512, 8192, 32768):
            clocks, bound = attention_clocks(card, n)
            attends = clocks / processors / clock
            multiplies = product_instructions(512) / (4 * processors * clock)
            cells.append(f"{1 / (attends + multiplies):,.0f}")
        print(f"| {card} | {' | '.join(cells)} | {bound} | {100 * attends / (attends + multiplies):.0f} % |")


if __name__ == "__main__":
    main()
