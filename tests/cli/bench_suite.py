# SPDX-License-Identifier: MIT
"""bench speculate --suite: what does not depend on the clock is the same in a second run and with
another number of threads; forced tokens are decoded without drafts; where speculation loses is told.
With --cost bytes that also holds for a drafting layer, branching trees and the lossy modes, whose
figures otherwise depend on when experts arrive.
Usage: bench_suite.py COMMAND MODEL TEXT HEAD
"""

import csv
import io
import subprocess
import sys
import tempfile
from pathlib import Path

command, model, text, head = sys.argv[1:]


def run(threads, *more):
    return subprocess.run(
        [command, "bench", "speculate", "-m", model, "--suite", text, "-t", str(threads), "-p", "32",
         "-n", "24", "--repeat", "1", "--calibration", "none", "--parallel", "1,2",
         "--expert-cache", "30%", *more], capture_output=True, text=True, check=False)


def rows_of(done):
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    for row in rows:
        for name in [name for name in row if name.startswith("speed_ratio")]:
            del row[name]
    return rows


first = rows_of(run(1, "--format", "csv"))
assert first == rows_of(run(1, "--format", "csv")), "a second run differs"
assert first == rows_of(run(2, "--format", "csv")), "two threads differ"
ways = {row["tokens"] for row in first}
assert ways == {"temperature 0.7", "temperature 1", "forced", "greedy"}, ways
assert {row["batch"] for row in first} == {"1", "2"}
for row in first:
    assert row["config"].startswith("off") or row["tokens"] != "forced", row
    if "--lookahead" in row["config"]:
        assert float(row["bytes_ratio"]) < 0.97 and row["verdict"] == "wins", row
    if row["config"] == "off --cost bytes":
        assert float(row["gain"]) == 1 and float(row["bytes_ratio"]) == 1, row

BY_BYTES = (f"auto:{head}", f"mtp:{head} --length-control static --draft-max 2",
            "self --length-control static --draft-max 4 --tree 7", "off --buddy on",
            "self --length-control static --draft-max 2 --expert-budget 24",
            "self --length-control static --draft-max 2 --affinity random")
CLOCK = ("tokens_per_s", "ratio", "wait_percent", "draft_percent")


def counters(threads, calibration):
    done = subprocess.run(
        [command, "bench", "speculate", "-m", model, "-f", text, "-t", str(threads), "-p", "24", "-n",
         "12", "--repeat", "1", "--temp", "1", "--parallel", "2", "--expert-cache", "30%", "--configs",
         "; ".join(f"{c} --cost bytes" for c in ("off", *BY_BYTES)), "--calibration", calibration,
         "--format", "csv"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [{k: v for k, v in row.items() if not k.startswith(CLOCK)}
            for row in csv.DictReader(io.StringIO(done.stdout))]




def lengths(threads, *more):
    done = subprocess.run(
        [command, "bench", "speculate", "-m", model, "-f", text, "-t", str(threads), "-p", "24", "-n",
         "64", "--repeat", "1", "--calibration", "none", "--parallel", "1", "--expert-cache", "100%",
         "--lengths", "--configs", "off --cost bytes; ngram --cost bytes --length-control "
         "static --draft-max 3; ngram --cost bytes --length-control cascade --draft-max 3", *more],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# K and utility by step: each configuration's steps, numbered, write its tokens.
steps = list(csv.DictReader(io.StringIO(lengths(1, "--format", "csv"))))
assert steps == list(csv.DictReader(io.StringIO(lengths(2, "--format", "csv")))), "steps differ"
by_config = {}
for row in steps:
    by_config.setdefault(row["config"], []).append(row)
assert len(by_config) == 3, by_config.keys()
for config, rows in by_config.items():
    assert [int(row["step"]) for row in rows] == list(range(len(rows)))
    assert sum(int(row["tokens"]) for row in rows) in range(63, 67), config
    ks = {int(row["k"]) for row in rows}
    assert ks == ({0} if config.startswith("off") else {3}) or "cascade" in config and len(ks) > 1
    for row in rows:
        assert int(row["accepted"]) <= int(row["drafted"]) <= int(row["k"]), row
        assert float(row["modelled_mib"]) > 0 and float(row["utility"]) > 0, row
with tempfile.TemporaryDirectory() as folder:
    assert lengths(1, "--format", "gnuplot", "-o", f"{folder}/k") == ""
    plot = Path(f"{folder}/k.gp").read_text(encoding="utf-8")
    assert plot.count("plot '") == 2 and "ylabel 'k'" in plot and "ylabel 'utility'" in plot, plot
    assert len(Path(f"{folder}/k.dat").read_text(encoding="utf-8").splitlines()) == 1 + len(steps)

with tempfile.TemporaryDirectory() as folder:
    sidecar = str(Path(folder) / "calibration.gguf")
    subprocess.run([command, "calibrate", "-m", model, "-f", text, "-o", sidecar], check=True,
                   capture_output=True)
    one = counters(1, sidecar)
    assert len(one) == 1 + len(BY_BYTES) and one == counters(2, sidecar), "counters differ"
    assert all(float(row["tau"]) > 1 for row in one if "static" in row["config"]), one
    assert any(float(row["replaced_percent"]) > 0 for row in one if "--buddy" in row["config"]), one

# Drafts that are always verified lose on sampled text.
lossy = "off --cost bytes; ngram --cost bytes --length-control static --draft-max 6"
done = run(2, "--configs", lossy)
assert done.returncode == 0, done.stderr
assert "LOSES in " in done.stdout and " LOSES " in done.stdout, done.stdout

for more in (["--temp", "1"], ["-f", text], ["--lengths"]):
    done = run(1, *more)
    assert done.returncode == 2 and "exclude each other" in done.stderr, done.stderr
