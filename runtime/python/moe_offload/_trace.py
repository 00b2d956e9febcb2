# SPDX-License-Identifier: MIT
"""Routing traces: which experts each token chose in each layer."""
from __future__ import annotations

import json
import os
import tempfile
from ctypes import POINTER, byref, c_uint32, c_void_p, sizeof
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Union

import numpy as np

from . import _values as values
from ._library import as_dict, layout, lib
from ._policy import Policy, Use, give

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import Simulation, Text, TraceGenerator, TraceOptions


class Rows(NamedTuple):
    """A trace as arrays."""
    tokens: Any  # int32 [n_rows]; -1 where the trace does not say
    experts: Any  # int32 [n_rows][n_layer][n_expert_used]; -1: fewer were chosen
    gates: Any  # float32, as experts: the weights they are mixed with; None: not recorded
    passes: Any  # int64 [n_rows]: rows of one pass share its number
    sequences: Any  # int32 [n_rows]: of a batch


def policies() -> List[str]:
    """The built-in cache policies."""
    names: List[str] = []
    while (name := lib.policy_name(len(names))) is not None:
        names.append(name.decode())
    return names


class Analysis:
    """What moe_analyze() measures; arrays are copies."""

    def __init__(self, pointer: Any) -> None:
        a = pointer.contents
        n_layer, n_expert = a.info.n_layer, a.info.n_expert
        self.mean: Dict[str, Any] = as_dict(a.mean)
        self.layers: List[Dict[str, Any]] = [as_dict(a.layers[i]) for i in range(n_layer)]
        self.coverage = np.ctypeslib.as_array(a.coverage, (n_expert,)).copy()
        self.counts = np.ctypeslib.as_array(a.counts, (n_layer, n_expert)).copy()
        self.pairs = np.ctypeslib.as_array(a.pairs, (n_expert, n_expert)).copy()
        self.pair_layer: int = a.pair_layer


class Trace:
    """A routing trace. Trace(path) reads what `moe-offload run --trace` or Trace.save() wrote."""

    def __init__(self, path: Optional[Union[str, "os.PathLike[str]"]] = None, *,
                 _handle: Optional[c_void_p] = None, **options: Unpack[TraceOptions]) -> None:
        self._handle = _handle or c_void_p()
        if _handle is None:
            given = layout.moe_trace_open_options()
            lib.trace_open_options_init_sized(byref(given), sizeof(given))
            values.fill(given, {**options, "path": path}, "Trace")
            lib.trace_open(byref(self._handle), byref(given))

    @classmethod
    def generate(cls, preset: str = "olmoe", **settings: Unpack[TraceGenerator]) -> "Trace":
        """A synthetic trace: the members of moe_trace_generator, such as decode_passes, seed."""
        generator = layout.moe_trace_generator()
        lib.trace_generator_init_sized(byref(generator), sizeof(generator),
                                      values.path(preset, "Trace.generate, preset"))
        values.fill(generator, settings, "Trace.generate")
        handle = c_void_p()
        lib.trace_generate(byref(handle), byref(generator))
        return cls(_handle=handle)

    def __enter__(self) -> "Trace":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def close(self) -> None:
        lib.trace_close(byref(self._handle))

    def _open(self) -> c_void_p:
        if not self._handle:
            raise ValueError("the trace is closed")
        return self._handle

    @property
    def info(self) -> Dict[str, Any]:
        """The members of moe_trace_info: n_layer, n_expert, n_rows, ..."""
        result = layout.moe_trace_info(struct_size=sizeof(layout.moe_trace_info))
        lib.trace_get_info(self._open(), byref(result))
        return as_dict(result)

    def save(self, path: Union[str, "os.PathLike[str]"], *, expert_bytes: int = 0) -> None:
        """JSON lines, or with a name that ends in .oracleGeneral libCacheSim's format."""
        lib.trace_save(self._open(), values.path(path, "save, path"), layout.MOE_TRACE_AUTO,
                       values.integer(expert_bytes, c_uint32, "save, expert_bytes"))

    def rows(self) -> Rows:
        """The trace as arrays."""
        info = self.info
        places: List[Any] = []
        shape = (info["n_rows"], info["n_layer"], info["n_expert_used"])
        experts = np.full(shape, -1, np.int32)
        gates = np.zeros(shape, np.float32) if info["has_gates"] else None
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
            lib.trace_save(self._open(), os.fsencode(file.name), layout.MOE_TRACE_JSONL, 0)
            with open(file.name, encoding="utf-8") as lines:
                for line in lines:
                    row = json.loads(line)
                    if "layers" not in row:
                        continue
                    n = len(places)
                    for i, chosen in enumerate(row["layers"]):
                        experts[n, i, :len(chosen)] = chosen
                    if gates is not None:
                        for i, given in enumerate(row["gates"]):
                            gates[n, i, :len(given)] = given
                    places.append((row.get("tok", -1), row.get("pass", n), row.get("seq", 0)))
        columns = np.array(places, np.int64).reshape(-1, 3).T
        return Rows(columns[0].astype(np.int32), experts, gates, columns[1],
                    columns[2].astype(np.int32))

    def simulate(self, *, policy: Union[Text, Policy, Callable[[Use], Any]] = "lfru",
                 **settings: Unpack[Simulation]) -> Dict[str, Any]:
        """One cache over the trace: the members of moe_simulation (cache_share=0.25, n_slots, ...)
        give those of moe_simulation_result (hits, hit_rate, stall_s, ...). policy: a name, the path
        of a plug-in in C (the fast way), a Policy, or a function that scores a Use: the expert with
        the smallest score is evicted (the slow way)."""
        simulation = layout.moe_simulation()
        result = layout.moe_simulation_result(struct_size=sizeof(layout.moe_simulation_result))
        lib.simulation_init_sized(byref(simulation), sizeof(simulation))
        values.fill(simulation, settings, "Trace.simulate")
        table = give(simulation, policy, "Trace.simulate")
        try:
            lib.simulate(self._open(), byref(simulation), byref(result))
        finally:
            if table is not None:
                table.raise_()
        return as_dict(result)

    def analyze(self, pair_layer: int = 0) -> Analysis:
        """Overlap, skew, coverage and co-activation; pairs are of that layer."""
        pointer = POINTER(layout.moe_analysis)()
        lib.analyze(byref(pointer), self._open(),
                    values.integer(pair_layer, c_uint32, "analyze, pair_layer"))
        try:
            return Analysis(pointer)
        finally:
            lib.analysis_free(byref(pointer))
