#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`plan` of a family that is known and does not run (openPangu-2.0): what its header tells, then a failure.

    plan_missing.py COMMAND TRUE_SHAPE

What is expected of the file's few layers is worked out here by hand.
"""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

LAYERS, EMBD, HEAD, EXPERTS, FF = 5, 4096, 512, 256, 2048


def write(script, path):
    spec = importlib.util.spec_from_file_location("true_shape", script)
    true_shape = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(true_shape)
    a = "openpangu"
    keys = {"general.architecture": a, "general.alignment": 32, f"{a}.block_count": LAYERS + 1,
            f"{a}.nextn_predict_layers": 1, f"{a}.context_length": 1048576, f"{a}.embedding_length": EMBD,
            f"{a}.attention.head_count": 64, f"{a}.expert_count": EXPERTS, f"{a}.expert_used_count": 6}
    tensors = [("token_embd.weight", (EMBD, 1024), "Q8_0"), ("output.weight", (EMBD, 1024), "Q8_0")]
    for i in range(LAYERS + 1):
        tensors.append((f"blk.{i}.attn_kv.weight", (EMBD, HEAD), "Q8_0"))
        for part, dims in (("gate", (EMBD, FF)), ("up", (EMBD, FF)), ("down", (FF, EMBD))):
            tensors.append((f"blk.{i}.ffn_{part}_exps.weight", (*dims, EXPERTS), "Q4_K"))
    true_shape.write_part(path, keys, tensors, False)


def check(name, got, wanted):
    if got != wanted:
        sys.exit(f"FAIL {name}: {got!r}, not {wanted!r}")


def main():
    command, script = sys.argv[1:]
    expert = 3 * EMBD * FF // 256 * 144
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as work:
        model = os.path.join(work, "openpangu.gguf")
        write(script, model)
        done = subprocess.run([command, "plan", "-m", model, "--json"], capture_output=True, text=True)
        check("the exit status", done.returncode, 1)
        check("the reason", "openPangu-2.0, is not supported: it needs" in done.stderr, True)
        plan = json.loads(done.stdout)
        check("it does not run", (plan["runnable"], plan["fits"]), (False, False))
        check("resident", plan["resident_bytes"], (2 * 1024 + LAYERS * HEAD) * EMBD // 32 * 34)
        check("experts", (plan["experts"], plan["largest_expert_bytes"], plan["expert_bytes"]),
              (LAYERS * EXPERTS, expert, LAYERS * EXPERTS * expert))
        done = subprocess.run([command, "plan", "-m", model, "-c", "64"], capture_output=True, text=True)
        check("the exit status of the table", done.returncode, 1)
        check("the table", [line.split("  ")[0] for line in done.stdout.splitlines()],
              ["resident weights", "experts", "KV cache"])
        check("the session", "not known for this family" in done.stdout, True)
        done = subprocess.run([command, "inspect", "-m", model], capture_output=True, text=True)
        check("inspect", (done.returncode, "experts:      256 a layer, 6 used; all" in done.stdout), (0, True))


if __name__ == "__main__":
    main()
