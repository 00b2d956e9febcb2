#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""An inflated model (bench/inflate.py) computes what the demo model computes.

    inflated_model.py COMMAND INFLATE DEMO

Both read the same text with the same command. Until the first activation that lies between two
8-bit codes is rounded to the other one, logits agree to 3e-6 of the largest; sums of another width
have another order, so such a rounding comes after a few tokens. From then on the logits stay near,
and the routing differs only where two experts are nearly tied. Cut into two, an expert becomes two
that are always used together.
"""

import array
import json
import os
import subprocess
import sys
import tempfile

TEXT = "Question: Anna has 3 boxes with 12 apples in each. How many apples does she have?\nAnswer:"
EXACT_POSITIONS, EXACT, NEAR = 4, 3e-6, 0.06
SAME_PICKS = 0.98
TIE = 0.06  # of the smallest gate taken


def read_npy(path):
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[8:10], "little")
    values = array.array("f", data[10 + size:])
    n = len(values) // 4096
    return [values[i * 4096:(i + 1) * 4096] for i in range(n)]


def evaluate(command, model, work):
    logits, trace = os.path.join(work, "l.npy"), os.path.join(work, "t.jsonl")
    subprocess.run([command, "logits", "-m", model, "-p", TEXT, "--raw", "-o", logits, "--kv",
                    "f32", "--trace", trace, "--quiet"], check=True)
    with open(trace, encoding="utf-8") as file:
        tokens = [json.loads(line) for line in file]
    return read_npy(logits), [t for t in tokens if "layers" in t]


def compare_logits(name, ours, reference):
    largest = max(abs(v) for row in reference for v in row)
    gaps = [max(abs(a - b) for a, b in zip(x, y)) / largest for x, y in zip(ours, reference)]
    print(f"{name}: {len(gaps)} positions, first {max(gaps[:EXACT_POSITIONS]):.2e}, "
          f"largest {max(gaps):.2e}")
    return (len(ours) == len(reference) and max(gaps[:EXACT_POSITIONS]) <= EXACT
            and max(gaps) <= NEAR)


def compare_routing(name, ours, reference, split):
    picks = same = 0
    good = len(ours) == len(reference)
    for x, y in zip(ours, reference):
        for mine, theirs, gates in zip(x["layers"], y["layers"], y["gates"]):
            whole = {e // split for e in mine}
            good = good and len(mine) == split * len(theirs) == split * len(whole)
            picks += len(theirs)
            same += len(whole & set(theirs))
            # What was exchanged must have been close to not being taken.
            for lost in set(theirs) - whole:
                gap = gates[theirs.index(lost)] - min(gates)
                if gap > TIE * min(gates):
                    print(f"{name}: expert {lost} was lost with a gate {gap} above the smallest")
                    good = False
    print(f"{name}: {same} of {picks} picks are the same")
    return good and same >= SAME_PICKS * picks


def main():
    command, inflate, demo = sys.argv[1:]
    good = True
    with tempfile.TemporaryDirectory(dir=".") as work:
        logits, routing = evaluate(command, demo, work)
        for split in (1, 2):
            name = f"split {split}"
            model = os.path.join(work, "inflated.gguf")
            subprocess.run([sys.executable, inflate, demo, model, "--width", "4", "--inner", "256",
                            "--split", str(split)], check=True)
            found, route = evaluate(command, model, work)
            good = compare_logits(name, found, logits) and good
            good = compare_routing(name, route, routing, split) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
