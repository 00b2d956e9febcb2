# SPDX-License-Identifier: MIT
"""The server's memory never exceeds its budget, whatever is sent: requests that are small and cost much,
one after the other and from 128 clients at a time, with logprobs and grammars, among clients that stall
and leave. What is measured is the peak of the process (VmHWM), which no clock and no load changes.
Arguments: the command, a model with a chat template; then, if given, requests of each of the 128 clients
(2) and a seed (1)."""
import http.client
import json
import os
import random
import re
import socket
import sys
import tempfile
import threading

from serving import Server, check, end_of_test, wait_until

command, model = sys.argv[1:3]
REQUESTS = int(sys.argv[3]) if len(sys.argv) > 3 else 2
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else 1
CLIENTS = 128
MIB = 1 << 20
WORDS = "The cat sat on the mat, and it was good. "
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def peak(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
        return int(re.search(r"VmHWM:\s+(\d+)", file.read())[1]) << 10


def user(text, **more):
    return dict({"messages": [{"role": "user", "content": text}]}, **more)


def deep(n):
    return json.loads("[" * n + "]" * n)


TOOLS = [{"type": "function", "function": {"name": f"tool_{i}", "parameters": {
    "type": "object", "properties": {f"p{k}": {"enum": [f"v{k}-{v}" for v in range(20)]}
                                     for k in range(10)}}}} for i in range(40)]
# Path, body, and the statuses that are right (503 always is, beside other requests).
HOSTILE = {
    "a word of 1 MB": ("/tokenize", {"content": "a" * 1000000}, {200, 413}),
    "a word of 4 MB": ("/tokenize", {"content": "a" * 4100000}, {413}),
    "a text of 900 KB": ("/tokenize", {"content": WORDS * 22000}, {200, 413}),
    "marks of 200 KB": ("/tokenize", {"content": "<|im_end|>" * 20000}, {200, 413}),
    "characters to compose": ("/tokenize", {"content": "e\u0301" * 60000}, {200, 413}),
    "ids of 800 KB": ("/detokenize", {"tokens": [255] * 200000}, {200, 413}),
    "ids that are long texts": ("/detokenize", {"tokens": list(range(1000)) * 8}, {200, 413}),
    "a message of 1 MB": (CHAT, user("x" * 1000000), {413, 400}),
    "a message of 400 KB of words": (CHAT, user(WORDS * 10000), {413, 400}),
    "10,000 messages": (CHAT, {"messages": [{"role": "user", "content": "a"}] * 10000}, {413, 400}),
    "1,500 messages": ("/apply-template", {"messages": [{"role": "user", "content": "a"}] * 1500},
                       {413, 200}),
    "a prompt to apply": ("/apply-template", user("\x01\"\\" * 20000), {200, 413}),
    "many objects": (CHAT, user("hi", metadata=[{}] * 50000), {413}),
    "many arrays": (CHAT, user("hi", metadata=[[]] * 100000), {413}),
    "nesting": (CHAT, user("hi", metadata=deep(60)), {200}),
    "too deep": (CHAT, user("hi", metadata=deep(100)), {400}),
    "an unknown field of 1 MB": (CHAT, user("hi", max_tokens=2, unknown="x" * 1000000), {200, 413}),
    "a name of 1 MB": (CHAT, user("hi", max_tokens=2, **{"x" * 1000000: 1}), {200, 413}),
    "a wrong stop of 900 KB": (CHAT, user("hi", stop=["x" * 900000]), {400, 413}),
    "ids for a prompt": (TEXT, {"prompt": [1] * 60000}, {400, 413}),
    "no JSON of 1 MB": (CHAT, b"{" + b"x" * 1000000, {400, 413}),
    "JSON that is cut": (CHAT, b'{"messages": "' + b"x" * 1000000, {400, 413}),
    "biases": (TEXT, {"prompt": "a", "max_tokens": 1,
                      "logit_bias": {str(i): 1 for i in range(5000)}}, {200, 400, 413}),
    "a grammar of spaces": (TEXT, {"prompt": "a", "grammar": 'root ::= (( "" %s){240}){250}' %
                                   (" " * 300000)}, {400, 413}),
    "a grammar of 100,000 instructions": (TEXT, {"prompt": "a", "max_tokens": 2,
                                                 "grammar": 'root ::= ("ab" "cd"){2000} ("e"){9}' +
                                                 ' ("fghijklmno"){2000} "x"{2000}'}, {200, 413}),
    "required and properties": (CHAT, user("hi", max_tokens=2, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": {
            "type": "object", "properties": {f"p{i}": {} for i in range(1500)},
            "required": [f"p{i}" for i in range(1500)]}}}), {200, 400, 413}),
    "an enum of 3,000": (CHAT, user("hi", max_tokens=2, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": {
            "enum": [f"value {i}" for i in range(3000)]}}}), {200, 400, 413}),
    "tools": (CHAT, user("hi", max_tokens=2, tools=TOOLS, tool_choice="required"), {200, 400, 413}),
    "four answers with logprobs": (CHAT, user("hi", n=4, logprobs=True, top_logprobs=20,
                                              max_tokens=100, ignore_eos=True), {200, 413}),
    "sixteen answers with logprobs": (CHAT, user("hi", n=16, logprobs=True, top_logprobs=20,
                                                 max_tokens=4, ignore_eos=True), {200}),
    "a text with logprobs": (TEXT, {"prompt": "Once", "logprobs": 20, "max_tokens": 60,
                                    "ignore_eos": True}, {200, 413}),
    "a stream with logprobs": (TEXT, {"prompt": "Once", "logprobs": 20, "max_tokens": 60,
                                      "ignore_eos": True, "stream": True}, {200, 413}),
    "an answer by a grammar": (TEXT, {"prompt": "Once", "grammar": "root ::= [a-z ]{30}"},
                               {200, 503}),
    "a question": (CHAT, user("What is a cat?", max_tokens=20), {200}),
}


