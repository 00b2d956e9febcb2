# SPDX-License-Identifier: MIT
"""Routing traces of other programs, as this program's trace files.

    python3 -m moe_offload.traces SOURCE OUT.jsonl [--experts N] [--layers N --used K] [--first ROW] [--rows N]

SOURCE: a .npy file, [tokens][layers][used] numbers of experts; a folder of Parquet files as in
CMU-FLAME/FLAME-MoE-Traces (layer_NN.parquet, a row a token; needs pyarrow); or a .json file that
holds [tokens][layers][used] somewhere: an answer of vLLM (--enable-return-routed-experts), of SGLang
(return_routed_experts; --layers and --used, since its bytes have no shape), or another list.

Every token is a pass of its own, as in decoding. FLAME-MoE's layers without experts stay out: layer 0
of the trace is the first with a file."""
import argparse
import base64
import importlib
import json
import os
import re
import sys
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np

Path = Union[str, "os.PathLike[str]"]


class Routing(NamedTuple):
    """Which experts each token chose."""
    experts: Any  # integers [n_rows][n_layer][n_used]; below 0: none
    gates: Any = None  # the router's probabilities of these, or None


def check(routing: Routing, what: str) -> Routing:
    """Raises ValueError unless the arrays are a routing."""
    experts = np.asarray(routing.experts)
    if experts.ndim != 3 or 0 in experts.shape or experts.dtype.kind not in "iu":
        raise ValueError(f"{what}: experts must be integers [tokens][layers][used], not {experts.dtype} "
                         f"{list(experts.shape)}")
    if experts.max() > 4095:
        raise ValueError(f"{what}: expert {experts.max()}; at most 4096 experts a layer are possible")
    ordered = np.sort(experts, axis=2)
    if ((ordered[:, :, 1:] == ordered[:, :, :-1]) & (ordered[:, :, 1:] >= 0)).any():
        raise ValueError(f"{what}: a token chooses an expert of a layer twice")
    gates = routing.gates
    if gates is not None and np.shape(gates) != experts.shape:
        raise ValueError(f"{what}: gates {list(np.shape(gates))} beside experts {list(experts.shape)}")
    return Routing(experts, None if gates is None else np.asarray(gates, np.float32))


def read_npy(path: Path) -> Routing:
    """[tokens][layers][used], without pickled objects."""
    return check(Routing(np.load(path, allow_pickle=False)), os.fspath(path))


def read_flame(folder: Path, first: int = 0, n_rows: Optional[int] = None) -> Routing:
    """A folder of layer_NN.parquet, with a row a token and the columns indices and scores. Reads
    only the row groups that rows first to first + n_rows are in."""
    parquet = importlib.import_module("pyarrow.parquet")
    names = sorted(name for name in os.listdir(folder) if re.fullmatch(r"layer_\d+\.parquet", name))
    if not names:
        raise ValueError(f"{os.fspath(folder)}: no files layer_NN.parquet")
    layers = []
    for name in names:
        with parquet.ParquetFile(os.path.join(folder, name)) as file:
            layers.append(_read_layer(file, first, n_rows, name))
    if len({layer[0].shape for layer in layers}) != 1:
        raise ValueError(f"{os.fspath(folder)}: layers of {[layer[0].shape for layer in layers]} rows and experts")
    return check(Routing(*(np.stack(part, axis=1) for part in zip(*layers))), os.fspath(folder))


def _read_layer(file: Any, first: int, n_rows: Optional[int], name: str) -> Tuple[Any, Any]:
    """The rows of a layer: experts and scores, [rows][used] each."""
    end = file.metadata.num_rows if n_rows is None else first + n_rows
    parts: List[Tuple[Any, Any]] = []
    begin = 0
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if begin < end and begin + size > first:
            table = file.read_row_group(group, columns=["indices", "scores"])
            table = table.slice(max(first - begin, 0), min(end, begin + size) - max(first, begin))
            parts.append((_square(table, "indices", name), _square(table, "scores", name)))
        begin += size
    if not parts:
        raise ValueError(f"{name}: {begin} rows, none from {first} on")
    return tuple(np.concatenate(column) for column in zip(*parts))  # type: ignore[return-value]


