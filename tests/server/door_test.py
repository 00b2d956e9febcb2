# SPDX-License-Identifier: MIT
"""Who may come in, and who may stay: heads that come slowly, heads that can be read in two ways, names
that only look like this machine, a process without descriptors, and clients that leave while what they
sent is taken apart. Arguments: the command, a model with a chat template."""
import json
import os
import random
import re
import resource
import socket
import sys
import tempfile
import threading

from serving import Server, check, end_of_test, wait_until

command, model = sys.argv[1:3]
KEY = {"Authorization": "Bearer secret"}


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


# ---- Heads that can be read in two ways ----

TWO_WAYS = [b"Content-Length: 2\r\nContent-Length: 2", b"Content-Length: 2\r\ncontent-length: 30",
            b"Content-Length: 2\r\nTransfer-Encoding: chunked",
            b"Transfer-Encoding: chunked\r\nContent-Length: 2", b"Content-Length : 2",
            b"Content-Length\t: 2", b"Transfer-Encoding : chunked", b"Content-Length: +2",
            b"Content-Length: 2, 2", b"Content-Length: 0x2", b"Content-Length:",
            b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            b"Transfer-Encoding: identity, chunked", b"Transfer-Encoding: xchunked",
            b"Host: localhost\r\nContent-Length: 2", b"X Y: 1\r\nContent-Length: 2",
            b"(X): 1\r\nContent-Length: 2"]


def smuggling(server):
    """Such a head is refused, and what follows on the connection is not read as a request."""
    hidden = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for lines in TWO_WAYS:
        got = server.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n\r\n{}" +
                         hidden)
        check(f"head with {lines}", got.startswith(b"HTTP/1.1 400") and b'"ok"' not in got, got)
    body = b'{"content": "a"}'
    for lines, sent in ((b"Content-Length: %d" % len(body), body),
                        (b"Transfer-Encoding: chunked", b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))):
        got = server.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
                         lines + b"\r\n\r\n" + sent)
        check(f"head with {lines}", got.startswith(b"HTTP/1.1 200"), got)


def hosts(server):
    for host, status in ((b"localhost", 200), (b"localhost:8080", 200), (b"127.0.0.1", 200),
                         (b"127.5.5.5:1", 200), (b"[::1]", 200), (b"[::1]:80", 200),
                         (b"[::1].evil.com", 403), (b"[::1]evil.com:80", 403), (b"[::1", 403),
                         (b"[::1]:80.evil.com", 403), (b"localhost:80.evil.com", 403),
                         (b"localhost.evil.com", 403), (b"127.0.0.1.evil.com", 403),
                         (b"127.0.0.1:evil.com", 403), (b"evil.com", 403)):
        got = server.raw(b"GET /health HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
        check(f"Host: {host}", got.startswith(b"HTTP/1.1 %d" % status), got)


# ---- Heads that come slowly ----

def slow_heads(server, headers):
    """However many connections send a byte now and then, a newcomer is answered; and each of them has
    an end, though it never falls silent."""
    first = connect(server)
    done = threading.Event()

    def drip():
        try:
            while not done.wait(1):
                first.send(b"x")
        except OSError:
            pass
    first.send(b"GET /health HTTP/1.1\r\nX: ")
    dripping = threading.Thread(target=drip)
    dripping.start()
    check("a head that takes too long", first.recv(100) == b"")
    done.set()
    dripping.join()
    check("it is counted", server.metrics_with(headers)["connections_late_total"] >= 1)
    held = []
    for i in range(300):
        held.append(connect(server))
        held[-1].send(b"GET /health HTTP/1.1\r\n" if i % 2 else b"G")
        if i % 30 == 29:
            status, _ = server.get("/health", headers)
            check(f"a newcomer beside {i + 1} slow heads", status == 200, status)
    check("they make room", server.metrics_with(headers)["connections_evicted_total"] >= 150)
    for connection in held:
        connection.close()


def keys(server):
    """Connections without a key, idle or not, do not shut out who has one; and those with one are not
    closed for newcomers."""
    owner = connect(server)
    request = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n\r\n"
    owner.send(request)
    check("the owner", owner.recv(4000).startswith(b"HTTP/1.1 200"))
    held = []
    for _ in range(200):
        held.append(connect(server))
        held[-1].send(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        check("no key", held[-1].recv(4000)[9:12] in (b"401", b"503", b""))
    check("the holder of the key comes in", server.get("/v1/models", KEY)[0] == 200)
    owner.send(request)
    check("the owner is still there", owner.recv(4000).startswith(b"HTTP/1.1 200"))
    for connection in held:
        connection.close()
    owners = []  # all places, with the key: some more are kept for it
    while len(owners) < 200:
        owners.append(connect(server))
        owners[-1].send(request)
        if b"Connection: close" in owners[-1].recv(4000):
            break
    check("places are kept for the key", 60 < len(owners) < 100, len(owners))
    owners.pop().close()
    check("one of them", wait_until(lambda: server.get("/v1/models", KEY)[0] == 200))
    status, answer = server.get("/health")
    check("none without it", status == 503 and answer["error"]["code"] == "overloaded", status)
    for connection in owners:
        connection.close()
    owner.close()


# ---- No descriptors ----

def cpu_ticks(server):
    with open(f"/proc/{server.process.pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def descriptors(server):
    """Out of descriptors, the server waits for some, and does not spin. Between two of its waits it
    does next to nothing."""
    def numbers():
        return sorted(int(fd) for fd in os.listdir(f"/proc/{server.process.pid}/fd"))
    # Connections of the cases before that are still open would make the limit too high.
    check("the others are gone", wait_until(lambda: numbers()[-1] <= len(numbers())))
    asking = connect(server)

    def paused():
        asking.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        data = b""
        while b"\nmoe_reading_stopped_total " not in data or not data.endswith(b"\n"):
            data += asking.recv(65536)
        return int(re.search(rb"\nmoe_accepting_paused_total (\d+)", data)[1])
    check("at first", paused() == 0)
    most = numbers()[-1]
    limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most + 3, limits[1]))
    owners = []

    def one_more():  # those that have asked for something are not closed for others
        if len(owners) < most + 3:
            owners.append(connect(server))
            owners[-1].send(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
                            b"Content-Length: 20\r\n\r\n{")
        return paused() >= 2
    check("it waits", wait_until(one_more))
    before, ticks = paused(), cpu_ticks(server)
    wait_until(lambda: paused() >= before + 10)
    check("it does not spin", cpu_ticks(server) - ticks < 50, cpu_ticks(server) - ticks)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)
    check("and goes on", server.get("/health")[0] == 200)
    for connection in owners + [asking]:
        connection.close()


