#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Workers as processes, over UCX: workers_test.py COMMAND MODEL OTHER_MODEL

The text is the same with workers, and when one is killed, stopped or comes back; also with files of a
share, and behind a proxy with two servers; plan says what they are worth; what cannot work is refused
with a word."""
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
        found = re.match(r"worker at 127\.0\.0\.1:(\d+): (\d+) experts, memory for (\d+)", line)
        if not found:
            raise SystemExit("a worker did not start: " + line + self.process.stderr.read())
        self.port, self.n_experts, self.n_slots = map(int, found.groups())
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


def plan(*options):
    done = subprocess.run([command, "plan", "-m", model, "--expert-cache", "20%", *options], capture_output=True,
                          text=True, timeout=120, env=environment, check=True)
    return done.stdout


def peak_of(worker):
    """The most RAM that the process has had, in bytes."""
    with open("/proc/%d/status" % worker.process.pid, encoding="utf-8") as file:
        return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1))


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

# What plan says of them: at a slow disk they pay, at a fast one they do not.
said = json.loads(plan(*both, "--disk", "0.01", "--json"))
assert [w["ready"] for w in said["workers"]] == [True, True] and said["worker_experts"] == said["experts"], said
assert 0 < said["worker_token_jobs"] <= 12 and said["worker_token_bytes_sent"] > 0, said  # 2 workers, 6 layers
assert 0 < said["worker_seconds"] < said["worker_saved_seconds"], said
assert said["worker_tokens_per_s"] > 1 / said["worker_saved_seconds"], said
assert said["workers"][0]["expert_list"].startswith("0-0:0,0-0:2,"), said["workers"][0]
assert re.search(r"workers pay: .* add [\d.]+ ms a token, the drive saves [\d.]+ ms", plan(*both, "--disk", "0.01"))
assert "workers do not pay: " in plan(*both, "--disk", "1000000")
assert "does not answer" in plan("--workers", "127.0.0.1:9", "--disk", "1")

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

# Workers with chosen experts, and with files of their share alone, whose memory is as planned.
with tempfile.TemporaryDirectory() as folder:
    parts = [os.path.join(folder, "part%d.gguf" % i) for i in (1, 2)]
    for i, which in enumerate((["--share", "1/2"], ["--experts", "0-1:1,2-5:0-63"])):
        subprocess.run([command, "split-experts", "-m", model, *which, "-o", parts[i]], check=True, timeout=120,
                       stdout=subprocess.DEVNULL, env=environment)
    assert os.path.getsize(parts[0]) < 0.75 * os.path.getsize(model)
    split = [Worker("--host-memory", "300M", of=parts[0]), Worker("--host-memory", "300M", of=parts[1])]
    assert [w.n_experts for w in split] == [6 * 64 // 2, 2 + 4 * 64], [w.n_experts for w in split]
    names = ["--workers", ",".join(w.address for w in split)]
    said = end(start(40, *names, "--worker-compute", "on"))
    assert said["text"] == plain["text"] and said["workers_ready"] == 2, said
    if "ASAN_OPTIONS" not in os.environ:
        for worker in split:
            assert peak_of(worker) <= 300 << 20, peak_of(worker)
    # They may have other experts, if their files have them.
    said = end(start(400, *names, "--worker-compute", "on", "--rebalance", "20"))
    assert said["text"] == long["text"] and said["workers_lost"] == 0, said
    for worker in split:
        worker.end()
    refused("run", "-m", parts[0], *TEXT, "-n", "2", words=[parts[0], "moe-offload worker"])
    refused("worker", "-m", parts[0], "--io", "threads", "--experts", "1-0", words=["--experts", "1-0"])
    refused("worker", "-m", parts[0], "--io", "threads", "--experts", "0:1", words=["other ones"])
    refused("split-experts", "-m", model, "--share", "1/2", words=["-o FILE"])
    with open(parts[1], "r+b") as file:
        file.truncate(os.path.getsize(parts[1]) - 4096)
    refused("worker", "-m", parts[1], words=[parts[1], "copy it anew"])

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
