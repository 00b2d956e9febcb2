# SPDX-License-Identifier: MIT
"""simulate, analyze, serve and verify (of kept prompts) while each allocation and each system call fails in turn: the result is
the same, or one line of error and status 1; nothing crashes, hangs or is half written, and a server
goes on. Arguments: the command, a model, fault_preload, then, if given, the most failures that are
tried in each class of calls of a scenario (0: all of them)."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "server"))
from fault_page import CLASSES, FaultPage
from serving import Server, check, end_of_test

command, model, preload = sys.argv[1:4]
MOST = int(sys.argv[4]) if len(sys.argv) > 4 else 24
if "MOE_TEST_WHOLE" in os.environ:
    MOST = 0
PATIENCE = 60
folder = tempfile.mkdtemp(prefix="moe-fail-nth-")
page = FaultPage.make(folder, preload)
trace = os.path.join(folder, "trace.jsonl")
out = os.path.join(folder, "out")
tried = {}


def chosen(n):
    """Which of n calls fail: all, or evenly spread ones with the first and the last."""
    return range(n) if MOST == 0 or n <= MOST else sorted({i * (n - 1) // (MOST - 1) for i in range(MOST)})


def each_failure(scenario, classes, attempt):
    """attempt(name): makes the scenario, under the failure that is armed, and checks what came of it."""
    page.arm_nth(classes[0], -1)
    attempt(f"{scenario}: nothing fails")
    page.disarm()
    counts = list(page.n_calls)
    for name in classes:
        for n in chosen(counts[CLASSES.index(name)]):
            page.arm_nth(name, n)
            attempt(f"{scenario}: {name} {n}")
            page.disarm()
            tried[scenario] = tried.get(scenario, 0) + 1


# ---- Commands that end by themselves ----

def is_told(text):
    lines = text.splitlines()
    return bool(lines) and any(line.startswith("moe-offload: ") and len(line) > 20 for line in lines)


CALLS = ("open", "stat", "read", "map", "alloc", "thread", "write")


def runs(scenario, arguments, keeps=False, classes=CALLS):
    """keeps: the command writes `out`, where an older file is."""
    clean = {}

    def attempt(name):
        if keeps:
            with open(out, "w") as file:
                file.write("old")
        try:
            done = subprocess.run([command, *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                                  timeout=PATIENCE, text=True)
        except subprocess.TimeoutExpired:
            check(name, False, "it hangs")
            return
        page.disarm()
        kept = open(out).read() if keeps else None
        if not clean:
            check(name, done.returncode == 0, done.stderr)
            clean.update(text=done.stdout, kept=kept)
        if done.returncode == 0:
            check(name, done.stdout == clean["text"] and kept == clean["kept"],
                  (done.stdout, kept, done.stderr))
        else:
            check(f"{name}: status {done.returncode}", done.returncode == 1 and is_told(done.stderr),
                  done.stderr)
            check(f"{name}: the older file", kept in (None, "old", clean["kept"]), kept)
        check(f"{name}: what is left", [f for f in os.listdir(folder) if f.endswith(".tmp")] == [])

    each_failure(scenario, classes, attempt)


# ---- The server ----

BODY = {"prompt": "The cat and the dog went out.", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "temperature": 0,
        "response_format": {"type": "json_object"}, "logprobs": True, "top_logprobs": 2}
OPTIONS = ("-t", "1", "--parallel", "2", "--cache-dir", os.path.join(folder, "cache"))


def start():
    """A server; or what it said when it did not begin. A start that hangs is killed."""
    process = []
    genuine = subprocess.Popen

    def popen(*arguments, **options):
        process.append(genuine(*arguments, **options))
        return process[0]

    timer = threading.Timer(PATIENCE, lambda: process and process[0].kill())
    timer.start()
    subprocess.Popen = popen
    try:
        return Server(command, model, *OPTIONS), process[0]
    except RuntimeError as error:
        return str(error).removeprefix("the server ended: "), process[0]
    finally:
        subprocess.Popen = genuine
        timer.cancel()


def keep_a_prompt():
    """In the folder that OPTIONS name."""
    server = Server(command, model, *OPTIONS)
    status, answer = server.post("/v1/completions", dict(BODY, prompt=20 * BODY["prompt"]))
    check("a long prompt", status == 200, answer)
    check("the end of the server that keeps it", server.close() == 0, server.log)


def starting(wanted):
    def attempt(name):
        server, process = start()
        page.disarm()
        if isinstance(server, str):
            check(f"{name}: status", process.wait(PATIENCE) == 1 and is_told(server),
                  (process.returncode, server))
            return
        status, answer = server.post("/v1/completions", BODY)
        check(name, status == 200 and answer["choices"][0]["text"] == wanted, (status, answer))
        check(f"{name}: the end", server.close() == 0, server.log)

    each_failure("serve, starting", ("open", "stat", "map", "alloc", "thread", "ring"), attempt)


def asked(server, path, body):
    """The status and the object; None: the connection ended without an answer."""
    try:
        status, _, data = server.request("POST", path, body)
        return status, json.loads(data)
    except (OSError, ValueError, EOFError, __import__("http.client").client.HTTPException):
        return None, {}


def serving(path, body, text_of):
    server = Server(command, model, *OPTIONS)
    fds = f"/proc/{server.process.pid}/fd"
    status, answer = server.post(path, body)
    wanted = text_of(answer)
    n_fds = []

    def attempt(name):
        status, answer = asked(server, path, body)
        page.disarm()
        if status == 200:
            check(name, text_of(answer) == wanted, answer)
        elif status is not None:
            check(f"{name}: the error", status in (400, 413, 500, 503) and answer.get("error", {}).get(
                "message"), (status, answer))
        check(f"{name}: it lives", server.process.poll() is None, server.log[-3:])
        status, answer = asked(server, path, body)
        check(f"{name}: afterwards", status == 200 and text_of(answer) == wanted, (status, answer))
        n_fds.append(len(os.listdir(fds)))

    each_failure(f"serve {path}", ("open", "read", "map", "alloc", "thread", "write"), attempt)
    check("descriptors do not pile up", n_fds[-1] <= n_fds[0] + 4, (n_fds[0], n_fds[-1]))
    server.send_signal(signal.SIGTERM)
    check("the end", server.wait() == 0, server.log[-3:])
    return wanted


try:
    subprocess.run([command, "run", "-m", model, "-p", "the cat", "-n", "8", "--temp", "0", "--quiet",
                    "--trace", trace], check=True, capture_output=True)
    runs("simulate", ("simulate", "--trace", trace, "--policy", "lru,lfru", "--format", "csv"))
    runs("simulate, generated", ("simulate", "--synthetic", "olmoe", "-n", "4", "--policy", "lru",
                                 "--json"))
    runs("analyze", ("analyze", "--trace", trace, "--format", "csv"))
    runs("analyze --export", ("analyze", "--synthetic", "olmoe", "-n", "4", "--export", out), True)
    text = serving("/v1/completions", BODY, lambda a: a["choices"][0]["text"])
    serving("/v1/chat/completions", CHAT, lambda a: a["choices"][0]["message"]["content"])
    starting(text)
    keep_a_prompt()
    # What cannot be read is told as damage; short memory says nothing of a file.
    runs("verify --cache-dir", ("verify", "--cache-dir", OPTIONS[-1]), classes=("alloc",))
    print(", ".join(f"{scenario}: {n} failures" for scenario, n in tried.items()))
finally:
    shutil.rmtree(folder)
end_of_test()
