# SPDX-License-Identifier: MIT
"""The server's memory: connections beyond those that are planned are refused; requests are charged for
what they take before they take it; an answer that memory is short for waits, begins again if need be,
and is the same text. Arguments: the command, a model with a chat template."""
import json
import re
import socket
import sys
import threading

from serving import Server, check, end_of_test, wait_until

command, model = sys.argv[1:3]
MIB = 1 << 20


def ask(connection, path="/health"):
    connection.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
    return connection.recv(4000)


def connections(server, most):
    """Of so many open connections each is answered, one more is refused, until one of them goes."""
    kept = []
    for _ in range(most):
        kept.append(socket.create_connection(("127.0.0.1", server.port), timeout=120))
        answer = ask(kept[-1])
        check("a connection within the limit", answer.startswith(b"HTTP/1.1 200"), answer)
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as late:
        answer = ask(late)
        check("a connection beyond the limit", answer.startswith(b"HTTP/1.1 503") and
              b"Retry-After: " in answer and b"Connection: close" in answer and
              b'"overloaded"' in answer, answer)
    check("one within it meanwhile", ask(kept[0]).startswith(b"HTTP/1.1 200"))
    for connection in kept:
        connection.close()

    def answered():
        try:
            return server.get("/health")[0] == 200
        except OSError:
            return False
    check("answered again", wait_until(answered))


def requests(server):
    """A body that is small as text and large as JSON's objects is refused before it is read."""
    hostile = {"messages": [{"role": "user", "content": "hi"}], "metadata": [{}] * 100000}
    status, answer = server.post("/v1/chat/completions", json.dumps(hostile).encode())
    check("many objects", status == 413 and "--host-memory" in answer["error"]["message"],
          (status, answer))
    status, answer = server.post("/tokenize", {"content": "[{,:" * 50000})
    check("the same letters in a string", status == 200 and len(answer["tokens"]) > 1000, status)
    most = b'{"content": "' + b"x" * (3 * MIB)
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (3 * MIB + 15)
    held = []  # bodies that do not end: together as much as all requests may have
    words = "The cat sat on the mat. " * (2 * MIB // 24)
    for _ in range(5):
        held.append(socket.create_connection(("127.0.0.1", server.port), timeout=120))
        held[-1].sendall(head + most)
    refused = []

    def overloaded():
        status, answer = server.post("/tokenize", {"content": words})
        refused.append((status, answer if status != 200 else ""))
        return status == 503
    check("too many large bodies", wait_until(overloaded), refused[-1:])
    for connection in held:
        connection.close()
    check("room again", wait_until(
        lambda: server.post("/tokenize", {"content": words})[0] == 200))
    status, answer = server.post("/tokenize", {"content": "x" * MIB * 2})
    check("one word of 2 MiB", status == 413 and "--host-memory" in answer["error"]["message"],
          (status, answer))


BEGINNING = "Tom has 5 pens. The cat and the dog went out, and the day was good. " * 11
SAMPLED = {"ignore_eos": True, "temperature": 0.9, "seed": 3, "max_tokens": 150}
ASKED = [dict(SAMPLED, prompt="Anna. " + BEGINNING),
         dict(SAMPLED, prompt="Anna saw it. " + BEGINNING, grammar="root ::= [a-z ]{2000}"),
         dict(SAMPLED, prompt="Once. " + BEGINNING),
         dict(SAMPLED, prompt="Red. " + BEGINNING, stop=["no such text"])]


def serve_with(kib):
    return Server(command, model, "-c", "512", "--parallel", "4", "--speculate", "off",
                  "--host-memory", f"{kib}K")


def server_with_at_least(kib):
    """A server of four sessions with the least memory from `kib` on that is not refused, and that
    memory. Each refusal says how much more is wanted."""
    while kib < 4096 << 10:
        try:
            return serve_with(kib), kib
        except RuntimeError as error:
            least = re.search(r"least that works, (\d+) MiB", str(error))
            more = re.search(r"need ([0-9.]+) MiB .* and ([0-9.]+) MiB can be had", str(error))
            if not least and not more:
                raise
            kib = (max(kib + 64, int(least[1]) << 10) if least else
                   kib + max(64, int(1024 * (float(more[1]) - float(more[2])))))
    raise RuntimeError("no budget is enough")


def texts_with(server, wanted):
    """Four requests at a time, one with a grammar: their texts are those wanted, whatever the memory
    is short for. Ends the server. Returns the metrics."""
    try:
        got = [None] * len(ASKED)

        def client(i):
            if i % 2 == 0:
                events = server.stream("/v1/completions", ASKED[i])
                got[i] = "".join(c["text"] for e in events if e != "[DONE]" for c in e["choices"])
            else:
                status, answer = server.post("/v1/completions", ASKED[i])
                got[i] = answer["choices"][0]["text"] if status == 200 else answer
        threads = []
        for i in range(len(ASKED)):
            threads.append(threading.Thread(target=client, args=(i,)))
            threads[-1].start()
            wait_until(lambda: server.metrics()["requests_total"] == i + 1)
        for thread in threads:
            thread.join(300)
        after = server.metrics()
        for i, answer in enumerate(wanted):
            check(f"text {i} when memory is short", got[i] == answer["choices"][0]["text"],
                  (got[i], answer))
        check("none failed", after["requests_failed_total"] == 0, after)
        written = sum(answer["usage"]["completion_tokens"] for answer in wanted)
        check("tokens are counted once", after["written_tokens_total"] == written, (after, written))
    finally:
        status = server.close()
    check("the end", status == 0, server.log[-5:])
    return after


def short_of_memory(wanted):
    """Four sessions fit, but not with a grammar's tables. With the least memory some answers begin
    only when others have ended. With a little more all begin, but the last ones wait, and one gives
    its memory up and begins again."""
    server, kib = server_with_at_least(16 << 10)
    server.close()
    seen = set()
    for _ in range(32):
        # A process is not always as large as the one before: what was enough may be refused.
        server, kib = server_with_at_least(kib + 128)
        after = texts_with(server, wanted)
        seen |= {name for name in ("requests_paused_total", "requests_set_back_total")
                 if after[name] > 0}
        if len(seen) == 2:
            return
    check("answers that wait and begin again", False, seen)


def main():
    server = Server(command, model, "--parallel", "1")
    try:
        connections(server, 64 + 3)
        requests(server)
        wanted = [server.post("/v1/completions", body)[1] for body in ASKED]
    finally:
        status = server.close()
    check("exit status", status == 0, server.log[-5:])
    short_of_memory(wanted)
    end_of_test()


main()