# ---- Clients that leave while what they sent is taken apart ----

LOOPS = ("{% set s = 'x' * 200000 %}{% for a in range(5000) %}"
         "{% if 'y' in s %}{{ a }}{% endif %}{% endfor %}")


def rare_words():
    """A text that takes long for its size to be cut into tokens."""
    chance = random.Random(1)
    return " ".join("".join(chance.choice("abcdefghijklmnopqrstuvwxyzäöü日本語") for _ in range(12))
                    for _ in range(40000))


def send_and_leave(server, path, body):
    data = json.dumps(body).encode()
    with connect(server) as s:
        s.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" %
                  (path, len(data)) + data)


def leaving(server):
    """Their work ends with them: steps are counted, and are far from those of the whole."""
    text = {"content": rare_words()}
    status, _ = server.post("/tokenize", text)
    whole = server.metrics()["reading_steps_total"]
    check("a text that takes long", status == 200 and whole > 1000000, (status, whole))
    for _ in range(12):
        send_and_leave(server, b"/tokenize", text)
    check("they are let go", wait_until(
        lambda: server.metrics()["reading_stopped_total"] >= 8 and
        server.metrics()["request_bytes"] == 0), server.metrics())
    steps = server.metrics()["reading_steps_total"] - whole
    check("their steps", steps < 5 * whole, (steps, whole))


def bounded(server):
    """What has no end by itself has one after so many steps, which the answer names."""
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    spaces = {"prompt": "a", "grammar": 'root ::= (( "" %s){240}){250}' % (" " * 300000)}
    for path, body, field in (("/apply-template", chat, "messages"),
                              ("/v1/completions", spaces, "grammar")):
        status, answer = server.post(path, body)
        check(f"{field}: too many steps", status in (400, 413) and
              answer["error"]["param"] == field, (status, answer))
    check("steps", server.metrics()["reading_steps_peak"] < 64000000, server.metrics())


def main():
    server = Server(command, model)
    server.metrics_with = lambda headers: server.metrics()
    try:
        smuggling(server)
        hosts(server)
        slow_heads(server, {})
        descriptors(server)
    finally:
        status = server.close()
    check("the end", status == 0, server.log[-5:])
    server = Server(command, model, "--api-key", "secret", "--parallel", "1")
    try:
        keys(server)
    finally:
        status = server.close()
    check("the end with keys", status == 0, server.log[-5:])
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(LOOPS + "{{ messages[0].content }}")
        template.flush()
        server = Server(command, model, "--chat-template", template.name)
        try:
            leaving(server)
            bounded(server)
            text = {"content": rare_words()}
            busy = [threading.Thread(target=server.request, args=("POST", "/tokenize", text))
                    for _ in range(4)]
            before = server.metrics()["reading_steps_total"]
            for thread in busy:
                thread.start()
            wait_until(lambda: server.metrics()["reading_steps_total"] > before)
        finally:
            status = server.close()  # SIGTERM, while they are taken apart
        for thread in busy:
            thread.join()
        check("SIGTERM ends it", status == 0, server.log[-5:])
    end_of_test()


main()
