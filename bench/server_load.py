# SPDX-License-Identifier: MIT
"""Many clients at a time, some of which leave in the middle: every text must be that of `run`, memory
must stay in the budget, and nothing may be left over. Prints a row for each number of clients.

    python3 bench/server_load.py build/moe-offload model.gguf --clients 1,8,32,128 --seconds 120

Options after `--` go to `serve` and to `run`. With --url an OpenAI-compatible server that is already
up is asked instead; texts are then not compared, and nobody leaves."""
import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "server"))
from serving import Server, run  # noqa: E402

PROMPTS = [
    "Anna has 3 boxes with 12 apples in each. She gives 8 apples to her friend. "
    "How many apples does she have left?",
    "Once upon a time", "Tom has 5 pens. He buys 7 more. How many pens does he have?",
    "The cat and the dog went out, and the day was", "A train has 4 cars with 20 seats in each.",
    "To be, or not to be"]


class Case:
    """A request, and the bytes of its text."""

    def __init__(self, prompt, seed, n):
        self.body = {"prompt": prompt, "max_tokens": n, "stream": True, "seed": seed,
                     "temperature": 0 if seed == 0 else 0.9}
        self.flags = ["-n", str(n)] + (["--temp", "0"] if seed == 0
                                       else ["--temp", "0.9", "-s", str(seed)])
        self.text = None


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.firsts, self.gaps, self.wrong = [], [], []
        self.done = self.left = self.refused = self.tokens = self.failed = 0


def one_request(address, case, leave_at, tally):
    """Reads a stream's text; leave_at: after so many events the connection is closed."""
    connection = http.client.HTTPConnection(*address, timeout=600)
    began = last = time.monotonic()
    text, n, first, gaps = "", 0, None, []
    try:
        connection.request("POST", "/v1/completions", json.dumps(case.body).encode(),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            answer.read()
            with tally.lock:
                tally.refused += answer.status == 503
                tally.failed += answer.status != 503
            return answer.status
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            piece = event["choices"][0]["text"] if event.get("choices") else ""
            if not piece:
                continue
            now = time.monotonic()
            if first is None:
                first = now - began
            else:
                gaps.append(now - last)
            last = now
            text += piece
            n += 1
            if n == leave_at:
                break
    except OSError:
        with tally.lock:
            tally.failed += 1
        return 0
    finally:
        connection.close()
    with tally.lock:
        if first is not None:
            tally.firsts.append(first)
        tally.gaps += gaps
        tally.tokens += n
        tally.left += n == leave_at
        tally.done += n != leave_at
        whole = case.text is None or (case.text.startswith(text) if n == leave_at
                                      else text == case.text)
        if not whole:
            tally.wrong.append((case.body, text, case.text))
    return 200


def client(address, cases, seed, until, leaves, tally):
    chance = random.Random(seed)
    while time.monotonic() < until:
        leave_at = chance.randint(1, 20) if chance.random() < leaves else -1
        if one_request(address, chance.choice(cases), leave_at, tally) != 200:
            time.sleep(chance.uniform(0.2, 1.0))


def share(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] * 1000 if values else float("nan")


def kept_by(process):
    """Open files, threads and the most memory of a process."""
    with open(f"/proc/{process}/status", encoding="ascii") as status:
        rows = dict(line.split(":", 1) for line in status if ":" in line)
    return (len(os.listdir(f"/proc/{process}/fd")), int(rows["Threads"]),
            int(rows["VmHWM"].split()[0]) << 10)


def load(address, cases, n_clients, seconds, leaves, server=None):
    tally = Tally()
    began = time.monotonic()
    threads = [threading.Thread(target=client, args=(address, cases, i, began + seconds, leaves,
                                                     tally)) for i in range(n_clients)]
    for thread in threads:
        thread.start()
    most = 0
    while any(t.is_alive() for t in threads):
        time.sleep(0.5)
        if server is not None:
            most = max(most, server.metrics()["resident_bytes"])
    spent = time.monotonic() - began
    row = {"clients": n_clients, "seconds": round(spent, 1), "answers": tally.done,
           "left": tally.left, "refused": tally.refused, "failed": tally.failed,
           "wrong": len(tally.wrong), "pieces_per_s": round(tally.tokens / spent, 1),
           "first_p50_ms": round(share(tally.firsts, .5)),
           "first_p99_ms": round(share(tally.firsts, .99)),
           "gap_p50_ms": round(share(tally.gaps, .5), 1),
           "gap_p99_ms": round(share(tally.gaps, .99), 1), "resident_mb": most >> 20}
    print(json.dumps(row), flush=True)
    for body, text, wanted in tally.wrong[:3]:
        print("WRONG", body, repr(text), "in place of", repr(wanted))
    return row, tally


def settle(server):
    """Waits until every session is free or kept."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        now = server.metrics()
        if now["sessions_active"] == 0 and now["requests_waiting"] == 0:
            return now
        time.sleep(0.1)
    return now


def own_server(options, extra):
    cases = [Case(p, seed, options.tokens) for p in PROMPTS for seed in (0, 1, 2)]
    flags = [f for f in extra]
    for case in cases:
        case.text = run(options.command, options.model, case.body["prompt"], *case.flags).decode()
    server = Server(options.command, options.model, "--parallel", str(options.parallel),
                    *flags)
    failed = False
    try:
        budget = server.get("/live")[1]["budget_bytes"]
        one_request(("127.0.0.1", server.port), cases[0], -1, Tally())
        before = kept_by(server.process.pid)
        for n in options.clients:
            row, tally = load(("127.0.0.1", server.port), cases, n, options.seconds, options.leaves,
                              server)
            now = settle(server)
            failed |= bool(tally.wrong) or tally.failed > 0 or (row["resident_mb"] << 20) > budget
            failed |= now["sessions_active"] != 0
        time.sleep(1)
        files, threads, memory = kept_by(server.process.pid)
        print(f"budget {budget >> 20} MiB, most of the process {memory >> 20} MiB; open files "
              f"{before[0]} before, {files} after; threads {before[1]} before, {threads} after")
        failed |= files > before[0] + 2 or threads > before[1] + 2
    finally:
        failed |= server.close() != 0
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", nargs="?")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--clients", default="1,8,32,128",
                        type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--tokens", type=int, default=40, help="of an answer")
    parser.add_argument("--parallel", type=int, default=32)
    parser.add_argument("--leaves", type=float, default=0.2, help="share of clients that leave")
    parser.add_argument("--url")
    extra = sys.argv[sys.argv.index("--") + 1:] if "--" in sys.argv else []
    options = parser.parse_args([a for a in sys.argv[1:sys.argv.index("--")]
                                 if a] if "--" in sys.argv else None)
    if options.url is None:
        sys.exit(own_server(options, extra))
    at = urllib.parse.urlsplit(options.url)
    for n in options.clients:
        load((at.hostname, at.port), [Case(p, s, options.tokens) for p in PROMPTS for s in (0, 1, 2)],
             n, options.seconds, 0)


main()
