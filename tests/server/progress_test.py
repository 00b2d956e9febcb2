# SPDX-License-Identifier: MIT
"""What is seen of a pass that takes seconds, as the first one of a large model does: in the stream, in
what the page asks for, and on a terminal. Each read of the model's file is made to take a while.
Arguments: the command, a model with a chat template, one without, hang_reads.so."""
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time

from serving import Server, check, end_of_test, run, wait_until

command, model, bare, slow = sys.argv[1:5]
PROMPT = "Once upon a time there was a boy who had many pens and one red box for all of them."
# One read at a time, of an expert each, and little memory: the first pass reads for seconds.
PLAN = ["-t", "1", "--io", "sync", "--expert-cache", "10%", "-c", "512", "--calibration", "none"]
OPTIONS = [*PLAN, "--prefetch", "off", "--warm-start", "off", "--checksums", "none"]


def slowly(milliseconds):
    return dict(os.environ, LD_PRELOAD=slow, SLOW_MS=str(milliseconds), HANG_ON=model, LC_ALL="C")


def events_of(server, path, body):
    """The events of a stream."""
    connection = server.connect()
    connection.request("POST", path, json.dumps(dict(body, stream=True)).encode())
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    events = []
    for line in answer:
        if line.startswith(b"data: {"):
            events.append(json.loads(line[6:]))
    connection.close()
    return events


def check_stream(name, events, text_of, expected):
    """The prompt's progress comes first, rises to the end, at most ten times a second."""
    told = [e["prompt_progress"] for e in events if "prompt_progress" in e]
    kinds = ["prompt_progress" in e for e in events if text_of(e) or "prompt_progress" in e]
    values = [p["processed"] for p in told]
    total = told[-1]["total"]
    check(f"{name}: progress is first", kinds == sorted(kinds, reverse=True), kinds)
    check(f"{name}: from what is known", values[0] == told[0]["cache"] == 0, told[0])
    check(f"{name}: to the end", values[-1] == total > 10, told[-1])
    check(f"{name}: rises", values == sorted(set(values)), values)
    check(f"{name}: within the pass", len([v for v in values if 0 < v < total]) > 2, values)
    check(f"{name}: not too often", len(told) < 3 + told[-1]["time_ms"] / 100, len(told))
    check(f"{name}: time", all(a["time_ms"] <= b["time_ms"] for a, b in zip(told, told[1:])))
    check(f"{name}: the text", "".join(text_of(e) or "" for e in events) == expected, events[-3:])


def test_server():
    expected = run(command, model, PROMPT, "-n", "2", "--temp", "0", "--ignore-eos").decode()
    before = dict(os.environ)
    os.environ.update(slowly(6))
    server = Server(command, model, *OPTIONS, "--parallel", "2")
    os.environ.clear()
    os.environ.update(before)
    events = []
    body = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "ignore_eos": True,
            "return_progress": True}
    try:
        asks = threading.Thread(target=lambda: events.extend(events_of(server, "/v1/completions", body)))
        asks.start()
        looks = []
        while asks.is_alive():
            looks.append((server.get("/live")[1], server.get("/slots")[1]))
            time.sleep(0.03)
        asks.join()
        check_stream("completions", events, lambda e: e["choices"][0]["text"], expected)
        first = [(live, slots) for live, slots in looks if live["active"] == 1 and live["written_tokens"] == 0]
        check("at work in the first pass", len(first) > 5, (len(first), len(looks)))
        read = [live["disk_bytes"] for live, _ in first]
        check("bytes in the first pass", read[-1] > read[0] and read == sorted(read), read)
        layers = [live["pass_layer"] for live, _ in first]
        check("layers in the first pass", layers == sorted(layers) and len(set(layers)) > 2, layers)
        late = [live for live, _ in first if live["pass_layer"] > 1]
        check("what is expected", late and all(
            l["pass_bytes"] <= l["pass_bytes_expected"] and l["pass_ms"] <= l["pass_ms_expected"]
            for l in late), late[:1])
        during = first[2:-1]  # behind the last one's first half the pass may have ended
        states = [slots[0]["state"] for _, slots in during]
        check("slots", set(states) == {"reading"}, states)
        tokens = [slots[0].get("read_tokens", 0) for _, slots in during]
        check("tokens read", tokens == sorted(tokens) and tokens[-1] > 0, tokens)
        wait_until(lambda: server.get("/live")[1]["active"] == 0)
        live = server.get("/live")[1]
        check("nothing runs", live["pass_layer"] == live["pass_ms"] == 0, live)
        chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2, "temperature": 0}
        plain = events_of(server, "/v1/chat/completions", chat)
        check("only when asked", not any("prompt_progress" in e for e in plain))
        again = events_of(server, "/v1/chat/completions", dict(chat, return_progress=True))
        told = [e["prompt_progress"] for e in again if "prompt_progress" in e]
        check("what was known before", told and told[0]["cache"] == told[0]["processed"] > 0, told)
        status, answer = server.post("/v1/completions", dict(body, return_progress=3))
        check("a wrong value", status == 400 and "return_progress" in answer["error"]["message"], answer)
    finally:
        check("exit", server.close() == 0, server.log)


