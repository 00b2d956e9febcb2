#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What workers give: decoding with N workers that hold a part of the experts each, beside the same engine alone.

    python3 workers.py COMMAND MODEL [--workers 2] [--cache 25%] [-n 64] [--prompt 64] [--repeat 3] [-t 1]
                       [--throttle MB/S] [--transport tcp] [--compute auto] [--net MBIT[,MICROSECONDS]]
                       [--llama FOLDER] [--panel ROWS] [--missing SHARES]

All processes run on this machine, so its processors do the work of all; what is measured is whether bytes from
memory elsewhere beat bytes from the disk. With --net each process has a network namespace of its own (root), and what
it sends passes a link of so many Mbit/s (tc tbf); the microseconds are the delay of one way, which the engine's wire
adds (--worker-delay). With --llama, llama.cpp's programs in FOLDER run the same file over as many RPC servers, on the same
links without that delay. Both engines have the same --cache; each worker holds its whole part.
With --throttle the disk gives the engine alone, and the one with workers, so much (a control group; root).
Runs are pairs, one after the other, and must write the same text. Printed are medians and the median of the
ratios of pairs, what a token sends and receives, the bound of the link (bytes / bandwidth + 2 x delay x layers that ask
workers), and each worker's peak of memory beside its plan.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from beside_llama import Group
from panels import device_of

TREE = Path(__file__).resolve().parent.parent
KEY = "a key for the links of workers.py"


