#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plan_beside_runs.py COMMAND MODEL [--budgets LIST] [--repeat N]

Tokens a second that `plan --measure --trace` predicts for several memory budgets, beside what `run` then reaches with
them, without speculation and prefetch. The routing is recorded once, with all experts in memory, on a text that the
model writes with one seed; the runs write the same text. Each budget is planned and run --repeat times, in turn;
medians of the runs are compared with the median prediction and with the medians of the ends of its range."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

TEXT = ["-p", "Once upon a time", "-s", "1", "--ignore-eos", "-c", "1024", "--speculate", "off", "--prefetch", "off",
        "--calibration", "none", "--warm-start", "off"]
PLAN = ["-c", "1024", "--speculate", "off", "--prefetch", "off", "--calibration", "none"]


def run(command, model, n, *more):
    """The statistics of a run."""
    done = subprocess.run([command, "run", "-m", model, "-n", str(n), "--json", *TEXT, *more], check=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return json.loads(done.stderr)


def token_times(command, model, n, folder, *more):
    """The statistics, and seconds of each token."""
    path = os.path.join(folder, "timeline.json")
    statistics_of_run = run(command, model, n, "--timeline", path, *more)
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    return statistics_of_run, [e["dur"] * 1e-6 for e in events if e["ph"] == "X" and e["name"].startswith("token ")]


def speed_of(runs):
    """Tokens a second of the last three quarters of the tokens, of each the least time."""
    least = [min(times) for times in zip(*(times for _, times in runs))]
    least = least[len(least) // 4:]
    return len(least) / sum(least)


def plan(command, model, *more):
    done = subprocess.run([command, "plan", "-m", model, "--json", *PLAN, *more], check=True, capture_output=True,
                          text=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--budgets", default="25%,40%,55%,70%,85%", help="of the experts (default 25%%,40%%,55%%,70%%,85%%)")
    parser.add_argument("-n", type=int, default=600, help="tokens to write (default 600)")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    budgets = options.budgets.split(",")
    measured, predicted, within = {b: [] for b in budgets}, {b: [] for b in budgets}, 0
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "routing.jsonl")
        run(options.command, options.model, options.n, "--trace", trace)
        for _ in range(options.repeat):
            for budget in budgets:
                share = ["--expert-cache", budget]
                predicted[budget].append(plan(options.command, options.model, "--measure", "--trace", trace, *share))
                measured[budget].append(token_times(options.command, options.model, options.n, folder, *share))
    print(f"{'experts in memory':>18}{'hits, %':>9}{'simulated':>11}{'tokens/s':>10}{'predicted':>11}{'from':>9}"
          f"{'to':>9}{'error, %':>10}")
    for budget in budgets:
        hits = statistics.median(100 * m["expert_hits"] / (m["expert_hits"] + m["expert_misses"])
                                 for m, _ in measured[budget])
        speed = speed_of(measured[budget])
        best = max(predicted[budget], key=lambda p: p["expected_tokens_per_s"])
        middle, low, high = (best["expected_tokens_per_s" + end] for end in ("", "_low", "_high"))
        simulated = 100 * predicted[budget][0]["simulated_hit_rate"]
        within += low <= speed <= high
        print(f"{budget:>18}{hits:9.1f}{simulated:11.1f}{speed:10.1f}{middle:11.1f}{low:9.1f}{high:9.1f}"
              f"{100 * (middle / speed - 1):10.1f}")
    print(f"{within} of {len(budgets)} within the range")
    sys.exit(0 if within == len(budgets) else 1)


main()
