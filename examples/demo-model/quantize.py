"""Quantisers for the block formats Q3_K, Q4_K, Q6_K and IQ4_XS, from their definitions.

The PyPI `gguf` package reads all block formats but writes only the simple ones, so these are
written here and checked against its readers (`python3 quantize.py` does that). All work on
super-blocks of 256 values with an importance per value: the error to be made small is
Σ importance · (value - restored)², where the importance is the mean square of the activation the
value will meet. A scale is found by trying a range of scales, rounding, and solving for the best
scale of that rounding by least squares.

Given the second moments E[x xᵀ] of a matrix's inputs, columns are then rounded one after another
and what each rounding loses is made up for in the columns still to come (GPTQ, Frantar et al.
2022), under the scales already found.
"""

from __future__ import annotations

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as QuantType
from torch import Tensor

SUPER_BLOCK = 256
MATRICES_AT_ONCE = 16
DAMPING = 0.02
IQ4_VALUES = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10,
                           1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.float32)


# -- codes: a value divided by its scale -> a small integer, and back ------------------------

class IntegerCodes:
    """The integers low..high, stored from 0."""

    def __init__(self, low: int, high: int):
        self.low, self.high = low, high
        self.largest = float(max(-low, high))

    def encode(self, scaled: Tensor) -> Tensor:
        return scaled.round().clamp_(self.low, self.high).sub_(self.low)

    def decode(self, code: Tensor) -> Tensor:
        return code + self.low


class TableCodes:
    """Indices into a sorted table of values."""

    def __init__(self, table: Tensor):
        self.table = table
        self.middle = (table[1:] + table[:-1]) / 2
        self.largest = table.abs().max().item()

    def encode(self, scaled: Tensor) -> Tensor:
        return torch.bucketize(scaled.contiguous(), self.middle)

    def decode(self, code: Tensor) -> Tensor:
        return self.table[code]


def _safe_inverse(x: Tensor) -> Tensor:
    return torch.where(x == 0, torch.zeros_like(x), 1 / x)


def _best_scales(x: Tensor, weight: Tensor, codes) -> Tensor:
    """The best free scale of each sub-block. x, weight: [blocks, subs, size] -> [blocks, subs]."""
    extreme = x.gather(-1, x.abs().argmax(-1, keepdim=True))
    best_gain = torch.full(x.shape[:-1], -1.0)
    best_scale = torch.zeros(x.shape[:-1])
    # Shrinking the range by up to 30 % trades clipping of the extreme for finer steps. Both signs
    # are tried since the codes are not symmetric.
    for factor in np.linspace(0.7, 1.15, 10).tolist():
        for sign in (-1.0, 1.0):
            scale = sign * extreme * factor / codes.largest
            value = codes.decode(codes.encode(x * _safe_inverse(scale)))
            product = (weight * x * value).sum(-1)
            square = (weight * value * value).sum(-1)
            gain = product * product * _safe_inverse(square)
            better = gain > best_gain
            best_gain = torch.where(better, gain, best_gain)
            best_scale = torch.where(better, product * _safe_inverse(square), best_scale)
    return best_scale


def _fit_symmetric(x: Tensor, weight: Tensor, codes, low: int, high: int):
    """Codes, integer sub-block scales in low..high and the float16 super-block scale.

    x, weight: [blocks, subs, size].
    """
    scales = _best_scales(x, weight, codes)
    extreme = scales.gather(-1, scales.abs().argmax(-1, keepdim=True))
    best_error = torch.full((len(x), 1), float("inf"))
    best = None
    for divisor in (low, low * 0.92, low * 0.84, high):
        d = (extreme / divisor).half().float()
        for _ in range(2):
            integer = (scales * _safe_inverse(d)).round().clamp_(low, high)
            integer = _refine_integers(x, weight, codes, d, integer, low, high)
            step = (d * integer)[..., None]
            code = codes.encode(x * _safe_inverse(step))
            unscaled = integer[..., None] * codes.decode(code)
            product = (weight * x * unscaled).sum((-2, -1), keepdim=False)[:, None]
            square = (weight * unscaled * unscaled).sum((-2, -1))[:, None]
            d = (product * _safe_inverse(square)).half().float()
            error = (weight * (x - d[..., None] * unscaled).square()).sum((-2, -1))[:, None]
            better = error < best_error
            best_error = torch.where(better, error, best_error)
            found = (code, integer, d)
            best = found if best is None else tuple(
                torch.where(better.view(-1, *[1] * (new.dim() - 1)), new, old)
                for new, old in zip(found, best))
    return best