def ask(server, name, others):
    path, body, right = HOSTILE[name]
    try:
        status, headers, data = server.request("POST", path, body)
    except (OSError, http.client.HTTPException) as error:
        # One that is too large is refused before it has come.
        check(f"{name}: an answer", others or right == {413}, repr(error))
        return
    check(f"{name}: the status", status in right or (others and status == 503),
          (status, data[:300]))
    if headers["Content-Type"] == "application/json":
        answer = json.loads(data)
        check(f"{name}: an answer or an error", ("error" in answer) == (status != 200),
              data[:300])


def alone(mib, *options):
    """Each of them, to a server that does nothing else, and of reports on tokens more than fit."""
    server = Server(command, model, "--host-memory", f"{mib}M", *options)
    try:
        before = peak(server)
        for name in HOSTILE:
            ask(server, name, False)
            check(f"{name}: the peak at {mib} MiB", peak(server) <= mib * MIB,
                  (peak(server) / MIB, before / MIB))
        logprobs_are_whole(server)
        status, answer = server.post(CHAT, user("hi", n=16, logprobs=True, top_logprobs=20,
                                                max_tokens=1000))
        check("reports that will not fit", status == 413 or mib > 64, (status, answer))
        metrics = server.metrics()
        check("what was charged is released", wait_until(
            lambda: server.metrics()["request_bytes"] == 0), metrics)
        check("charges within their limits",
              metrics["request_bytes_peak"] <= metrics["request_bytes_limit"] and
              metrics["reading_bytes_peak"] <= metrics["reading_bytes_limit"], metrics)
        print(f"{mib} MiB, one after the other: {before / MIB:.1f} at the start, peak "
              f"{peak(server) / MIB:.1f}; {metrics['reading_steps_peak']} steps at most")
    finally:
        status = server.close()
    check("the end", status == 0, server.log[-5:])


