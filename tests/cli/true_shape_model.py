#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Files of large models' true shapes (bench/true_shape.py) open at once, whole and in parts, are planned
without a context that is too long being asked for, and run.

    true_shape_model.py COMMAND TRUE_SHAPE
"""
import json
import os
import subprocess
import sys
import tempfile
import time

GIB = 1 << 30
SLOWEST = 120.0  # seconds; it takes a tenth of one, a hundred times as long with sanitizers


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command} exited with {done.returncode}: {done.stderr[-2000:]}")
    return done


def plan(command, model, *options):
    return json.loads(run(command, "plan", "-m", model, "--json", *options).stdout)


def check(condition, what):
    if not condition:
        sys.exit(f"not so: {what}")


def check_shape(command, script, work, shape, parts, least_gb):
    model = os.path.join(work, f"{shape}.gguf")
    made = run(sys.executable, script, shape, model, "--parts", str(parts))
    if parts > 1:
        model = os.path.join(work, f"{shape}-00001-of-{parts:05d}.gguf")
    files = [os.path.join(work, f) for f in os.listdir(work) if f.startswith(shape)]
    check(sum(os.stat(f).st_size for f in files) > least_gb * 1e9, made.stdout)
    check(sum(os.stat(f).st_blocks for f in files) * 512 < 3e8, "the file is sparse")
    begin = time.monotonic()
    fitted = plan(command, model, "--host-memory", "16G", "--overcommit-memory")
    check(time.monotonic() - begin < SLOWEST, "it is planned at once")
    check(fitted["total_bytes"] <= 16 * GIB, "the plan keeps to the budget")
    check(4096 <= fitted["context"] < fitted["context_most"], f"a context that fits: {fitted}")
    check(fitted["kv_cache_bytes"] * 3 <= fitted["expert_cache_bytes"] or fitted["context"] == 4096,
          f"experts keep their part: {fitted}")
    tables = {"qwen3.8-flash-next": 26.8}   # GiB of rows, which stay on disk
    check(abs(fitted["row_table_bytes"] / GIB - tables.get(shape, 0)) < 0.1, f"the table's bytes: {fitted}")
    check(fitted["resident_bytes"] < 14 * GIB, f"and they are not resident: {fitted}")
    with_more = plan(command, model, "--host-memory", "24G", "--overcommit-memory")
    check(with_more["context"] > fitted["context"], "more memory, a longer context")
    for f in files:
        os.remove(f)


def check_run(command, script, work):
    """Two layers of MiniMax-M2 with a small vocabulary, 256 experts each, in memory for a twentieth."""
    model = os.path.join(work, "small.gguf")
    run(sys.executable, script, "minimax-m2", model, "--layers", "2", "--vocabulary", "2048")
    done = run(command, "run", "-m", model, "-p", "shape and size", "-n", "4", "--raw", "--temp", "0",
               "--host-memory", "640M", "--ignore-eos", "--overcommit-memory")
    check("decode: 4 tokens" in done.stderr, f"four tokens: {done.stderr[-400:]}")
    check("the context is" in done.stderr, f"the context is told: {done.stderr[-400:]}")


def check_types(command, script, work):
    """gpt-oss-20b has experts in MXFP4: its rows are no whole blocks of 256."""
    model = os.path.join(work, "gpt-oss.gguf")
    run(sys.executable, script, "gpt-oss-20b", model, "--layers", "1", "--vocabulary", "2048")
    told = run(command, "inspect", "-m", model).stdout.splitlines()
    check(any(line.split()[:3] == ["expert", "MXFP4", "3"] for line in told), told)


def main():
    command, script = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as work:
        check_shape(command, script, work, "kimi-k2", 1, 560)
        check_shape(command, script, work, "minimax-m2", 9, 120)
        check_shape(command, script, work, "glm-5.3-flash", 1, 170)
        check_shape(command, script, work, "qwen3.8-flash-next", 3, 105)
        check_types(command, script, work)
        check_run(command, script, work)


if __name__ == "__main__":
    main()