def _refine_integers(x, weight, codes, d, integer, low, high):
    """Moves each sub-block's integer scale by one where that lowers the error."""
    best_error = best_integer = None
    for move in (0, -1, 1):
        candidate = (integer + move).clamp(low, high)
        step = (d * candidate)[..., None]
        value = codes.decode(codes.encode(x * _safe_inverse(step)))
        error = (weight * (x - step * value).square()).sum(-1)
        if best_error is None:
            best_error, best_integer = error, candidate
        else:
            better = error < best_error
            best_error = torch.where(better, error, best_error)
            best_integer = torch.where(better, candidate, best_integer)
    return best_integer


# -- packing --------------------------------------------------------------------------------

def _bytes(x: Tensor) -> np.ndarray:
    return x.to(torch.uint8).numpy()


def _half_bytes(d: Tensor) -> np.ndarray:
    return d.half().numpy().reshape(-1, 1).view(np.uint8)


def _pack(code: np.ndarray, bits: int, lanes: int) -> np.ndarray:
    """Packs `8 / bits` lanes of codes a byte: [.., lanes count, lane] -> [.., lane].

    Lane j of a group of `lanes` consecutive values lies in bits j·bits and up.
    """
    per_byte = 8 // bits
    grouped = code.reshape(len(code), -1, per_byte, lanes)
    shifts = (np.arange(per_byte, dtype=np.uint8) * bits).reshape(1, 1, -1, 1)
    return np.bitwise_or.reduce(grouped << shifts, axis=2).reshape(len(code), -1)