def logprobs_are_whole(server):
    """An answer that is written out as it is sent has the reports of a stream."""
    for path, body in ((CHAT, user("Hi", n=2, logprobs=True, top_logprobs=3)),
                       (TEXT, {"prompt": "Once", "logprobs": 3, "n": 2})):
        body.update(max_tokens=30, seed=5, temperature=0.9, ignore_eos=True)
        status, whole = server.post(path, body)
        check("logprobs: the whole answer", status == 200, whole)
        told = [{} for _ in whole["choices"]]
        for event in server.stream(path, body):
            for choice in event["choices"] if event != "[DONE]" else []:
                for key, values in (choice["logprobs"] or {}).items():
                    told[choice["index"]].setdefault(key, [])
                    told[choice["index"]][key] += values or []
        for choice, parts in zip(whole["choices"], told):
            logprobs = {k: v or [] for k, v in choice["logprobs"].items()}
            check("logprobs: those of a stream", logprobs == parts, (logprobs, parts))
            check("logprobs: one for each token", all(len(v) in (30, 0)
                                                      for v in logprobs.values()), logprobs)


def stall(server, chance):
    """A client that sends half a body, or reads nothing of a stream, and leaves."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        if chance.random() < 0.5:
            s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n" +
                      b'{"content": "' + b"x" * chance.randrange(800000))
        else:
            body = json.dumps(HOSTILE["a stream with logprobs"][1]).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" %
                      len(body) + body)
            s.recv(10)


def client(server, number):
    chance = random.Random(SEED * 1000 + number)
    for _ in range(REQUESTS):
        try:
            if chance.random() < 0.15:
                stall(server, chance)
            elif chance.random() < 0.1:
                server.request("GET", chance.choice(["/live", "/props", "/slots", "/metrics", "/"]))
            else:
                ask(server, chance.choice(list(HOSTILE)), True)
        except (OSError, http.client.HTTPException):
            pass  # too many connections


def together(mib, parallel):
    server = Server(command, model, "--host-memory", f"{mib}M", "--parallel", str(parallel), "-c",
                    "512")
    try:
        before = peak(server)
        threads = [threading.Thread(target=client, args=(server, i)) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check(f"the peak with {CLIENTS} clients", peak(server) <= mib * MIB, peak(server) / MIB)
        check("all is released", wait_until(lambda: server.metrics()["request_bytes"] == 0 and
                                            server.metrics()["sessions_active"] == 0),
              server.metrics())
        ask(server, "a question", False)
        print(f"{mib} MiB, {CLIENTS} clients: {before / MIB:.1f} at the start, peak "
              f"{peak(server) / MIB:.1f}")
    finally:
        status = server.close()
    check("the end", status == 0, server.log[-5:])


def in_a_group():
    """With the budget that a memory control group of 300 MiB gives, the server is not killed. Skips where
    such a group cannot be made."""
    group = f"/sys/fs/cgroup/memory/moe-serve-{os.getpid()}"
    try:
        os.mkdir(group)
        with open(f"{group}/memory.limit_in_bytes", "w", encoding="ascii") as file:
            file.write("300M")
    except OSError as error:
        print(f"no control group: {error}")
        return
    with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as wrapper:
        wrapper.write(f'#!/bin/sh\necho $$ > {group}/cgroup.procs\nexec {command} "$@"\n')
    os.chmod(wrapper.name, 0o700)
    try:
        server = Server(wrapper.name, model)
        for name in HOSTILE:
            ask(server, name, False)
        print(f"a group of 300 MiB: peak {peak(server) / MIB:.1f}")
        status = server.close()
        check("in a group: the end", status == 0, (status, server.log[-5:]))
    finally:
        os.remove(wrapper.name)
        os.rmdir(group)


def main():
    alone(64, "-c", "2048", "-b", "64", "--parallel", "2")
    if REQUESTS > 2:
        alone(256)
    together(128, 24)
    in_a_group()
    end_of_test()


main()