class Net:
    """Namespaces 0 (the engine's) to n, each with an interface to one bridge. --net limits what each end sends."""

    def __init__(self, n: int, link: str | None) -> None:
        self.link = link
        self.names = [f"moe-{os.getpid()}-{i}" for i in range(n + 1)] if link else []
        self.bridge = f"moeb{os.getpid()}"
        try:
            if link:
                self.open()
        except BaseException:
            self.close()
            raise

    def open(self) -> None:
        mbit = self.link.partition(",")[0]
        limit = ["tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "500ms"]
        call("ip", "link", "add", self.bridge, "type", "bridge")
        call("ip", "link", "set", self.bridge, "up")
        for i, name in enumerate(self.names):
            near, far = f"m{os.getpid()}p{i}", f"m{os.getpid()}q{i}"
            call("ip", "netns", "add", name)
            call("ip", "link", "add", near, "type", "veth", "peer", "name", far)
            call("ip", "link", "set", near, "master", self.bridge, "up")
            call("ip", "link", "set", far, "netns", name)
            call(*self.inside(i), "ip", "address", "add", f"10.77.0.{i + 1}/24", "dev", far)
            call(*self.inside(i), "ip", "link", "set", far, "up")
            call(*self.inside(i), "ip", "link", "set", "lo", "up")
            call(*self.inside(i), "tc", "qdisc", "add", "dev", far, "root", *limit)
            if i == 0:  # what comes to the engine from all workers shares its link
                call("tc", "qdisc", "add", "dev", near, "root", "tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency",
                     "500ms")

    def inside(self, i: int) -> list[str]:
        return ["ip", "netns", "exec", self.names[i]] if self.link else []

    def address(self, i: int) -> str:
        return f"10.77.0.{i + 1}" if self.link else "127.0.0.1"

    def close(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False)
        if self.link:
            subprocess.run(["ip", "link", "delete", self.bridge], check=False)


def call(*command: str) -> None:
    subprocess.run(command, check=True)


UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def start_worker(given, net: Net, i: int, environment: dict) -> tuple[subprocess.Popen, str, float]:
    """The process, its address, and the RAM that its plan has, in MiB."""
    shares = given.workers + given.missing
    command = [*net.inside(i), given.command, "worker", "-m", given.model, "--share", f"{i}/{shares}", "--expert-cache",
               f"{-(-100 // shares)}%", "-t", given.threads, "--listen", f"{net.address(i)}:0", "--worker-key", given.key]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    line = worker.stdout.readline()
    found = re.match(r"worker at ([0-9.]+:\d+): .*; ([0-9.]+) (\w+) of RAM in all", line)
    if not found:
        sys.exit(f"a worker did not start: {line}")
    return worker, found.group(1), float(found.group(2)) * UNITS[found.group(3)] / 2**20


def peak_of(worker: subprocess.Popen) -> float:
    """The most RAM that the process has had, in MiB."""
    status = Path(f"/proc/{worker.pid}/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) / 1024


def run(given, net: Net, environment: dict, *more: str) -> tuple[str, dict]:
    command = [*net.inside(0), given.command, "run", "-m", given.model, "--raw", "-p", given.text, "-n", str(given.n),
               "--temp", "0", "-t", given.threads, "--expert-cache", given.cache, "--speculate", "off", "--json",
               "-b", given.chunk, *(["--panel", given.panel] if given.panel else []), *more]
    group = Group(None, given.throttle * 1000000 if given.throttle else None, device_of(given.model))
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=group.enter,
                              env=environment)
    finally:
        group.remove()
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout, json.loads(done.stderr[done.stderr.index("{"):])


def run_llama(given, net: Net) -> None:
    """llama.cpp with its layers on the RPC servers: tokens/s of reading and writing, by llama-bench."""
    servers = []
    try:
        for i in range(1, given.workers + 1):
            servers.append(subprocess.Popen([*net.inside(i), f"{given.llama}/ggml-rpc-server", "-H", net.address(i), "-p",
                                             str(50100 + i)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        names = ",".join(f"{net.address(i)}:{50100 + i}" for i in range(1, given.workers + 1))
        time.sleep(2)
        done = subprocess.run([*net.inside(0), f"{given.llama}/llama-bench", "-m", given.model, "--rpc", names, "-ngl",
                               "99", "-p", str(given.prompt), "-n", str(given.n), "-r", str(given.repeat), "-t",
                               given.threads, "-o", "json"], capture_output=True, text=True, check=False)
    finally:
        for server in servers:
            server.terminate()
            server.wait()
    if done.returncode != 0:
        sys.exit(f"llama-bench: {done.stderr[-2000:]}")
    for row in json.loads(done.stdout):
        print(f"| llama.cpp, RPC, {row['n_prompt']} read, {row['n_gen']} written | {row['avg_ts']:.2f} tokens/s |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cache", default="25%")
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=64, help="characters of the prompt, times 4")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("-t", "--threads", default="1")
    parser.add_argument("--throttle", type=int)
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--compute", default="auto")
    parser.add_argument("--chunk", default="512", help="rows of a pass of the prompt")
    parser.add_argument("--panel", help="rows that go through a layer together; 1: no panels")
    parser.add_argument("--missing", type=int, default=0, help="shares that no worker has, so that this engine reads them")
    parser.add_argument("--net", help="Mbit/s and microseconds of the links")
    parser.add_argument("--llama", help="folder of llama-bench and ggml-rpc-server")
    given = parser.parse_args()
    text = (TREE / "bench/texts/shakespeare.txt").read_text(encoding="utf-8")
    given.text = text[:4 * given.prompt]
    environment = dict(os.environ, UCX_TLS=given.transport)
    rows, workers = [], []
    net = Net(given.workers, given.net)
    with tempfile.NamedTemporaryFile() as key:
        key.write(KEY.encode())
        key.flush()
        given.key = key.name
        try:
            workers = [start_worker(given, net, i + 1, environment) for i in range(given.workers)]
            names = ",".join(address for _, address, _ in workers)
            delay = int((given.net or "").partition(",")[2] or 0)
            for _ in range(given.repeat):
                alone_text, alone = run(given, net, environment)
                shared_text, shared = run(given, net, environment, "--workers", names, "--worker-key", key.name,
                                          "--worker-compute", given.compute,
                                          *(["--worker-delay", str(2 * delay)] if delay else []))
                if alone_text != shared_text:
                    sys.exit("the texts differ")
                rows.append((alone, shared))
            peaks = [(peak_of(worker), planned) for worker, _, planned in workers]
        finally:
            for worker, _, _ in workers:
                worker.send_signal(signal.SIGTERM)
                worker.wait()
            try:
                if given.llama and rows:
                    run_llama(given, net)
            finally:
                net.close()

    def median(of) -> float:
        return statistics.median(of(*row) for row in rows)

    n = given.n
    n += rows[0][0]["prompt_tokens"]  # the bytes are of prompt and text
    print("| | tokens/s | prompt tokens/s | MiB read | jobs a token | KiB sent a token | received "
          "| s waited for workers |\n|---|---|---|---|---|---|---|---|")
    print(f"| alone | {median(lambda a, s: a['decode_tokens_per_s']):.1f} |"
          f" {median(lambda a, s: a['prompt_tokens_per_s']):.1f} |"
          f" {median(lambda a, s: a['bytes_read_disk']) / 2**20:.0f} | | | | |")
    print(f"| {given.workers} workers | {median(lambda a, s: s['decode_tokens_per_s']):.1f} |"
          f" {median(lambda a, s: s['prompt_tokens_per_s']):.1f} |"
          f" {median(lambda a, s: s['bytes_read_disk']) / 2**20:.0f} |"
          f" {median(lambda a, s: s['worker_jobs']) / n:.1f} |"
          f" {median(lambda a, s: s['worker_bytes_sent']) / n / 1024:.1f} |"
          f" {median(lambda a, s: s['worker_bytes_received']) / n / 1024:.1f} |"
          f" {median(lambda a, s: s['worker_wait_seconds']):.2f} |")
    ratio = median(lambda a, s: s["decode_tokens_per_s"] / a["decode_tokens_per_s"])
    read = median(lambda a, s: s["prompt_tokens_per_s"] / a["prompt_tokens_per_s"])
    print(f"\ntimes as fast, median of {len(rows)} pairs: {ratio:.2f}, reading the prompt {read:.2f}")
    if given.net:
        sent = max(median(lambda a, s: s["worker_bytes_sent"]), median(lambda a, s: s["worker_bytes_received"])) / n
        layers = median(lambda a, s: s["worker_jobs"]) / n / given.workers
        ms = 8e-3 * sent / float(given.net.partition(",")[0]) + 2e-3 * delay * layers
        print(f"bound of the link: {ms:.2f} ms a token, {1e3 / ms:.0f} tokens/s")
    for peak, planned in peaks:
        print(f"a worker's peak {peak:.0f} MiB, planned {planned:.0f}")


main()