def _square(table: Any, column: str, name: str) -> Any:
    """A column of lists of one length as an array."""
    chunk = table.column(column).combine_chunks()
    flat = chunk.flatten().to_numpy(zero_copy_only=False)
    if table.num_rows == 0 or len(flat) % table.num_rows:
        raise ValueError(f"{name}: {column} are no lists of one length")
    return flat.reshape(table.num_rows, -1)


def read_json(path: Path, *, n_layer: int = 0, n_used: int = 0) -> Routing:
    """The first [tokens][layers][used] in a JSON file, with vLLM's prompt_routed_experts in front; or
    SGLang's int32 in base64."""
    with open(path, encoding="utf-8") as file:
        try:
            document = json.load(file)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None
    prompt, written = None, None
    for key, value in _values(document):
        found = _array(value, n_layer, n_used)
        if found is not None and key == "prompt_routed_experts":
            prompt = found if prompt is None else prompt
        elif found is not None and written is None:
            written = found
    both = [part for part in (prompt, written) if part is not None]
    if not both:
        raise ValueError(f"{os.fspath(path)}: no list [tokens][layers][used] of numbers"
                         + ("; bytes in base64 need --layers and --used" if not n_layer else ""))
    return check(Routing(np.concatenate(both)), os.fspath(path))


def _values(node: Any, key: str = "") -> Iterator[Tuple[str, Any]]:
    """All values of a document with their keys, a value before its parts."""
    stack = [(key, node)]
    while stack:
        key, node = stack.pop()
        yield key, node
        if isinstance(node, dict):
            stack.extend(reversed(list(node.items())))
        elif isinstance(node, list) and node and isinstance(node[0], (dict, list, str)):
            stack.extend((key, part) for part in reversed(node))


def _array(value: Any, n_layer: int, n_used: int) -> Any:
    """The value as [tokens][layers][used], or None."""
    if isinstance(value, str) and n_layer and n_used:
        try:
            flat = np.frombuffer(base64.b64decode(value, validate=True), "<i4")
        except ValueError:
            return None
        fits = len(flat) > 0 and len(flat) % (n_layer * n_used) == 0
        return flat.reshape(-1, n_layer, n_used) if fits else None
    if not isinstance(value, list):
        return None
    try:
        array = np.array(value)
    except ValueError:
        return None
    return array if array.ndim == 3 and array.dtype.kind in "iu" else None


def write(routing: Routing, path: Path, n_expert: int = 0) -> None:
    """Writes a trace file. n_expert: of a layer; 0: the largest number + 1."""
    experts, gates = check(routing, os.fspath(path))
    most = int(experts.max()) + 1
    if n_expert and most > n_expert:
        raise ValueError(f"{os.fspath(path)}: expert {most - 1} of {n_expert}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps({"moe_trace": 1, "n_layer": experts.shape[1], "n_expert": n_expert or most}) + "\n")
        for row, chosen in enumerate(experts):
            line = {"tok": row, "layers": [[int(e) for e in layer if e >= 0] for layer in chosen]}
            if gates is not None:
                line["gates"] = [[round(float(g), 6) for g, e in zip(of, layer) if e >= 0]
                                 for of, layer in zip(gates[row], chosen)]
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def read(source: Path, *, first: int = 0, n_rows: Optional[int] = None, n_layer: int = 0,
         n_used: int = 0) -> Routing:
    """Reads rows first to first + n_rows of any of these sources."""
    if os.path.isdir(source):
        return read_flame(source, first, n_rows)
    is_npy = os.fspath(source).endswith(".npy")
    routing = read_npy(source) if is_npy else read_json(source, n_layer=n_layer, n_used=n_used)
    end = None if n_rows is None else first + n_rows
    return check(Routing(*(None if part is None else part[first:end] for part in routing)), os.fspath(source))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("--experts", type=int, default=0, help="of a layer (default: the largest number + 1)")
    parser.add_argument("--layers", type=int, default=0, help="of bytes in base64")
    parser.add_argument("--used", type=int, default=0, help="experts of a token, of bytes in base64")
    parser.add_argument("--first", type=int, default=0, help="the first token (default 0)")
    parser.add_argument("--rows", type=int, help="how many tokens (default: all)")
    options = parser.parse_args()
    try:
        routing = read(options.source, first=options.first, n_rows=options.rows, n_layer=options.layers,
                       n_used=options.used)
        write(routing, options.out, options.experts)
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"moe_offload.traces: {error}")


if __name__ == "__main__":
    main()
