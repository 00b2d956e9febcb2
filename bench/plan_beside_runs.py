#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plan_beside_runs.py COMMAND MODEL... [--budgets LIST] [-n N,N...] [--repeat N]

Tokens a second that `plan --measure --trace` predicts for several memory budgets, beside what `run` then reaches with
them, without speculation and prefetch. The routing of a model is recorded once, with all experts in memory, on a text
that it writes with one seed; the runs write the same text. Each budget is planned and run --repeat times, in turn. The
first quarter of the tokens, which fills the cache, does not count. Both sides are split into their parts: bytes read
for a token, computing, and waiting for experts; medians of the repetitions. The error is the median of the pairs'. A
budget is within the range if the median speed is within the median ends of the predicted range."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

TEXT = ["-p", "Once upon a time", "-s", "1", "--ignore-eos", "-c", "1024", "--speculate", "off", "--prefetch", "off",
        "--calibration", "none", "--warm-start", "off", "--checksums", "none"]
PLAN = ["-c", "1024", "--speculate", "off", "--prefetch", "off", "--calibration", "none", "--checksums", "none"]


def run(command, model, n, *more):
    subprocess.run([command, "run", "-m", model, "-n", str(n), "--json", *TEXT, *more], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measure(command, model, n, folder, *more):
    """Of a token behind the first quarter: hits, bytes read, milliseconds of computing and of waiting."""
    path = os.path.join(folder, "timeline.json")
    run(command, model, n, "--timeline", path, *more)
    with open(path, encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    tokens = [event for event in events if event["name"].startswith("token ")][n // 4:]
    waits = [event["dur"] for event in events if event["name"] == "waiting for experts"
             and event["ts"] >= tokens[0]["ts"]]
    total = {name: sum(token["args"][name] for token in tokens)
             for name in ("expert_hits", "expert_misses", "bytes_read_disk")}
    ms = sum(token["dur"] for token in tokens) / len(tokens) / 1e3
    wait_ms = sum(waits) / len(tokens) / 1e3
    return {"hits": 100 * total["expert_hits"] / (total["expert_hits"] + total["expert_misses"]),
            "bytes": total["bytes_read_disk"] / len(tokens) / 1e6, "compute": ms - wait_ms, "wait": wait_ms,
            "speed": 1e3 / ms}


def predict(command, model, *more):
    done = subprocess.run([command, "plan", "-m", model, "--json", *PLAN, *more], check=True, capture_output=True,
                          text=True)
    plan = json.loads(done.stdout)
    return {"hits": 100 * plan["simulated_hit_rate"], "bytes": plan["token_disk_bytes"] / 1e6,
            "compute": 1e3 * plan["compute_seconds"], "wait": 1e3 * plan["disk_seconds"],
            "speed": plan["expected_tokens_per_s"], "low": plan["expected_tokens_per_s_low"],
            "high": plan["expected_tokens_per_s_high"]}


def medians(rows):
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def compare(options, model, n):
    """Prints the rows of a model; returns how many budgets are within the range."""
    budgets = options.budgets.split(",")
    print(f"\n{os.path.basename(model)}, {n} tokens; a token's MB, ms of computing and of waiting: run, plan")
    print(f"{'memory':>7}{'hits, %':>9}{'plan':>7}{'MB':>8}{'plan':>8}{'comp.':>8}{'plan':>8}{'wait':>8}{'plan':>8}"
          f"{'tokens/s':>10}{'plan':>9}{'from':>9}{'to':>9}{'error, %':>10}", flush=True)
    within, near = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "routing.jsonl")
        run(options.command, model, n, "--trace", trace, "--expert-cache", "100%")
        for budget in budgets:
            measured, predicted = [], []
            share = ["--expert-cache", budget]
            for _ in range(options.repeat):
                predicted.append(predict(options.command, model, "--measure", "--trace", trace, *share))
                measured.append(measure(options.command, model, n, folder, *share))
            m, p = medians(measured), medians(predicted)
            error = statistics.median(100 * (q["speed"] / of["speed"] - 1) for q, of in zip(predicted, measured))
            within += p["low"] <= m["speed"] <= p["high"]
            near += abs(error) <= 10
            print(f"{budget:>7}{m['hits']:9.1f}{p['hits']:7.1f}{m['bytes']:8.2f}{p['bytes']:8.2f}{m['compute']:8.3f}"
                  f"{p['compute']:8.3f}{m['wait']:8.3f}{p['wait']:8.3f}{m['speed']:10.2f}{p['speed']:9.2f}"
                  f"{p['low']:9.2f}{p['high']:9.2f}{error:10.1f}", flush=True)
    print(f"{near} of {len(budgets)} within 10 %, {within} within the range", flush=True)
    return within


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--budgets", default="25%,40%,55%,70%,85%", help="of the experts (default 25%%,40%%,55%%,70%%,85%%)")
    parser.add_argument("-n", default="600", help="tokens to write, for all models or for each (default 600)")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    counts = [int(n) for n in options.n.split(",")]
    counts = counts * len(options.models) if len(counts) == 1 else counts
    within = [compare(options, model, n) for model, n in zip(options.models, counts, strict=True)]
    sys.exit(0 if sum(within) == len(within) * len(options.budgets.split(",")) else 1)


main()
