"""The expert feed-forward of one layer, forward and backward, as batched matrix products.

The (token, pick) pairs are sorted by expert into a table of rows. Experts are ordered by load and
taken four at a time; a group is padded to its own largest load, so little is wasted even when
loads differ, no token is ever dropped, and a group's rows stay in the cache between products.

    row table:  | group 0: expert a | b | c | d | group 1: expert e | ...
                  each padded to the load of a     padded to that of e

A padding row repeats token 0 with mixing weight 0: whatever is computed from it is multiplied by
zero, in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import Kernels

EXPERTS_PER_GROUP = 4
# Few distinct shapes: the matrix library generates code for each one it has not met.
CAPACITY_STEP = 128


@dataclass
class RowTable:
    token: Tensor                                   # [rows] source token of each row
    slot: Tensor                                    # [tokens, k] row of each (token, pick)
    groups: list[tuple[Tensor, int, int, int]]      # expert ids, first row, end row, capacity


def plan_rows(chosen: Tensor, n_expert: int) -> RowTable:
    """chosen: [tokens, k] expert ids."""
    device, flat = chosen.device, chosen.reshape(-1)
    load = torch.bincount(flat, minlength=n_expert)
    by_load = load.argsort(descending=True)
    sorted_load = load[by_load].tolist()
    first_row = torch.empty(n_expert, dtype=torch.long)
    groups, position = [], 0
    for begin in range(0, n_expert, EXPERTS_PER_GROUP):
        size = min(EXPERTS_PER_GROUP, n_expert - begin)
        capacity = max(1, -(-sorted_load[begin] // CAPACITY_STEP)) * CAPACITY_STEP
        end = position + size * capacity
        first_row[begin:begin + size] = position + capacity * torch.arange(size)
        groups.append((by_load[begin:begin + size], position, end, capacity))
        position = end
    expert_row = torch.empty(n_expert, dtype=torch.long, device=device)
    expert_row[by_load] = first_row.to(device)
    order = flat.argsort(stable=True)
    expert = flat[order]
    rank = torch.arange(len(flat), device=device) - (load.cumsum(0) - load)[expert]
    row = expert_row[expert] + rank
    token = torch.zeros(position, dtype=torch.long, device=device)
    token[row] = order // chosen.shape[1]
    slot = torch.empty_like(flat)
    slot[order] = row
    return RowTable(token, slot.view_as(chosen), groups)


def sum_slots(rows: Tensor, slot: Tensor) -> Tensor:
    """Adds up each token's k rows. The bag kernel is far quicker than a gather and a sum."""
    return F.embedding_bag(slot, rows, mode="sum")


class ExpertFeedForward(torch.autograd.Function):
    """y[t] = Σ over t's picks e of weight · down_e(silu(gate_e x) * up_e x).

    x: [tokens, width]; weight: [tokens, k]; gate, up: [expert, ff, width];
    down: [expert, width, ff]. Products run in x's type, whatever the weights' type.
    """

    @staticmethod
    def forward(ctx, x, weight, gate, up, down, table: RowTable):
        dtype = x.dtype
        gate, up, down = gate.to(dtype), up.to(dtype), down.to(dtype)
        rows = len(table.token)
        row_weight = torch.zeros(rows, device=x.device)
        row_weight[table.slot.view(-1)] = weight.reshape(-1).float()
        gate_out = x.new_empty(rows, gate.shape[1])
        up_out = torch.empty_like(gate_out)
        y = x.new_empty(rows, x.shape[1])
        for ids, begin, end, capacity in table.groups:
            span = slice(begin, end)
            shape = (len(ids), capacity, -1)
            inputs = x.index_select(0, table.token[span]).view(shape)
            torch.bmm(inputs, gate.index_select(0, ids).mT, out=gate_out[span].view(shape))
            torch.bmm(inputs, up.index_select(0, ids).mT, out=up_out[span].view(shape))
            hidden = Kernels.swiglu(gate_out[span], up_out[span], row_weight[span])
            torch.bmm(hidden.view(shape), down.index_select(0, ids).mT, out=y[span].view(shape))
        ctx.save_for_backward(x, row_weight, gate, up, down, gate_out, up_out)
        ctx.table = table
        return sum_slots(y, table.slot)

    @staticmethod
    def backward(ctx, grad):
        x, row_weight, gate, up, down, gate_out, up_out = ctx.saved_tensors
        table = ctx.table
        grad = grad.contiguous()
        grad_gate, grad_up, grad_down = (torch.empty_like(w, dtype=torch.float32)
                                         for w in (gate, up, down))
        grad_rows = x.new_empty(len(table.token), x.shape[1])
        grad_row_weight = torch.empty_like(row_weight)
        for ids, begin, end, capacity in table.groups:
            span = slice(begin, end)
            shape = (len(ids), capacity, -1)
            token = table.token[span]
            inputs = x.index_select(0, token).view(shape)
            grad_y = grad.index_select(0, token).view(shape)
            grad_hidden = torch.bmm(grad_y, down.index_select(0, ids)).view(end - begin, -1)
            hidden, d_gate, d_up, d_weight = Kernels.swiglu_backward(
                gate_out[span], up_out[span], row_weight[span], grad_hidden)
            grad_row_weight[span] = d_weight
            hidden, d_gate, d_up = hidden.view(shape), d_gate.view(shape), d_up.view(shape)
            grad_down.index_copy_(0, ids, torch.bmm(grad_y.mT, hidden).float())
            grad_gate.index_copy_(0, ids, torch.bmm(d_gate.mT, inputs).float())
            grad_up.index_copy_(0, ids, torch.bmm(d_up.mT, inputs).float())
            out = grad_rows[span].view(shape)
            torch.bmm(d_gate, gate.index_select(0, ids), out=out)
            out.baddbmm_(d_up, up.index_select(0, ids))
        grad_x = sum_slots(grad_rows, table.slot)
        grad_weight = grad_row_weight[table.slot]
        return grad_x, grad_weight, grad_gate, grad_up, grad_down, None