def _fit(x: Tensor, weight: Tensor, subs: int, codes, low: int, high: int,
         factor: Tensor | None):
    """`_fit_symmetric` on flat super-blocks, with error feedback where there is a factor."""
    shape = (-1, subs, SUPER_BLOCK // subs)
    code, integer, d = _fit_symmetric(x.view(shape), weight.view(shape), codes, low, high)
    if factor is not None:
        step = (d * integer).repeat_interleave(SUPER_BLOCK // subs, dim=1)
        inverse = _safe_inverse(step)
        code = _feed_errors_forward(
            x, factor, lambda column, j: codes.encode(column * inverse[:, j]),
            lambda code, j: codes.decode(code) * step[:, j])
    return code, integer, d


def _feed_errors_forward(x: Tensor, factor: Tensor, encode, decode) -> Tensor:
    """x: [matrices · rows, 256]; factor: [matrices, 256, 256], see `error_feedback_factor`."""
    matrices = len(factor)
    work = x.view(matrices, -1, SUPER_BLOCK).clone()
    code = torch.empty(x.shape)
    for j in range(SUPER_BLOCK):
        column = work[:, :, j].reshape(-1)
        code[:, j] = encode(column, j)
        lost = (column - decode(code[:, j].long(), j)).view(matrices, -1)
        lost = lost / factor[:, j, j, None]
        if j + 1 < SUPER_BLOCK:
            work[:, :, j + 1:].baddbmm_(lost[:, :, None], factor[:, None, j, j + 1:], alpha=-1)
    return code


def error_feedback_factor(moments: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of the damped moments. moments: [..., 256, 256]."""
    scale = moments.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None].clamp(min=1e-20)
    damped = (moments / scale).double() + DAMPING * torch.eye(SUPER_BLOCK, dtype=torch.float64)
    return torch.linalg.cholesky(torch.linalg.inv(damped), upper=True).float()


def _quantize_q3_k(x: Tensor, weight: Tensor, factor: Tensor | None) -> np.ndarray:
    """256 values: 32 bytes high bits, 64 bytes low bits, 16 six-bit scales, d."""
    code, integer, d = _fit(x, weight, 16, IntegerCodes(-4, 3), -32, 31, factor)
    code = _bytes(code).reshape(-1, SUPER_BLOCK)
    scale = _bytes(integer + 32)
    return np.concatenate([_pack(code >> 2, 1, 32), _pack(code & 3, 2, 32),
                           _pack(scale & 15, 4, 8), _pack(scale >> 4, 2, 4),
                           _half_bytes(d)], axis=1)


def _quantize_q6_k(x: Tensor, weight: Tensor, factor: Tensor | None) -> np.ndarray:
    """256 values: 128 bytes low four bits, 64 bytes high two bits, 16 eight-bit scales, d."""
    code, integer, d = _fit(x, weight, 16, IntegerCodes(-32, 31), -128, 127, factor)
    code = _bytes(code).reshape(-1, SUPER_BLOCK)
    return np.concatenate([_pack(code & 15, 4, 64), _pack(code >> 4, 2, 32),
                           integer.to(torch.int8).numpy().view(np.uint8), _half_bytes(d)], axis=1)


def _quantize_iq4_xs(x: Tensor, weight: Tensor, factor: Tensor | None) -> np.ndarray:
    """256 values: d, 8 six-bit scales, 128 bytes of indices into a table that is not linear."""
    code, integer, d = _fit(x, weight, 8, TableCodes(IQ4_VALUES), -32, 31, factor)
    scale = _bytes(integer + 32)
    return np.concatenate([_half_bytes(d), _pack(scale >> 4, 2, 1), _pack(scale & 15, 4, 1),
                           _pack(_bytes(code).reshape(-1, SUPER_BLOCK), 4, 16)], axis=1)


def _best_scale_and_minimum(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x ≈ scale · (0..15) - minimum, minimum ≥ 0, for each sub-block [blocks, 8, 32]."""
    low, high = x.amin(-1).clamp(max=0), x.amax(-1)
    sum_w, sum_x = weight.sum(-1), (weight * x).sum(-1)
    best_error = torch.full(low.shape, float("inf"))
    best_scale, best_minimum = torch.zeros_like(low), -low
    for top in np.linspace(13.5, 17.5, 17).tolist():
        trial = ((high - low) / top)[..., None]
        q = ((x - low[..., None]) * _safe_inverse(trial)).round().clamp_(0, 15)
        wq = weight * q
        sum_q, sum_qq, sum_qx = wq.sum(-1), (wq * q).sum(-1), (wq * x).sum(-1)
        determinant = sum_w * sum_qq - sum_q * sum_q
        scale = (sum_w * sum_qx - sum_x * sum_q) * _safe_inverse(determinant)
        minimum = (scale * sum_q - sum_x) * _safe_inverse(sum_w)
        negative = minimum < 0
        scale = torch.where(negative, sum_qx * _safe_inverse(sum_qq), scale)
        minimum = minimum.clamp(min=0)
        error = (weight * (x - scale[..., None] * q + minimum[..., None]).square()).sum(-1)
        better = (error < best_error) & (scale > 0)
        best_error = torch.where(better, error, best_error)
        best_scale = torch.where(better, scale, best_scale)
        best_minimum = torch.where(better, minimum, best_minimum)
    return best_scale, best_minimum


def _quantize_q4_k(x: Tensor, weight: Tensor, factor: Tensor | None) -> np.ndarray:
    """256 values: d, dmin, 8 six-bit scales and minima in 12 bytes, 128 bytes of codes."""
    scale, minimum = _best_scale_and_minimum(x.view(-1, 8, 32), weight.view(-1, 8, 32))
    d = (scale.amax(-1, keepdim=True) / 63).half().float()
    d_min = (minimum.amax(-1, keepdim=True) / 63).half().float()
    s = (scale * _safe_inverse(d)).round().clamp_(0, 63)
    m = (minimum * _safe_inverse(d_min)).round().clamp_(0, 63)
    step = (d * s).repeat_interleave(32, dim=1)
    offset = (d_min * m).repeat_interleave(32, dim=1)
    inverse = _safe_inverse(step)
    if factor is None:
        code = ((x + offset) * inverse).round().clamp_(0, 15)
    else:
        code = _feed_errors_forward(
            x, factor,
            lambda column, j: ((column + offset[:, j]) * inverse[:, j]).round().clamp_(0, 15),
            lambda code, j: code * step[:, j] - offset[:, j])
    s, m = _bytes(s), _bytes(m)
    packed = np.concatenate([
        (s[:, :4] | ((s[:, 4:] >> 4) << 6)), (m[:, :4] | ((m[:, 4:] >> 4) << 6)),
        ((s[:, 4:] & 15) | ((m[:, 4:] & 15) << 4))], axis=1)
    return np.concatenate([_half_bytes(d), _half_bytes(d_min), packed,
                           _pack(_bytes(code).reshape(-1, SUPER_BLOCK), 4, 32)], axis=1)


_QUANTISERS = {
    QuantType.Q3_K: _quantize_q3_k,
    QuantType.Q4_K: _quantize_q4_k,
    QuantType.Q6_K: _quantize_q6_k,
    QuantType.IQ4_XS: _quantize_iq4_xs,
}


@torch.no_grad()
def quantize(values: np.ndarray, quant_type: QuantType, moments: Tensor | None = None,
             error_feedback: bool = True) -> np.ndarray:
    """values: [rows, columns] or [matrices, rows, columns]. Returns raw bytes, a row a line.

    moments: E[x xᵀ] of each matrix's input, [columns, columns] or [matrices, columns, columns];
    its diagonal is the columns' importance. Only rows of one super-block can have it.
    """
    if quant_type not in _QUANTISERS:
        return gguf.quantize(values, quant_type)
    columns = values.shape[-1]
    if columns % SUPER_BLOCK:
        raise ValueError(f"rows of {columns} values do not fill blocks of 256")
    x = torch.from_numpy(np.array(values, dtype=np.float32))
    x = x.view(-1, *x.shape[-2:])
    weight, factor = torch.ones(len(x), 1, columns), None
    if moments is not None:
        if columns != SUPER_BLOCK:
            raise ValueError("second moments are for rows of one super-block")
        moments = moments.view(len(x), columns, columns)
        diagonal = moments.diagonal(dim1=-2, dim2=-1)[:, None, :]
        # A floor keeps columns that calibration hardly saw from being ignored altogether.
        weight = diagonal / diagonal.mean(-1, keepdim=True).clamp(min=1e-20) + 1e-3
        factor = error_feedback_factor(moments) if error_feedback else None
    parts = []
    for i in range(0, len(x), MATRICES_AT_ONCE):
        chosen = slice(i, i + MATRICES_AT_ONCE)
        spread = weight[chosen].expand_as(x[chosen])
        parts.append(_QUANTISERS[quant_type](
            x[chosen].reshape(-1, SUPER_BLOCK), spread.reshape(-1, SUPER_BLOCK),
            None if factor is None else factor[chosen]))
    return np.concatenate(parts).reshape(*values.shape[:-1], -1)


def restore(values: np.ndarray, quant_type: QuantType, moments: Tensor | None = None,
            error_feedback: bool = True) -> np.ndarray:
    """Quantises and reads back with the `gguf` package."""
    packed = quantize(values, quant_type, moments, error_feedback)
    return np.asarray(gguf.dequantize(packed, quant_type)).reshape(values.shape)


def main() -> None:
    """Round trip of random weights: the error of each format, relative to the weights' size."""
    values = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    for quant_type in (QuantType.Q3_K, QuantType.IQ4_XS, QuantType.Q4_K, QuantType.Q6_K,
                       QuantType.Q8_0):
        error = restore(values, quant_type) - values
        print(f"{quant_type.name:7} relative rms error {np.sqrt((error**2).mean()):.4f}")


if __name__ == "__main__":
    main()
