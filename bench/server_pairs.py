# SPDX-License-Identifier: MIT
"""Throughput of `moe-offload serve` and llama.cpp's llama-server, in turn: the same file, cores,
prompts and limits.

    python3 bench/server_pairs.py COMMAND LLAMA_SERVER MODEL [--clients 8] [--seconds 30] [--pairs 3]
                                  [--limit 40] [--ours "-b 128"] [--theirs "-b 128"]

Each side of a pair is a fresh server with as many sessions as there are clients. Clients ask for
answers of exactly --tokens tokens to prompts that no other request has, each as one object
(bench/server_load.py --whole); what they ask in the first --warm seconds is not counted. Which side
is first alternates. --limit: both in a control group of so many percent of the file, page cache
counted, the file dropped from the page cache before; needs root and control groups of version 1 or
2. Prints tokens a second of each run, the CPU time of each server for a token, and the ratio of
each pair."""
import argparse
import json
import os
import pathlib
import random
import shlex
import socket
import statistics
import subprocess
import threading
import time
import urllib.request

GROUPS = pathlib.Path("/sys/fs/cgroup")
WORDS = ("Anna has three boxes with twelve apples in each she gives eight to her friend how many "
         "does have left once upon a time Tom buys five pens the cat and dog went out day was "
         "train four cars twenty seats to be or not").split()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class Group:
    """A new control group with a memory limit; None: no group."""

    def __init__(self, limit):
        self.path = None
        if limit is None:
            return
        one = (GROUPS / "memory").is_dir()
        self.path = (GROUPS / "memory" if one else GROUPS) / f"moe-serve-{os.getpid()}"
        self.path.mkdir()
        (self.path / ("memory.limit_in_bytes" if one else "memory.max")).write_text(str(limit))
        self.peak = self.path / ("memory.max_usage_in_bytes" if one else "memory.peak")

    def enter(self):
        if self.path is not None:
            (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        for _ in range(100):
            try:
                return self.path is None or self.path.rmdir()
            except OSError:
                time.sleep(0.1)


def drop(path):
    """The file's pages leave the page cache, so that who reads them pays for them."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def ask(port, chance, options):
    prompt = " ".join(chance.choice(WORDS) for _ in range(options.prompt_words))
    body = {"prompt": prompt, "max_tokens": options.tokens, "ignore_eos": True, "temperature": 0.8,
            "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": chance.randint(1, 1 << 30)}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions",
                                     json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        n = json.loads(answer.read())["usage"]["completion_tokens"]
    assert n == options.tokens, n
    return n


def wait_for(port, process):
    while process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).read()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"the server ended with {process.returncode}")


def cpu_seconds(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(port, process, options):
    """Tokens a second, and the server's CPU seconds for a token, of what began after the warm-up and
    what of it had ended when time was up, by its share."""
    begun = time.monotonic()
    first, last = begun + options.warm, begun + options.warm + options.seconds
    done = []

    def client(number):
        chance = random.Random(options.seed * 1000 + number)
        while time.monotonic() < last:
            start = time.monotonic()
            n = ask(port, chance, options)
            end = time.monotonic()
            inside = max(0.0, min(end, last) - max(start, first))
            done.append(n * inside / (end - start))
    threads = [threading.Thread(target=client, args=(i,)) for i in range(options.clients)]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, first - time.monotonic()))
    cpu = cpu_seconds(process)
    time.sleep(max(0.0, last - time.monotonic()))
    cpu = cpu_seconds(process) - cpu
    for thread in threads:
        thread.join()
    return sum(done) / options.seconds, cpu / max(1e-9, sum(done))


def run(side, options):
    port = free_port()
    n = options.clients
    if side == "ours":
        line = [options.command, "serve", "-m", options.model, "--port", str(port), "-t", "2", "-c",
                str(options.context), "--parallel", str(n), "--quiet", *shlex.split(options.ours)]
    else:
        line = [options.llama_server, "-m", options.model, "--port", str(port), "-t", "2", "-c",
                str(options.context * n), "-np", str(n), "--no-webui", *shlex.split(options.theirs)]
    limit = None
    if options.limit:
        limit = os.path.getsize(options.model) * options.limit // 100
        drop(options.model)
    group = Group(limit)
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               preexec_fn=group.enter)
    try:
        wait_for(port, process)
        speed, cpu = load(port, process, options)
    finally:
        process.terminate()
        process.wait()
        peak = group.peak.read_text().strip() if group.path is not None else None
        group.remove()
    row = {"side": side, "clients": n, "tokens_per_s": round(speed, 1),
           "cpu_ms_per_token": round(1e3 * cpu, 2)}
    if peak is not None:
        row.update(limit_mib=limit >> 20, peak_mib=int(peak) >> 20)
    print(json.dumps(row), flush=True)
    return speed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command")
    parser.add_argument("llama_server")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--warm", type=float, default=5)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--prompt-words", type=int, default=40)
    parser.add_argument("--context", type=int, default=512, help="of a session")
    parser.add_argument("--limit", type=int, help="percent of the file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ours", default="")
    parser.add_argument("--theirs", default="")
    options = parser.parse_args()
    ratios = []
    for i in range(options.pairs):
        sides = ("ours", "theirs") if i % 2 == 0 else ("theirs", "ours")
        speed = {side: run(side, options) for side in sides}
        ratios.append(speed["ours"] / speed["theirs"])
        options.seed += 1
        print(json.dumps({"pair": i, "ratio": round(ratios[-1], 2)}), flush=True)
    print(json.dumps({"ratio_median": round(statistics.median(ratios), 2)}))


main()
