#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Kills workers at random points and compares every text: whether any byte is wrong, any request hangs or is lost.

    python3 worker_kills.py COMMAND MODEL [--kills 1000] [--workers 8] [--clients 4] [-n 48] [--seed 1]

A server has workers that hold a quarter of the experts each (with 8 workers each expert is with two). Clients ask it for
texts all the time, streamed, at temperature 0, and compare them with those of a server alone. Meanwhile workers that
answer are killed (SIGKILL; one time in four they are stopped first, so that the server waits for them) and started again
at the same address. Hang: no byte of an answer for two minutes. Lost: an answer that ends in any other way than whole.
If this program itself stood still for more than two seconds (all of it was stopped from outside), what failed then is
counted apart, and asked for again.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

PROMPTS = ["Once upon a time", "Tom has 5 pens. He buys 7 more.", "What is 12 times 7?", "The small dog ran", "Anna and Ben",
           "A red ball", "One day a girl", "There are 8 boxes with 3 apples in each."]
PATIENCE = 120


class Worker:
    """A process that is started again at the same address."""

    def __init__(self, given, number: int) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{s.getsockname()[1]}"
        self.command = [given.command, "worker", "-m", given.model, "--share", f"{number % 4 + 1}/4", "-t", "1", "--listen",
                        self.address]
        self.start()

    def start(self) -> None:
        while True:
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            if self.process.stdout.readline():
                return
            self.process.wait()  # the address is not free yet

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Ticks:
    """Notes when this program was stopped: a tick that comes late."""

    def __init__(self) -> None:
        self.stops = 0
        threading.Thread(target=self.tick, daemon=True).start()

    def tick(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(0.1)
            now = time.monotonic()
            self.stops += now - last > 2
            last = now


class Server:
    def __init__(self, given, *options: str) -> None:
        self.process = subprocess.Popen(
            [given.command, "serve", "-m", given.model, "--port", "0", "-t", "1", "-c", "512", "--parallel", str(given.clients),
             "--expert-cache", "25%", "--warm-start", "off", *options], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
            if found:
                break
        self.port = int(found.group(1))
        threading.Thread(target=self.drain, daemon=True).start()

    def drain(self) -> None:
        for _ in self.process.stderr:
            pass

    def close(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def ask(self, prompt: str, n: int) -> str:
        """The text, streamed. Raises what the client saw go wrong."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True}))
        answer = connection.getresponse()
        text, done, line = "", False, b""
        for line in answer:
            if line.startswith(b"data: {") and b'"choices"' in line:
                text += json.loads(line[6:])["choices"][0]["text"]
            done = done or line.startswith(b"data: [DONE]")
        connection.close()
        if answer.status != 200 or not done:
            raise ValueError(f"status {answer.status}, {'' if done else 'not '}ended: {line!r}")
        return text

    def metrics(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def ready(self) -> list[int]:
        """The numbers of the workers that answer, as the server sees it."""
        return [int(number) - 1 for number in
                re.findall(r'^moe_worker_ready\{worker="[^"]*",number="(\d+)"\} 1$', self.metrics(), re.M)]

    def count(self, name: str) -> int:
        return int(re.search(rf"^moe_{name} (\d+)$", self.metrics(), re.M).group(1))


class Clients:
    """Threads that ask for texts until they are told to stop."""

    def __init__(self, given, server: Server, wanted: list[str]) -> None:
        self.given, self.server, self.wanted = given, server, wanted
        self.texts = self.bytes = self.wrong = self.hangs = self.lost = self.stopped = 0
        self.ticks = Ticks()
        self.lock, self.stops = threading.Lock(), False
        self.threads = [threading.Thread(target=self.work, args=(i,)) for i in range(given.clients)]
        for thread in self.threads:
            thread.start()

    def work(self, turn: int) -> None:
        while not self.stops:
            turn += 1
            which = turn % len(PROMPTS)
            text, hung, lost, stops = "", False, False, self.ticks.stops
            try:
                text = self.server.ask(PROMPTS[which], self.given.n)
            except TimeoutError:
                hung = True
            except (OSError, ValueError, http.client.HTTPException) as problem:
                lost = True
                print(f"{time.strftime('%H:%M:%S')} lost: {problem!r}", file=sys.stderr)
            time.sleep(0.3 if hung or lost else 0)  # a tick may be due
            with self.lock:
                if (hung or lost) and self.ticks.stops != stops:
                    self.stopped += 1
                    continue
                self.texts += 1
                self.bytes += len(text.encode())
                self.hangs += hung
                self.lost += lost
                self.wrong += not hung and not lost and text != self.wanted[which]

    def end(self) -> None:
        self.stops = True
        for thread in self.threads:
            thread.join()


def kill_workers(given, server: Server, workers: list[Worker], chance: random.Random) -> int:
    """Kills as many as asked for; returns how many of them were stopped before."""
    stopped = 0
    for _ in range(given.kills):
        while not (ready := server.ready()):
            time.sleep(0.02)
        worker = workers[chance.choice(ready)]
        time.sleep(chance.random() * 0.05)  # anywhere within a token
        if chance.random() < 0.25:
            worker.process.send_signal(signal.SIGSTOP)
            time.sleep(chance.random() * 0.3)
            stopped += 1
        worker.kill()
        worker.start()
    return stopped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("-n", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.environ["UCX_TLS"] = "tcp"  # as between machines
    alone = Server(given)
    wanted = [alone.ask(prompt, given.n) for prompt in PROMPTS]
    alone.close()
    workers = [Worker(given, i) for i in range(given.workers)]
    server = Server(given, "--workers", ",".join(w.address for w in workers), "--worker-compute", "on", "--worker-timeout",
                    "0.1")
    begin = time.monotonic()
    clients = Clients(given, server, wanted)
    try:
        stopped = kill_workers(given, server, workers, random.Random(given.seed))
        clients.end()
        seconds = time.monotonic() - begin
        counts = [server.count(name) for name in
                  ("worker_experts_total", "worker_experts_lost_total", "workers_lost_total")]
        status = server.close()
    finally:
        clients.stops = True
        for worker in workers:
            worker.kill()
        server.process.kill()
    print(f"{given.kills} kills ({stopped} of them stopped before) of {given.workers} workers in {seconds:.0f} s; the server "
          f"left a worker out {counts[2]} times, had {counts[0]} experts computed by workers, and {counts[1]} here in their place")
    print(f"{clients.texts} texts, {clients.bytes} bytes: {clients.wrong} wrong, {clients.hangs} hangs, {clients.lost} lost; the "
          f"server ended with status {status}; {clients.stopped} failed while all of this was stopped from outside")
    sys.exit(clients.wrong + clients.hangs + clients.lost + status > 0 or counts[2] == 0)


main()