def on_terminal(arguments, environment):
    """What a terminal gets on standard error, and standard output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([command, *arguments], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""

    def read():
        nonlocal seen
        try:
            while piece := os.read(ours, 4096):
                seen += piece
        except OSError:
            pass
    reader = threading.Thread(target=read)
    reader.start()
    out = process.stdout.read().decode()
    process.wait(120)
    reader.join(120)
    os.close(ours)
    return process.returncode, out, seen.decode()


def test_terminal():
    expected = run(command, model, PROMPT, "-n", "2", "--temp", "0", "--ignore-eos").decode()
    code, out, seen = on_terminal(["run", "-m", model, *OPTIONS, "-p", PROMPT, "-n", "2", "--temp", "0",
                                   "--ignore-eos"], slowly(8))
    lines = re.findall(r"\rprompt \[(#*) *\] +(\d+)%  layer (\d+) of (\d+), [\d.]+ of [\d.]+ \w+, (\d+) s left",
                       seen)
    check("run: exit and text", code == 0 and out == expected, (code, out))
    check("run: the pass is shown", len(lines) > 2, seen[-1500:])
    shares = [int(line[1]) for line in lines]
    check("run: it rises", shares == sorted(shares) and len(set(shares)) > 2, shares)
    check("run: columns", all(len(line) < 80 for line in seen.split("\r") if line.startswith("prompt")),
          seen[:500])
    code, out, seen = on_terminal(["run", "-m", model, *OPTIONS, "-p", PROMPT, "-n", "2", "--quiet"],
                                  slowly(3))
    check("run --quiet", code == 0 and seen == "", (code, seen))
    code, out, seen = on_terminal(["plan", "-m", model, *PLAN, "--measure"], slowly(4))
    check("plan --measure", code == 0 and "expected speed" in out and re.search(
        r"\rmeasuring \[#* *\] +\d+%  layer \d+ of \d+", seen), (code, out, seen[-500:]))
    code, out, seen = on_terminal(["bench", "decode", "-m", model, *PLAN[:6], "--prefetch", "off", "-p", "64", "-n", "2", "--repeat", "1"],
                                  slowly(6))
    check("bench", code == 0 and re.search(r"\rmeasuring \[#* *\] +\d+%  layer \d+ of \d+", seen),
          (code, out, seen[-500:]))
    code, out, seen = on_terminal(
        ["simulate", "--synthetic", "qwen3", "-n", "4000", "--policy", "lfru,lru",
         "--expert-cache", "10%,20%"], dict(os.environ, LC_ALL="C"))
    check("simulate", code == 0 and re.search(r"\rsimulating \[#* *\] +\d+%", seen), (code, out[:300], seen[-500:]))


def test_header():
    """What the header tells is said before the weights are read, which here takes for ever."""
    environment = dict(slowly(0), HANG_ON=bare, HANG_FROM="100000")
    done = subprocess.run([command, "run", "-m", bare, "--chat", "-p", "a"], env=environment,
                          capture_output=True, text=True, timeout=240)
    check("run without a template", done.returncode == 1 and "--chat-template" in done.stderr, done)
    server = Server(command, bare, "-c", "128", "--parallel", "1")
    check("serve without a template", "no chat template" in server.log[0], server.log)
    check("exit without a template", server.close() == 0)


test_server()
test_terminal()
test_header()
end_of_test()
