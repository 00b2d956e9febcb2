#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Workers as processes, over UCX: workers_test.py COMMAND MODEL OTHER_MODEL

The text is the same with workers, and when one is killed, stopped or comes back; what cannot work is
refused with a word."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

command, model, other_model = sys.argv[1:]
TEXT = ["-p", "Once upon a time there was a small", "--temp", "0", "--speculate", "off",
        "--expert-cache", "20%", "--prefetch", "off", "--warm-start", "off"]
environment = dict(os.environ, UCX_TLS="tcp")  # as between machines


class Worker:
    def __init__(self, *options, of=model, listen="127.0.0.1:0"):
        self.process = subprocess.Popen(
            [command, "worker", "-m", of, "--listen", listen, *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        line = self.process.stdout.readline()
        found = re.match(r"worker at 127\.0\.0\.1:(\d+): (\d+) experts", line)
        if not found:
            raise SystemExit("a worker did not start: " + line + self.process.stderr.read())
        self.port, self.n_experts = map(int, found.groups())
        self.address = "127.0.0.1:%d" % self.port

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=120)
        return self.process.returncode, errors


def start(n, *options):
    return subprocess.Popen([command, "run", "-m", model, *TEXT, "-n", str(n), "--json", *options],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment)


def end(process):
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, (process.returncode, errors)
    return dict(json.loads(errors.splitlines()[-1]), text=out)


def refused(*arguments, words):
    result = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=120,
                            env=environment)
    assert result.returncode in (1, 2), (arguments, result)
    assert result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr, (word, result.stderr)


def wait_until(condition):
    for _ in range(12000):
        if condition():
            return
        time.sleep(0.01)
    raise SystemExit("waited two minutes for what should be soon")


workers = [Worker("--share", "1/2"), Worker("--share", "2/2")]
both = ["--workers", ",".join(w.address for w in workers)]
assert workers[0].n_experts == workers[1].n_experts

# The same text, and nothing read here.
plain = end(start(40))
shared = end(start(40, *both, "--worker-compute", "on"))
assert shared["text"] == plain["text"] and plain["workers"] == 0
assert shared["workers_ready"] == 2 and shared["workers_lost"] == 0, shared
assert shared["worker_experts"] > 0 and shared["bytes_read_disk"] == 0, shared
assert end(start(40, *both))["text"] == plain["text"]

# A server has workers, too.
server = subprocess.Popen([command, "serve", "-m", model, "--port", "0", "--expert-cache", "20%", *both,
                           "--worker-compute", "on"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                          env=environment)
url = None
while url is None:
    line = server.stderr.readline()
    assert line, "the server did not start"
    found = re.search(r"http://[0-9.]+:\d+", line)
    url = found.group(0) if found else None
body = {"prompt": TEXT[1], "max_tokens": 40, "temperature": 0}
request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request, timeout=120))
assert answer["choices"][0]["text"] == plain["text"], answer
metrics = urllib.request.urlopen(url + "/metrics", timeout=120).read().decode()
assert re.search(r"workers_ready 2$", metrics, re.M), metrics
assert re.search(r"worker_experts_total [1-9]", metrics), metrics
server.send_signal(signal.SIGTERM)
server.communicate(timeout=120)

# A worker that is stopped is left out; its experts are computed here.
workers[1].process.send_signal(signal.SIGSTOP)
stopped = end(start(40, *both, "--worker-compute", "on", "--worker-timeout", "0.5"))
assert stopped["text"] == plain["text"], stopped
# A busy machine may keep the other one waiting for so long, too.
assert stopped["workers_ready"] <= 1 and stopped["bytes_read_disk"] > 0, stopped
workers[1].process.send_signal(signal.SIGCONT)

# One that is killed on the way, too.
long = end(start(400))
run = start(400, *both, "--worker-compute", "on")
time.sleep(0.2)
workers[0].end(signal.SIGKILL)
killed = end(run)
assert killed["text"] == long["text"], killed

# What a worker says at its end; another model, another key, no key where others can reach it.
code, errors = workers[1].end()
assert code == 0 and re.search(r"worker: \d+ jobs, \d+ rows of experts", errors), (code, errors)
with tempfile.TemporaryDirectory() as folder:
    keys = []
    for i in range(2):
        keys.append(os.path.join(folder, "key%d" % i))
        with open(keys[i], "wb") as file:
            file.write(bytes([i]) * 32)
    short = os.path.join(folder, "short")
    with open(short, "wb") as file:
        file.write(b"short")
    of_key = Worker("--worker-key", keys[0])
    with_key = end(start(40, "--workers", of_key.address, "--worker-compute", "on",
                         "--worker-key", keys[0]))
    assert with_key["text"] == plain["text"] and with_key["workers_ready"] == 1, with_key
    refused("run", "-m", model, *TEXT, "-n", "2", "--workers", of_key.address, "--quiet",
            words=[of_key.address, "--worker-key"])
    refused("run", "-m", model, *TEXT, "-n", "2", "--workers", of_key.address, "--quiet",
            "--worker-key", keys[1], words=[of_key.address, "--worker-key"])
    refused("worker", "-m", model, "--listen", of_key.address, words=["is the address free"])
    of_key.end()
    refused("worker", "-m", model, "--worker-key", short, words=["16 to 4095 bytes"])
other = Worker(of=other_model)
refused("run", "-m", model, *TEXT, "-n", "2", "--workers", other.address, "--quiet",
        words=[other.address, "another model"])
other.end()
refused("worker", "-m", model, "--listen", "0.0.0.0:0", words=["0.0.0.0:0", "--worker-key"])
refused("run", "-m", model, *TEXT, "-n", "2", "--workers", ",", words=["--workers", "is empty"])
refused("worker", "-m", model, "--share", "3/2", words=["--share"])
refused("worker", "-m", model, "--listen", "nowhere", words=["HOST:PORT"])
refused("run", "-m", model, *TEXT, "-n", "2", "--worker-timeout", "3", words=["--workers"])

# Nobody there: the text is written here.
alone = end(start(40, "--workers", other.address))
assert alone["text"] == plain["text"] and alone["workers_ready"] == 0, alone
