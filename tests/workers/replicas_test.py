#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Two servers share two workers behind one address: replicas_test.py COMMAND MODEL SERVER_TESTS

A proxy of this file passes each connection to a server that answers, in turn (runtime/packaging/proxies has files for
nginx and HAProxy). The texts are those of a server alone, also when a server is killed: the workers go on for the other."""
import os
import re
import socket
import subprocess
import sys
import threading
import http.client
import json

command, model, server_tests = sys.argv[1:4]
sys.path.insert(0, server_tests)
from serving import Server, check, end_of_test  # noqa: E402

PROMPTS = ["Once upon a time", "Tom has 5 pens. He", "What is 12 times 7?", "The small dog", "Anna and Ben", "A red"]
os.environ["UCX_TLS"] = "tcp"


class Proxy:
    """Passes bytes of each connection to one of the ports; to the next one if nobody listens there."""

    def __init__(self, ports):
        self.ports, self.turn = list(ports), 0
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.door.accept()
            for _ in self.ports:
                self.turn += 1
                try:
                    server = socket.create_connection(("127.0.0.1", self.ports[self.turn % len(self.ports)]))
                except OSError:
                    continue
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self.pass_on, args=(one, other), daemon=True).start()
                break
            else:
                client.close()

    @staticmethod
    def pass_on(one, other):
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def ask(port, prompt):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 24, "temperature": 0}))
    answer = json.load(connection.getresponse())
    connection.close()
    return answer["choices"][0]["text"]


def ask_all(port):
    """All prompts at once; in place of a text the name of what went wrong."""
    texts = [None] * len(PROMPTS)

    def one(i):
        try:
            texts[i] = ask(port, PROMPTS[i])
        except (OSError, http.client.HTTPException, ValueError, KeyError) as problem:
            texts[i] = type(problem).__name__
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts


def computed(server):
    """How many experts workers computed for this server."""
    status, _, metrics = server.request("GET", "/metrics")
    check("metrics", status == 200, status)
    metrics = metrics.decode() if isinstance(metrics, bytes) else metrics
    per_worker = re.findall(r'^moe_worker_computed_total\{worker="[^"]+",number="\d+"\} (\d+)$', metrics, re.M)
    check("a row for each worker", len(per_worker) == 2, metrics)
    return sum(map(int, per_worker))


OPTIONS = ["-t", "1", "-c", "256", "--parallel", "3", "--expert-cache", "25%", "--prefetch", "off", "--warm-start", "off",
           "--speculate", "off"]
alone = Server(command, model, *OPTIONS)
wanted = [ask(alone.port, prompt) for prompt in PROMPTS]
alone.close()
workers = [subprocess.Popen([command, "worker", "-m", model, "--share", f"{i}/2", "--listen", "127.0.0.1:0", "-t", "1"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for i in (1, 2)]
names = ",".join(re.match(r"worker at ([\d.:]+):", worker.stdout.readline()).group(1) for worker in workers)
servers = [Server(command, model, *OPTIONS, "--workers", names, "--worker-compute", "on") for _ in range(2)]
proxy = Proxy([server.port for server in servers])
try:
    check("texts behind the proxy", ask_all(proxy.port) == wanted)
    for number, server in enumerate(servers):
        check(f"workers compute for server {number}", computed(server) > 0)
    # What a server that is killed had begun is lost; nothing else is, and whatever arrives whole is right.
    killer = threading.Timer(0.05, servers[0].process.kill)
    killer.start()
    texts = ask_all(proxy.port)
    killer.join()
    servers[0].process.wait()
    for text, right in zip(texts, wanted):
        check("a text is right, or its server is gone",
              text == right or text in ("RemoteDisconnected", "IncompleteRead", "ConnectionResetError"), text)
    before = computed(servers[1])
    check("texts of the server that is left", ask_all(proxy.port) == wanted)
    check("workers compute for it", computed(servers[1]) > before)
finally:
    for server in servers:
        server.close()
    for worker in workers:
        worker.terminate()
        worker.wait()
end_of_test()
