#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plan_adviser.py COMMAND MODEL OTHER: `plan` with a recorded routing and with another machine, and the timeline of a
run, whose sums are those of its statistics. OTHER: a model with other experts."""
import json
import os
import subprocess
import sys
import tempfile

N = 40


def call(command, *arguments, code=0):
    done = subprocess.run([command, *arguments], capture_output=True, text=True)
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    return done


def check_timeline(command, model, folder):
    path, trace = os.path.join(folder, "timeline.json"), os.path.join(folder, "routing.jsonl")
    text = ["run", "-m", model, "-p", "Once upon a time", "-n", str(N), "-s", "3", "--ignore-eos", "--json", "-c", "256",
            "--speculate", "off", "--prefetch", "off", "--warm-start", "off", "--checksums", "none", "--expert-cache",
            "40%"]
    plain = call(command, *text)
    timed = call(command, *text, "--timeline", path, "--trace", trace)
    assert timed.stdout == plain.stdout
    statistics = json.loads(timed.stderr)
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    steps = [event for event in events if event["ph"] == "X" and "args" in event]
    assert [step["name"] for step in steps] == [f"token {i + 1}" for i in range(N)], steps
    for name in ("expert_hits", "expert_misses", "bytes_read_disk"):
        assert sum(step["args"][name] for step in steps) == statistics[name], name
    parts = [event for event in events if event["ph"] == "X" and "args" not in event]
    whole, inner = sum(step["dur"] for step in steps), sum(part["dur"] for part in parts)
    assert abs(whole - inner) < 1e-3 * whole, (whole, inner)
    assert any(part["name"] == "waiting for experts" for part in parts)
    return trace


def check_plan(command, model, trace):
    plan = ["plan", "-m", model, "--json", "-c", "256", "--expert-cache", "40%", "--disk", "2", "--trace", trace,
            "--calibration", "none", "--speculate", "off"]
    alone = json.loads(call(command, *plan).stdout)
    simulated = json.loads(call(command, "simulate", "--trace", trace, "--policy", "lfru", "--expert-cache",
                                str(alone["expert_slots"]), "--warm-up", str(N // 4), "--json").stdout)["results"][0]
    assert alone["simulated_hit_rate"] == simulated["hit_rate"], (alone, simulated)
    read = alone["token_disk_bytes"] / (1 - alone["simulated_hit_rate"])
    other = json.loads(call(command, *plan, "--what-if", "disk=4GB/s,host-memory=4G").stdout)["what_if"]
    assert other["disk_bytes_per_s"] == 4e9 and other["token_disk_bytes"] <= alone["token_disk_bytes"] < read, other
    measured = json.loads(call(command, *plan, "--measure", "--what-if", "disk=4").stdout)
    what_if = measured["what_if"]
    for speed in (measured, what_if):
        assert 0 < speed["expected_tokens_per_s_low"] <= speed["expected_tokens_per_s"] <= \
            speed["expected_tokens_per_s_high"], speed
    assert what_if["expected_tokens_per_s"] > measured["expected_tokens_per_s"]
    words = call(command, *[word for word in plan if word != "--json"], "--what-if", "disk=4GB/s").stdout
    assert "what if disk=4GB/s" in words and "on that routing" in words, words


def check_refusals(command, model, other, trace):
    for what_if in ("disk", "disk=", "disk=fast", "memory=4G", "disk=-1", "host-memory=50%", "disk=1,,link=2", ""):
        error = call(command, "plan", "-m", model, "--disk", "2", "--what-if", what_if, code=2).stderr
        assert "--what-if must" in error, error
    error = call(command, "plan", "-m", other, "--disk", "2", "--trace", trace, code=1).stderr
    assert "routing of another model" in error, error
    error = call(command, "run", "-m", model, "-p", "a", "-n", "1", "--timeline", os.path.dirname(trace), code=1).stderr
    assert "not a regular file" in error, error


def main():
    command, model, other = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder:
        trace = check_timeline(command, model, folder)
        check_plan(command, model, trace)
        check_refusals(command, model, other, trace)


main()
