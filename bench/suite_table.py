#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The headline table of results/speculation.md: what each drafter gains over plain decoding with
the same cache, by texts, temperatures, caches and batches. No clock is read, so the table is the
same on every machine.

    python3 suite_table.py COMMAND MODEL HEAD [--parallel 1,8,32] [--caches 10%,25%,50%]
                           [--temps 0.7,1] [--jobs 2]

HEAD is a file with the model's drafting layer, or an EAGLE-3 head. Each batch is a run of
"bench speculate --suite" for every text. A cell has the least and the greatest gain of the texts;
losses are bold. "static" has, for each text, the best of chains of 1, 3 and 6 drafted tokens (with
32 sequences 1 and 3), chosen afterwards. Under the table, for each drafter and batch: its worst
setting, how many lose more than 0.1 %, and the geometric mean, all without forced tokens.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
TEXTS = ("bench/texts/gsm8k.txt", "bench/texts/shakespeare.txt", "examples/demo-model/train.py")
SIZES = {1: (64, 128, (1, 3, 6)), 8: (32, 64, (1, 3, 6)), 32: (32, 32, (1, 3))}
DRAFTERS = ("auto", "ngram", "self", "mtp:H", "auto:H")
STATIC = "self --length-control static --draft-max "
LOOKAHEAD = "off --lookahead 8"
WAYS = ("temperature 0.7", "temperature 1", "forced", "greedy")


def configs(batch: int) -> list[str]:
    return ["off", *DRAFTERS, LOOKAHEAD, *(f"{STATIC}{k}" for k in SIZES[batch][2])]


def bench(given, batch: int, source: list[str]) -> list[dict]:
    prompt, written, _ = SIZES[batch]
    command = [given.command, "bench", "speculate", "-m", given.model, *source, "-t", "1", "-p",
               str(prompt), "-n", str(written), "--repeat", "1", "--calibration", "none",
               "--io-timeout", "3600", "--parallel", str(batch), "--expert-cache", given.caches,
               "--format", "csv", "--configs", "; ".join(
                   f"{c.replace(':H', ':' + given.head)} --cost bytes" for c in configs(batch))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    for row in rows:
        row["config"] = row["config"].replace(" --cost bytes", "").replace(given.head, "H")
    return rows


def moved(row: dict) -> float:
    return sum(float(row[f"{kind}_mib_per_token"]) for kind in ("demand", "prefetch", "foresight"))


def run(given, batch: int, text: str) -> list[dict]:
    """The suite's rows, or, with --temps, those of some of its ways."""
    path = str(TREE / text)
    if not given.temps:
        return bench(given, batch, ["--suite", path])
    rows = []
    for temp in given.temps.split(","):
        plain: dict = {}
        for row in bench(given, batch, ["-f", path, "--temp", temp]):
            plain = row if row["config"] == "off" else plain
            if row["config"] == LOOKAHEAD: # verifies nothing: by bytes
                row["gain"] = str(moved(plain) / moved(row))
            rows.append(row | {"text": Path(path).name, "tokens": f"temperature {temp}"})
    return rows


def gains_of(rows: list[dict]) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    """Gain by (tokens, cache), then column, then text."""
    cells: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for row in rows:
        static = row["config"].startswith(STATIC)
        name = ("static" if static else
                "lookahead" if row["config"] == LOOKAHEAD else row["config"])
        of = cells.setdefault((row["tokens"], row["cache_percent"]), {}).setdefault(name, {})
        of[row["text"]] = max(float(row["gain"]), of.get(row["text"], 0.0))
    return cells


def shown(gains: dict[str, float]) -> str:
    ends = [f"**{g:.2f}**" if round(g, 2) < 1 else f"{g:.2f}"
            for g in (min(gains.values()), max(gains.values()))] if gains else [""]
    return "–".join(dict.fromkeys(ends))


def print_rows(batch: int, cells: dict, columns: list[str]) -> None:
    for way in WAYS:
        for (tokens, cache), cell in cells.items():
            if tokens == way:
                print(f"| {batch} | {way} | {float(cache):.0f} % | " +
                      " | ".join(shown(cell.get(c, {})) for c in columns) + " |")


def summary(batch: int, cells: dict, name: str) -> str:
    every = [(gain, f"{text}, {tokens}, cache {cache} %") for (tokens, cache), cell in cells.items()
             if tokens != "forced" for text, gain in cell[name].items()]
    mean = math.exp(sum(math.log(gain) for gain, _ in every) / len(every))
    worst, where = min(every)
    return (f"{batch} sequences, {name}: {len(every)} settings, worst {worst:.3f} ({where}), "
            f"{sum(gain < 0.999 for gain, _ in every)} lose over 0.1 %, mean {mean:.3f}")


def share_of_static(cells: dict) -> str:
    """What auto has of the best static chain where that gains, of sampled text."""
    shares = [(gain / cell["static"][text], f"{text}, {tokens}, cache {cache} %")
              for (tokens, cache), cell in cells.items() if tokens.startswith("temperature")
              for text, gain in cell["auto"].items() if cell["static"][text] > 1.05]
    if not shares:
        return "no static chain gains over 5 % of sampled text"
    mean = math.exp(sum(math.log(share) for share, _ in shares) / len(shares))
    return (f"auto over static, where that gains over 5 % of sampled text: {len(shares)} settings, "
            f"mean {mean:.3f}, least {min(shares)[0]:.3f} ({min(shares)[1]})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("head")
    parser.add_argument("--parallel", default="1,8,32")
    parser.add_argument("--caches", default="10%,25%,50%")
    parser.add_argument("--temps", default="", help="only these of the suite's temperatures: 0.7,1")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    batches = [int(b) for b in given.parallel.split(",")]
    if any(batch not in SIZES for batch in batches):
        parser.error(f"--parallel takes some of {', '.join(map(str, SIZES))}")
    columns = [*DRAFTERS, "static", "lookahead"]
    print("| B | tokens | cache | " + " | ".join(columns) + " |\n" + "|---" * (3 + len(columns)) + "|")
    notes = []
    with ThreadPoolExecutor(given.jobs) as jobs:
        for batch in batches:
            found = jobs.map(lambda text, batch=batch: run(given, batch, text), TEXTS)
            cells = gains_of([row for rows in found for row in rows])
            print_rows(batch, cells, columns)
            notes += [summary(batch, cells, name) for name in columns]
            notes.append(share_of_static(cells))
    print("\n" + "\n".join(notes))


if __name__ == "__main__":
    main()
