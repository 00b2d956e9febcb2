# SPDX-License-Identifier: MIT
"""bench speculate: a gain is the plain run's cost over the other run's, of the same tokens, in a
batch that stays full. The suite prints the same, each run alone has the same costs, and what a run
believes itself (estimated_gain, by which length control decides) is near it.
Usage: speculation_gain.py COMMAND MODEL TEXT
"""

import csv
import io
import subprocess
import sys

command, model, text = sys.argv[1:]
BATCH = 8
OFF, STATIC, AUTO = (f"{c} --cost bytes" for c in (
    "off", "self --length-control static --draft-max 3", "auto"))


def bench(*more):
    done = subprocess.run(
        [command, "bench", "speculate", "-m", model, "-t", "2", "-p", "24", "-n", "40", "--repeat",
         "1", "--calibration", "none", "--parallel", str(BATCH), "--expert-cache", "25%", "--format",
         "csv", *more], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def of_text(*more):
    return bench("-f", text, "--temp", "1", *more)


def cost(row):
    return float(row["modelled_mib_per_token"])


def near(a, b, share):
    return abs(a - b) <= share * b


rows = of_text("--configs", f"{OFF}; {STATIC}; {AUTO}")
plain, static, auto = rows
assert float(plain["gain"]) == 1 and float(plain["estimated_gain"]) == 1, plain
assert float(static["gain"]) > 1.2 and float(static["tokens_per_iteration"]) > 1.5, static
for row in (static, auto):
    gain = float(row["gain"])
    assert near(gain, cost(plain) / cost(row), 0.001), (gain, cost(plain) / cost(row))
    # By passes of only those sequences whose drafts were accepted so far it was 1.42, where two runs give 1.21.
    assert near(float(row["estimated_gain"]), gain, 0.05), row

# Every run by itself.
for row, config in zip(rows, (OFF, STATIC, AUTO)):
    alone = of_text("--configs", config)
    assert cost(alone[0]) == cost(row), (alone, row)

suite = {row["config"]: row for row in bench("--suite", text, "--configs", f"{OFF}; {STATIC}")
         if row["tokens"] == "temperature 1"}
assert near(float(suite[STATIC]["gain"]), float(static["gain"]), 0.001), (suite, static)

other = of_text("--configs", f"{OFF}; {STATIC}", "-s", "1000")
assert cost(other[0]) != cost(plain) and float(other[0]["gain"]) == 1, other

# The batch stays full, whichever sequences end first.
steps = of_text("--configs", STATIC, "--lengths")
assert {row["sequences"] for row in steps} == {str(BATCH)}, steps
assert len(steps) < 60, len(steps)
