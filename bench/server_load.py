# SPDX-License-Identifier: MIT
"""Many clients at a time, some of which leave or dawdle: every text must be that of `run`, memory must
stay in the budget, and nothing may be left over. Prints a row for each number of clients.

    python3 bench/server_load.py build/moe-offload model.gguf --clients 1,8,32,128 --seconds 600 \\
        -- --host-memory 116M -c 512

Options after `--` go to `serve`. Requests are raw prompts and turns, greedy and sampled, some held to
a JSON schema, as streams and whole. Of the clients that leave some do so before the first token, some
in the text, some by shutting down their sending side alone. With --url an OpenAI-compatible server
that is already up is asked instead: texts are then not compared, and nobody leaves.

    python3 bench/server_load.py --url http://127.0.0.1:8080 --clients 8,32 --seconds 60 --whole

--whole compares throughput: answers of exactly --tokens tokens to prompts that no other request has,
each in one object, so that the clients cost next to nothing."""
import argparse
import http.client
import json
import os
import random
import socket
import statistics
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


SCHEMA = {"type": "object", "required": ["name", "age"],
          "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}}}


class Case:
    """A request, and the bytes of its text."""

    def __init__(self, prompt, seed, n, chat=False, schema=False, stream=True):
        self.prompt, self.is_chat = prompt, chat
        self.path = "/v1/chat/completions" if chat else "/v1/completions"
        self.body = {"max_tokens": n, "stream": stream, "seed": seed,
                     "temperature": 0 if seed == 0 else 0.9}
        self.body.update({"messages": [{"role": "user", "content": prompt}]} if chat
                         else {"prompt": prompt})
        self.flags = ["-n", str(n)] + (["--temp", "0"] if seed == 0
                                       else ["--temp", "0.9", "-s", str(seed)])
        if schema:
            self.body["response_format"] = {"type": "json_schema",
                                            "json_schema": {"name": "person", "schema": SCHEMA}}
            self.flags += ["--json-schema", json.dumps(SCHEMA)]
        self.text = None


def cases_of(n):
    """Prompts as they are and as turns, greedy and sampled, as streams and whole, held and free."""
    out = [Case(p, seed, n, chat=(i + seed) % 2 == 1, stream=(i + seed) % 3 != 2)
           for i, p in enumerate(PROMPTS) for seed in (0, 1, 2)]
    return out + [Case(PROMPTS[2], seed, n, chat=True, schema=True, stream=seed == 0)
                  for seed in (0, 1)]


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.firsts, self.gaps, self.wrong = [], [], []
        self.done = self.left = self.refused = self.tokens = self.failed = 0


class ServerError(Exception):
    """An error in place of the rest of a stream."""


class Habit:
    """What a client does with a request besides reading its answer."""

    def __init__(self, chance, leaves, dawdles):
        self.leave_at = chance.randint(0, 20) if chance.random() < leaves else -1
        self.half = self.leave_at > 0 and chance.random() < 0.3  # shuts its sending side down
        self.pause = chance.uniform(0, 0.1) if chance.random() < dawdles else 0


def piece_of(data):
    """The text of a stream's event, or of a whole answer."""
    answer = json.loads(data)
    if "error" in answer:
        raise ServerError(answer["error"]["message"])
    choice = answer["choices"][0:1]
    if not choice:
        return ""
    part = choice[0].get("delta", choice[0].get("message", choice[0]))
    return part.get("content", part.get("text")) or ""


def read_stream(connection, answer, habit, began, tally):
    """The text, its pieces, and whether it was left."""
    text, n, last, gaps = "", 0, None, []
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        try:
            piece = piece_of(line[6:])
        except ServerError:
            if habit.half and n >= habit.leave_at:
                break  # who shuts the sending side down has left
            raise
        if not piece:
            continue
        now = time.monotonic()
        gaps.append(now - (began if last is None else last))
        text, n, last = text + piece, n + 1, now
        if n == habit.leave_at:
            if not habit.half:
                break
            connection.sock.shutdown(socket.SHUT_WR)
        if habit.pause:
            time.sleep(habit.pause)
    left = 0 <= habit.leave_at <= n
    if not habit.pause:
        with tally.lock:
            tally.firsts += gaps[:1]
            tally.gaps += gaps[1:]
    return text, n, left


def one_request(address, case, habit, tally):
    """Reads an answer, or leaves; returns the status."""
    connection = http.client.HTTPConnection(*address, timeout=600)
    try:
        connection.request("POST", case.path, json.dumps(case.body).encode(),
                           {"Content-Type": "application/json"})
        began = time.monotonic()
        if habit.leave_at == 0:
            with tally.lock:
                tally.left += 1
            return 200
        answer = connection.getresponse()
        if answer.status != 200:
            answer.read()
            with tally.lock:
                tally.refused += answer.status == 503
                tally.failed += answer.status != 503
            return answer.status
        if case.body["stream"]:
            text, n, left = read_stream(connection, answer, habit, began, tally)
        else:
            data = answer.read()
            text, n, left = piece_of(data), json.loads(data)["usage"]["completion_tokens"], False
    except Exception as error:
        with tally.lock:
            tally.failed += 1
            tally.wrong.append((case.body, repr(error), "an answer"))
        return 0
    finally:
        connection.close()
    with tally.lock:
        tally.tokens += n
        tally.left += left
        tally.done += not left
        if case.text is not None and not (case.text.startswith(text) if left
                                          else text == case.text):
            tally.wrong.append((case.body, text, case.text))
    return 200


def client(address, next_case, options, seed, until, tally):
    chance = random.Random(seed)
    while time.monotonic() < until:
        habit = Habit(chance, options.leaves, options.dawdles)
        if one_request(address, next_case(chance), habit, tally) != 200:
            time.sleep(chance.uniform(0.2, 1.0))


def share(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] * 1000 if values else None


def rounded(value):
    return None if value is None else round(value, 1)


def kept_by(process):
    """Open files, threads, memory, and the most memory of a process."""
    with open(f"/proc/{process}/status", encoding="ascii") as status:
        rows = dict(line.split(":", 1) for line in status if ":" in line)
    return (len(os.listdir(f"/proc/{process}/fd")), int(rows["Threads"]),
            int(rows["VmRSS"].split()[0]) << 10, int(rows["VmHWM"].split()[0]) << 10)


def load(address, next_case, n_clients, options, server=None):
    tally = Tally()
    began = time.monotonic()
    threads = [threading.Thread(target=client, args=(address, next_case, options, i,
                                                     began + options.seconds, tally))
               for i in range(n_clients)]
    for thread in threads:
        thread.start()
    resident = []
    while any(t.is_alive() for t in threads):
        time.sleep(0.5)
        if server is not None:
            resident.append(server.metrics()["resident_bytes"])
    spent = time.monotonic() - began
    row = {"clients": n_clients, "seconds": round(spent, 1), "answers": tally.done,
           "left": tally.left, "refused": tally.refused, "failed": tally.failed,
           "wrong": len(tally.wrong),
           "tokens_per_s" if options.whole else "pieces_per_s": round(tally.tokens / spent, 1)}
    for name, values in (("first", tally.firsts), ("gap", tally.gaps)):
        row[name + "_p50_ms"] = rounded(share(values, .5))
        row[name + "_p99_ms"] = rounded(share(values, .99))
    if server is not None:
        row["set_back"] = server.metrics()["requests_set_back_total"]
        third = max(1, len(resident) // 3)
        row["resident_mib"] = max(resident) >> 20
        row["grown_mib"] = round((statistics.median(resident[-third:]) -
                                  statistics.median(resident[third:2 * third] or resident)) / 2**20,
                                 1)
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
    cases = cases_of(options.tokens)
    for case in cases:
        case.text = run(options.command, options.model, case.prompt, *case.flags,
                        chat=case.is_chat).decode()
    server = Server(options.command, options.model, "--parallel", str(options.parallel), *extra)
    address = ("127.0.0.1", server.port)
    failed = False
    try:
        budget = server.get("/live")[1]["budget_bytes"]
        one_request(address, cases[0], Habit(random.Random(0), 0, 0), Tally())
        before = kept_by(server.process.pid)
        for n in options.clients:
            row, tally = load(address, lambda chance: chance.choice(cases), n, options, server)
            now = settle(server)
            failed |= bool(tally.wrong) or tally.failed > 0 or (row["resident_mib"] << 20) > budget
            failed |= now["sessions_active"] != 0
        time.sleep(1)
        files, threads, memory, most = kept_by(server.process.pid)
        print(f"budget {budget / 2**20:.1f} MiB, most of the process {most / 2**20:.1f} MiB, at the "
              f"end {memory / 2**20:.1f}; open files {before[0]} before, {files} after; threads "
              f"{before[1]} before, {threads} after")
        failed |= files > before[0] + 2 or threads > before[1] + 2 or most > budget
    finally:
        failed |= server.close() != 0
    print("FAILED" if failed else "passed")
    return failed


def words(chance, n):
    """A prompt like no other."""
    known = "".join(PROMPTS).replace(".", " ").replace(",", " ").split()
    return " ".join(chance.choice(known) for _ in range(n))


def other_server(options):
    def next_case(chance):
        case = Case(words(chance, options.prompt_words), chance.randint(1, 1 << 30), options.tokens,
                    stream=not options.whole)
        case.body.update(top_k=40, top_p=0.95, min_p=0.05)
        if options.whole:
            case.body["ignore_eos"] = True
        if options.greedy:
            case.body["temperature"] = 0
        return case

    at = urllib.parse.urlsplit(options.url)
    options.leaves = options.dawdles = 0
    for n in options.clients:
        load((at.hostname, at.port), next_case, n, options)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", nargs="?")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--clients", default="1,8,32,128",
                        type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--seconds", type=float, default=120, help="for each number of clients")
    parser.add_argument("--tokens", type=int, default=40, help="of an answer")
    parser.add_argument("--parallel", type=int, default=32)
    parser.add_argument("--leaves", type=float, default=0.2, help="share of requests that are left")
    parser.add_argument("--dawdles", type=float, default=0.05, help="share that is read slowly")
    parser.add_argument("--url")
    parser.add_argument("--whole", action="store_true", help="with --url: no streams")
    parser.add_argument("--greedy", action="store_true", help="with --url: temperature 0")
    parser.add_argument("--prompt-words", type=int, default=40, help="with --url")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:end])
    sys.exit(own_server(options, sys.argv[end + 1:]) if options.url is None
             else other_server(options))


main()
