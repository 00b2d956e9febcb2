#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts the instructions of a GPU kernel's loop over the matrix units.

    nvcc ... -cubin -arch=sm_90 -o attend.cubin cuda/kernels/attend_matrix.cu
    nvdisasm -c attend.cubin | bench/sass_loop.py

For each kernel: the cheapest way once around the innermost loop with all matrix instructions, by way
of every block that has one, or that copies a whole page (two asynchronous copies or more). For
attention (cuda/kernels/attend_matrix.cu) this is a page that all rows see, within a stretch. Prints
how many instructions of each kind these are."""

import collections
import heapq
import re
import sys

KINDS = {"HMMA": "matrix", "IMMA": "matrix", "LDSM": "fragments", "LDGSTS": "copies", "FFMA": "float",
         "FADD": "float", "FMUL": "float", "FMNMX": "float", "F2FP": "float", "FSEL": "float"}


def blocks_of(text):
    """[label, [(guard, opcode, target)]] of each block, in order. A branch ends a block."""
    blocks = [["", []]]
    for line in text.split("\n"):
        label = re.match(r"\s*(\.L_x_\d+):", line)
        if label:
            blocks.append([label.group(1), []])
        found = re.match(r"\s*/\*[0-9a-f]+\*/\s+(@!?U?P\w+)?\s*([A-Z0-9_.]+)(.*)", line)
        if found:
            target = re.search(r"`\((\.L_x_\d+)\)", found.group(3))
            blocks[-1][1].append((found.group(1), found.group(2), target and target.group(1)))
            if found.group(2).startswith(("BRA", "EXIT", "RET")):
                blocks.append(["", []])
    return blocks


def edges_of(blocks):
    at = {label: n for n, (label, _) in enumerate(blocks) if label}
    edges = []
    for n, (_, code) in enumerate(blocks):
        to = [n + 1] if n + 1 < len(blocks) else []
        if code and code[-1][1].startswith(("BRA", "EXIT", "RET")):
            guard, opcode, target = code[-1]
            to = to if guard or ".DIV" in opcode else []
            to += [at[target]] if target in at and ".DIV" not in opcode else []
        edges.append(to)
    return edges


def cheapest(blocks, edges, start, end):
    """The blocks of the way from start to end, both included, with the fewest instructions."""
    heap, seen = [(0, start, (start,))], set()
    while heap:
        cost, here, way = heapq.heappop(heap)
        if here == end and len(way) > 1:
            return list(way)
        if here in seen:
            continue
        seen.add(here)
        for to in edges[here]:
            heapq.heappush(heap, (cost + len(blocks[to][1]), to, way + (to,)))
    return None


def count(text):
    blocks = blocks_of(text)
    edges = edges_of(blocks)

    def has(n, kind, least):
        return sum(op.startswith(kind) for _, op, _ in blocks[n][1]) >= least

    matrix = [n for n in range(len(blocks)) if has(n, ("HMMA", "IMMA"), 1)]
    if not matrix or cheapest(blocks, edges, matrix[0], matrix[0]) is None:
        return None
    around = set()
    for n in range(len(blocks)):
        if cheapest(blocks, edges, matrix[0], n) and cheapest(blocks, edges, n, matrix[0]):
            around.add(n)
    stops = [n for n in sorted(around) if has(n, ("HMMA", "IMMA"), 1) or has(n, "LDGSTS", 2)]
    way = []
    for here, to in zip(stops, stops[1:] + stops[:1]):
        way += (cheapest(blocks, edges, here, to) or [])[:-1]
    return collections.Counter(KINDS.get(op.split(".")[0], "other") for n in way
                               for _, op, _ in blocks[n][1])


def main():
    for part in re.split(r"\n\.text\.", sys.stdin.read())[1:]:
        kinds = count(part)
        if kinds:
            listed = ", ".join(f"{kinds[k]} {k}" for k in
                               ("matrix", "fragments", "copies", "float", "other"))
            print(f"{part.split(':', 1)[0]}: {sum(kinds.values())} instructions: {listed}")


if __name__ == "__main__":
    main()
