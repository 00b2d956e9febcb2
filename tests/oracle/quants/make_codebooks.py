# SPDX-License-Identifier: MIT
"""Writes cpu/kernels/codebook_points.h: the points of the codebooks that IQ types index, from the
numbers that the `gguf` package has of them.

    python3 make_codebooks.py ../../../cpu/kernels/codebook_points.h

A point of eight coordinates has two bits for each, a point of four three bits: which of the type's
few magnitudes it is. Even coordinates are in the low byte, odd ones in the high byte, so that one
shift of 16-bit words brings a pair of neighbours to the lowest bits of both bytes.
"""
import sys
from pathlib import Path

import numpy as np
from gguf import quants

BOOKS = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ3_XXS", "IQ3_S"]
A_LINE = 16

HEAD = """/* SPDX-License-Identifier: MIT */
/* The points of the codebooks of GGUF's IQ types, in the order of the numbers that files have for
 * them; written by tests/oracle/quants/make_codebooks.py. A point of eight coordinates (IQ1, IQ2)
 * has two bits for each, a point of four (IQ3) three bits: which of the type's few magnitudes the
 * coordinate is, or, for IQ1, one more than its value. Even coordinates are in the low byte, from
 * its lowest bit on, odd ones in the high byte: one shift of 16-bit words brings two neighbours to
 * the lowest bits of both bytes.
 *
 * ROW(p0, .. p15) is called for each 16 points, with four hexadecimal digits each. */
#ifndef MOE_CPU_CODEBOOK_POINTS_H
#define MOE_CPU_CODEBOOK_POINTS_H

/* clang-format off */
"""


def packed_points(name):
    book = getattr(quants, name)
    book.init_grid()
    values = book.grid.reshape(book.grid_shape).astype(np.int32)
    levels = sorted(book.grid_map)
    n_bits = 2 if values.shape[1] == 8 else 3
    points = np.zeros(len(values), np.uint32)
    for i in range(values.shape[1]):
        level = np.searchsorted(levels, values[:, i])
        assert (np.array(levels)[level] == values[:, i]).all()
        points |= (level << (i // 2 * n_bits + i % 2 * 8)).astype(np.uint32)
    return points


def main():
    lines = [HEAD.rstrip("\n")]
    for name in BOOKS:
        points = packed_points(name)
        rows = [points[i:i + A_LINE] for i in range(0, len(points), A_LINE)]
        lines.append(f"#define MOE_{name}_POINTS(ROW) \\")
        lines.append(" \\\n".join("ROW(" + ",".join(f"{p:04x}" for p in row) + ")" for row in rows))
    lines += ["/* clang-format on */", "", "#endif", ""]
    Path(sys.argv[1]).write_text("\n".join(lines))


if __name__ == "__main__":
    main()
