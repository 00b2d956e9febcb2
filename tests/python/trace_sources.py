# SPDX-License-Identifier: MIT
"""trace_sources.py COMMAND TRACES.PY: routing that other programs wrote (moe_offload/traces.py) becomes a trace that the
command reads. Skips (77) without numpy; Parquet is tried where pyarrow is installed."""
import base64
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy")
    sys.exit(77)

command, source = sys.argv[1:3]
spec = importlib.util.spec_from_file_location("traces", source)
traces = importlib.util.module_from_spec(spec)
spec.loader.exec_module(traces)
N_ROWS, N_LAYER, N_USED, N_EXPERT = 50, 3, 4, 64
failures = []


def check(name, holds, shown=""):
    if not holds:
        failures.append(name)
        print(f"FAIL {name}: {shown!r}"[:1500])


def refused(name, words, call):
    try:
        call()
    except ValueError as error:
        check(name, words in str(error), str(error))
    else:
        check(name, False, "no error")


def routing():
    random = np.random.default_rng(5)
    experts = np.argsort(random.random((N_ROWS, N_LAYER, N_EXPERT)), axis=2)[:, :, :N_USED]
    return experts.astype(np.int16), random.random((N_ROWS, N_LAYER, N_USED)).astype(np.float16)


def test_arrays(folder, experts, gates):
    path, out = os.path.join(folder, "a.npy"), os.path.join(folder, "a.jsonl")
    np.save(path, experts)
    check("npy", (traces.read(path).experts == experts).all())
    part = traces.read(path, first=10, n_rows=7).experts
    check("rows of npy", (part == experts[10:17]).all(), part.shape)
    traces.write(traces.Routing(experts, gates), out, N_EXPERT)
    told = subprocess.run([command, "simulate", "--trace", out, "--policy", "lru", "--expert-cache", "100%", "--json"],
                          capture_output=True, text=True, check=True).stdout
    told = json.loads(told)
    distinct = len({(layer, e) for row in experts for layer, chosen in enumerate(row) for e in chosen})
    check("the command's trace", (told["n_tokens"], told["n_layer"], told["n_expert"], told["n_expert_used"],
                                  told["results"][0]["misses"]) == (N_ROWS, N_LAYER, N_EXPERT, N_USED, distinct), told)


def test_json(folder, experts):
    path = os.path.join(folder, "a.json")

    def read(document, **more):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)
        return traces.read(path, **more).experts

    rows = experts.tolist()
    check("a list", (read(rows) == experts).all())
    check("somewhere in a document", (read({"id": 3, "texts": ["a"], "log": [{"experts": rows}]}) == experts).all())
    answer = {"prompt_routed_experts": rows[:20], "choices": [{"text": "x", "routed_experts": rows[20:]}]}
    check("prompt and completion", (read(answer) == experts).all())
    code = base64.b64encode(experts.astype("<i4").tobytes()).decode()
    answer = {"text": "abcd", "meta_info": {"id": "ab", "routed_experts": code}}
    check("bytes", (read(answer, n_layer=N_LAYER, n_used=N_USED) == experts).all())
    refused("bytes without a shape", "--layers", lambda: read(answer))
    refused("no routing", "no list", lambda: read({"a": [[1, 2], [3]]}))
    with open(path, "w", encoding="utf-8") as file:
        file.write("{")
    refused("no JSON", "a.json", lambda: traces.read(path))


def test_refusals(experts):
    twice = experts.copy()
    twice[3, 1, 0] = twice[3, 1, 1]
    refused("an expert twice", "twice", lambda: traces.check(traces.Routing(twice), "x"))
    refused("two dimensions", "[tokens]", lambda: traces.check(traces.Routing(experts[0]), "x"))
    refused("numbers with a point", "float", lambda: traces.check(traces.Routing(experts / 2), "x"))
    refused("a large number", "4096", lambda: traces.check(traces.Routing(experts.astype(int) + 5000), "x"))
    refused("more experts than told", "of 10", lambda: traces.write(traces.Routing(experts), os.devnull, 10))
    none = experts.copy()
    none[:, :, 2:] = -1
    traces.check(traces.Routing(none), "x")  # fewer experts


def test_parquet(folder, experts, gates):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        print("no pyarrow: Parquet is not tried")
        return
    home = os.path.join(folder, "iter_5473")
    os.mkdir(home)
    for layer in range(N_LAYER):
        table = pyarrow.table({"indices": pyarrow.array(experts[:, layer].tolist(), pyarrow.list_(pyarrow.int16())),
                               "scores": pyarrow.array(list(gates[:, layer]), pyarrow.list_(pyarrow.float16()))})
        pyarrow.parquet.write_table(table, os.path.join(home, f"layer_{layer + 2:02}.parquet"), row_group_size=16)
    whole, part = traces.read(home), traces.read(home, first=14, n_rows=20)
    check("Parquet", (whole.experts == experts).all() and (whole.gates == gates).all())
    check("rows of Parquet", (part.experts == experts[14:34]).all() and (part.gates == gates[14:34]).all())
    refused("rows behind the end", "none from", lambda: traces.read(home, first=N_ROWS))
    os.mkdir(os.path.join(folder, "empty"))
    refused("no layers", "layer_NN", lambda: traces.read(os.path.join(folder, "empty")))


with tempfile.TemporaryDirectory() as temporary:
    chosen, weights = routing()
    test_arrays(temporary, chosen, weights)
    test_json(temporary, chosen)
    test_refusals(chosen)
    test_parquet(temporary, chosen, weights)
sys.exit(1 if failures else 0)
