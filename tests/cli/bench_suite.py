# SPDX-License-Identifier: MIT
"""bench speculate --suite: what does not depend on the clock is the same in a second run and with
another number of threads; forced tokens are decoded without drafts; where speculation loses is told.
Usage: bench_suite.py COMMAND MODEL TEXT
"""

import csv
import io
import subprocess
import sys

command, model, text = sys.argv[1:]


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

# Drafts that are always verified lose on sampled text.
lossy = "off --cost bytes; ngram --cost bytes --length-control static --draft-max 6"
done = run(2, "--configs", lossy)
assert done.returncode == 0, done.stderr
assert "LOSES in " in done.stdout and " LOSES " in done.stdout, done.stdout

for more in (["--temp", "1"], ["-f", text]):
    done = run(1, *more)
    assert done.returncode == 2 and "exclude each other" in done.stderr, done.stderr
