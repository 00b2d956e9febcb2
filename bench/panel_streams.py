#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What eight clients of `serve` wait between two tokens while a ninth one's long prompt is evaluated.

    python3 panel_streams.py COMMAND MODEL [--text TEXT] [--prompt 8192] [--clients 8] [--cache 40%]
                             [--others 20,80] [--repeat 2] [-t 2] [--throttle MB/S] [--more "..."]

The clients write before the prompt comes, and go on until its first token is there. Each setting has a
server of its own: no panels (`--panel 1`: each step is a pass of --chunk rows, in which the clients have
one row each), panels by default, and with each --panel-others of --others; in turn, --repeat times. The times of all clients while the prompt is
evaluated are put together. Printed are their percentiles, how many tokens the clients got in all,
the seconds until the prompt's first token, the bytes read of experts until then, and the bytes that
each token of the clients read before the prompt came and while it was there (all bytes, those of the
prompt, too). With --throttle the
disk gives so much (a control group; root)."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path

from beside_llama import Group
from panels import Text, device_of

TREE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "tests/server"))
from serving import Server  # noqa: E402


def ask(server: Server, prompt: str, n: int, on_token) -> None:
    """Streams a completion; on_token() returns whether it wants more."""
    connection = server.connect(3600)
    body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {") and not on_token():
            break
    connection.close()


class Streams:
    """Clients that write, and when each of them got its tokens."""

    def __init__(self, server: Server, n: int, most: int):
        self.times: list[list[float]] = [[] for _ in range(n)]
        self.stopped = False
        self.threads = [threading.Thread(target=self._write, args=(server, i, most)) for i in range(n)]
        for thread in self.threads:
            thread.start()

    def _write(self, server: Server, i: int, most: int) -> None:
        def note() -> bool:
            self.times[i].append(time.monotonic())
            return not self.stopped

        ask(server, f"Client {i} counts apples:", most, note)

    def await_all(self, n: int) -> None:
        while min(map(len, self.times)) < n:
            time.sleep(0.01)

    def n_tokens(self) -> int:
        return sum(map(len, self.times))

    def stop(self) -> None:
        self.stopped = True
        for thread in self.threads:
            thread.join()

    def gaps(self, begin: float, end: float) -> list[float]:
        """Those that reach into the time given."""
        return [b - a for t in self.times for a, b in zip(t, t[1:]) if b > begin and a < end]


def read_bytes(server: Server) -> int:
    connection = server.connect()
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return next(int(float(line.split()[-1])) for line in text.splitlines()
                if "disk_read_bytes_total " in line and not line.startswith("#"))


def run(given, prompt: str, panel: list[str]) -> dict:
    context = given.prompt + given.prompt // 4 + 64
    group = Group(None, given.throttle * 1000000 if given.throttle else None, device_of(given.model))
    before = os.getpid()
    group.enter()  # the server inherits it; clients read nothing
    server = Server(given.command, given.model, "-c", str(context), "-t", given.threads, "-b", given.chunk,
                    "--expert-cache", given.cache, "--calibration", "none", "--parallel",
                    str(given.clients + 1), *panel, *given.more.split())
    try:
        streams = Streams(server, given.clients, given.prompt // 2)
        streams.await_all(8)
        read, n_tokens = read_bytes(server), streams.n_tokens()
        streams.await_all(40)
        alone = (read_bytes(server) - read) / (streams.n_tokens() - n_tokens)
        read = read_bytes(server)
        begin = time.monotonic()
        ask(server, prompt, 1, lambda: False)
        end = time.monotonic()
        read = read_bytes(server) - read
        streams.stop()
    finally:
        server.close()
        for path in group.paths:
            (path.parent / "cgroup.procs").write_text(str(before), encoding="utf-8")
        group.remove()
    gaps = sorted(streams.gaps(begin, end))
    return {"gaps": gaps, "seconds": end - begin, "read": read, "alone": alone,
            "tokens": sum(begin < at < end for t in streams.times for at in t)}


def median_of(rows: list[dict], what) -> float:
    """In MiB."""
    return statistics.median(map(what, rows)) / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--text", default=str(TREE / "bench/texts/shakespeare.txt"))
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--cache", default="40%")
    parser.add_argument("--chunk", default="512")
    parser.add_argument("--others", default="")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("-t", "--threads", default="2")
    parser.add_argument("--throttle", type=int)
    parser.add_argument("--more", default="")
    given = parser.parse_args()
    prompt = Text(given.command, given.model, given.text).of(given.prompt)
    settings = {"none": ["--panel", "1"], "by default": []}
    for part in filter(None, given.others.split(",")):
        settings[f"{part} % for others"] = ["--panel-others", part]
    runs: dict[str, list[dict]] = {name: [] for name in settings}
    for _ in range(given.repeat):
        for name, panel in settings.items():
            runs[name].append(run(given, prompt, panel))
    print("| panels | p50, ms | p99, ms | longest, ms | tokens of others a second | prompt, s | MiB read | "
          "a token of others | before the prompt |\n" + "|---" * 9 + "|")
    for name, rows in runs.items():
        gaps = sorted(g for r in rows for g in r["gaps"])
        seconds = statistics.median(r["seconds"] for r in rows)
        speed = statistics.median(r["tokens"] / r["seconds"] for r in rows)
        read = statistics.median(r["read"] for r in rows) / (1 << 20)
        print(f"| {name} | {1e3 * gaps[len(gaps) // 2]:.0f} | {1e3 * gaps[len(gaps) * 99 // 100]:.0f} | "
              f"{1e3 * gaps[-1]:.0f} | {speed:.1f} | {seconds:.1f} | {read:,.0f} | "
              f"{median_of(rows, lambda r: r['read'] / r['tokens']):.2f} | "
              f"{median_of(rows, lambda r: r['alone']):.2f} |")


if __name__ == "__main__":
    main()
