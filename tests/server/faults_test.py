# SPDX-License-Identifier: MIT
"""Faults under serve: the disk fails in the middle of a tool call, of an answer held to a schema and of
a stream; the folder of --cache-dir can be neither written nor read, is full, or goes away; anything
fails at random under many clients. An error must be one in OpenAI's shape that names the thing, no
half of a call or wrong byte may come, and once nothing goes wrong any more all texts and kept prompts
are there. Arguments: the command, a model with a chat template, fault_preload; then, if given,
seconds of random faults and a seed."""
import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "faults"))
from fault_page import CLASSES, FaultPage
from serving import HERMES, Server, check, end_of_test, wait_until

command, model, preload = sys.argv[1:4]
RANDOM_SECONDS = float(sys.argv[4]) if len(sys.argv) > 4 else 0.7
SEED = int(sys.argv[5]) if len(sys.argv) > 5 else 1
folder = tempfile.mkdtemp(prefix="moe-serve-faults-")


page = FaultPage.make(folder, preload)
arm, disarm = page.arm, page.disarm


def is_error(answer):
    error = answer.get("error", {})
    return bool(error.get("message")) and error.get("type") in ("server_error",
                                                                "invalid_request_error")


# ---- The disk fails while an answer is written ----

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}


def tool_call(size):
    call = json.dumps({"name": "get_weather", "arguments": {"city": "Ulm and around it " * size}})
    text = f"<tool_call>\n{call}\n</tool_call>"
    return {"messages": [{"role": "user", "content": "What is the weather in Ulm?"}],
            "max_tokens": 1800, "grammar": "root ::= " + json.dumps(text), "tools": [TOOL]}


def by_schema(size):
    return {"messages": [{"role": "user", "content": "Who is Tom?"}], "max_tokens": 1800, "seed": 2,
            "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": {
                "type": "array", "minItems": size, "items": {"enum": [1, 22, 333]},
                "maxItems": size}}}}


def story(size):
    return {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 60 * size,
            "temperature": 0, "ignore_eos": True}


# A request of a size, and the size of one that does not end before its fault comes.
REQUESTS = {"a tool call": (tool_call, 80), "an answer held to a schema": (by_schema, 300),
            "an answer": (story, 30)}


def parts(events):
    """Text, calls and errors of a stream. Where its pieces end depends on time."""
    text, calls, errors = "", [], []
    for event in events:
        if event == "[DONE]":
            continue
        if "error" in event:
            errors.append(event)
        for choice in event.get("choices", []):
            text += choice["delta"].get("content") or ""
            for delta in choice["delta"].get("tool_calls") or []:
                while len(calls) <= delta["index"]:
                    calls.append({"name": "", "arguments": ""})
                for key, piece in delta.get("function", {}).items():
                    calls[delta["index"]][key] += piece
    return text, calls, errors


def is_whole(call):
    try:
        json.loads(call["arguments"])
    except ValueError:
        return False
    return True


def fails_in_the_middle(server, name, body, long):
    path = "/v1/chat/completions"
    whole = parts(server.stream(path, body))
    check(f"{name}: without faults", whole[2] == [] and (whole[0] or whole[1]), whole)
    beginning = whole[0].rstrip("]")  # an array that goes on does not end there
    for stream in (True, False):
        got = []
        begun = server.metrics()["written_tokens_total"]
        how = (lambda: got.append(parts(server.stream(path, long)))) if stream else \
            (lambda: got.append(server.post(path, long)))
        thread = threading.Thread(target=how)
        thread.start()
        wait_until(lambda: server.metrics()["written_tokens_total"] > begun + 3)
        arm(read=1000000, completion=1000000)
        thread.join(60)
        faults = sum(page.n_faults[CLASSES.index(c)][0] for c in ("read", "completion"))
        disarm()
        check(f"{name}: faults came, and an answer", faults > 0 and got, (faults, got))
        if not got:
            continue
        if stream:
            text, calls, errors = got[0]
            check(f"{name}: an error ends the stream", len(errors) == 1 and is_error(errors[0]) and
                  os.path.basename(model) in errors[0]["error"]["message"], errors)
            check(f"{name}: no call that looks whole, no wrong byte",
                  not any(is_whole(call) for call in calls) and
                  os.path.commonprefix([text, whole[0]]) in (text, beginning), (text, calls))
        else:
            status, answer = got[0]
            check(f"{name}: an error in place of the answer", status == 500 and is_error(answer),
                  (status, answer))
        check(f"{name}: its session is free",
              wait_until(lambda: server.metrics()["sessions_active"] == 0))
        again = parts(server.stream(path, body))
        check(f"{name}: the same afterwards", again == (whole[0], whole[1], []), (again, whole))
    check(f"{name}: the failure is counted", server.metrics()["requests_failed_total"] >= 2)


def disk(io, names):
    template = os.path.join(folder, "template.jinja")
    with open(template, "w", encoding="utf-8") as file:
        file.write(HERMES)
    server = Server(command, model, "--chat-template", template, "--expert-cache", "10%", "--io", io,
                    "--speculate", "off", "-t", "2")
    try:
        for name in names:
            make, size = REQUESTS[name]
            fails_in_the_middle(server, f"--io {io}, {name}", make(1), make(size))
    finally:
        disarm()
        status = server.close()
    check(f"--io {io}: the end", status == 0, server.log[-5:])


# ---- The folder of --cache-dir ----

STORY = "The cat and the dog went out, and the day was good. Anna had a red ball. " * 8


def ask(server, end):
    status, answer = server.post("/v1/completions", {"prompt": STORY + end, "max_tokens": 8,
                                                     "temperature": 0, "ignore_eos": True})
    if status != 200:
        return answer, 0
    return (answer["choices"][0]["text"],
            answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def kept(cache):
    return sorted(f for f in os.listdir(cache) if f.endswith(".moe-session"))


def prompts(files):
    """Which prompts these files keep: their names also have a counter that tells the last use."""
    return {name.split(".")[0] for name in files}


def cache_folder():
    cache = os.path.join(folder, "cache")
    plain = Server(command, model)
    wanted = {q: ask(plain, q)[0] for q in ("One", "Two", "Three")}
    plain.close()

    def served():
        return Server(command, model, "--cache-dir", cache, "--parallel", "2")

    server = served()  # nothing can be written
    arm(write=1000000)
    text, _ = ask(server, "One")
    told = wait_until(lambda: any("a prompt is not kept" in line for line in server.log))
    disarm()
    check("unwritable: the text", text == wanted["One"], text)
    check("unwritable: the log says so, and why", told, server.log)
    check("unwritable: no torn file", kept(cache) == [], os.listdir(cache))
    check("unwritable: the end", server.close() == 0)

    server = served()
    ask(server, "One")
    server.close()
    first = kept(cache)
    check("written when it can be", len(first) == 1 and os.listdir(cache) == first,
          os.listdir(cache))
    for classes in (("read",), ("open",), ("map",), ("stat",)):  # nothing can be read
        server = served()
        arm(**{c: 1000000 for c in classes})
        text, cached = ask(server, "Two")
        disarm()
        check(f"{classes[0]} fails: the text or an error", text == wanted["Two"] or
              (isinstance(text, dict) and is_error(text)), (text, cached))
        check(f"{classes[0]} fails: the text afterwards", ask(server, "Two")[0] == wanted["Two"])
        check(f"{classes[0]} fails: the end", server.close() == 0)
        check(f"{classes[0]} fails: the file is still there",
              prompts(first) <= prompts(kept(cache)), kept(cache))
        for name in kept(cache):
            if not prompts([name]) <= prompts(first):
                os.remove(os.path.join(cache, name))
    server = served()
    text, cached = ask(server, "Three")
    check("kept through all that", text == wanted["Three"] and cached > 100, (text, cached))
    shutil.rmtree(cache)  # it goes away under the server
    check("without its folder", ask(server, "One" + STORY)[0] is not None and
          ask(server, "Two")[0] == wanted["Two"])
    check("without its folder: the end", server.close() == 0)


def mounted(options, name, how):
    """Serves with a folder that is a file system of its own; skips where none can be mounted."""
    cache = os.path.join(folder, name)
    os.mkdir(cache)
    environment = dict(os.environ, LD_PRELOAD="")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", cache], env=environment,
                      capture_output=True, check=False).returncode != 0:
        print(f"no {name} file system: it cannot be mounted")
        return
    try:
        how(cache)
    finally:
        subprocess.run(["umount", cache], env=environment, check=True)


def read_only(cache):
    done = subprocess.run([command, "serve", "-m", model, "--port", "0", "--cache-dir", cache],
                          capture_output=True, text=True, timeout=240, check=False)
    check("read-only: refused at the start", done.returncode == 1 and "--cache-dir" in done.stderr
          and "ead-only" in done.stderr, done.stderr)


def full(cache):
    server = Server(command, model, "--cache-dir", cache)
    text, _ = ask(server, "One")
    told = wait_until(lambda: any("a prompt is not kept" in line and "space" in line
                                  for line in server.log))
    check("full: the text, and the log", isinstance(text, str) and told, (text, server.log))
    check("full: nothing torn", os.listdir(cache) == [], os.listdir(cache))
    check("full: the end", server.close() == 0)


# ---- Anything, at random ----

PLAIN = [{"prompt": p, "max_tokens": 12, "temperature": t, "seed": 5, "ignore_eos": True}
         for p in ("Once upon a time", "Tom has 5 pens.", STORY) for t in (0, 0.8)]


def random_client(server, seed, until, wanted):
    chance = random.Random(seed)
    while time.monotonic() < until:
        i = chance.randrange(len(PLAIN))
        try:
            if chance.random() < 0.5:
                status, answer = server.post("/v1/completions", PLAIN[i])
                check("random: the text or an error", answer["choices"][0]["text"] == wanted[i]
                      if status == 200 else is_error(answer), (status, answer, wanted[i]))
            else:
                status, _, data = server.request("POST", "/v1/completions",
                                                 dict(PLAIN[i], stream=True))
                events = [json.loads(e[6:]) for e in data.decode().split("\n\n")
                          if e.startswith("data: {")] if status == 200 else [json.loads(data)]
                text = "".join(e["choices"][0]["text"] for e in events if e.get("choices"))
                broken = [e for e in events if "error" in e]
                check("random: a beginning, and an error", wanted[i].startswith(text) and
                      (text == wanted[i] or (len(broken) == 1 and is_error(broken[0]))),
                      (text, wanted[i], broken))
        except (OSError, http.client.HTTPException):
            pass  # no memory for a connection's answer: it is closed


def anything(rates, name):
    cache = os.path.join(folder, "random-cache")
    server = Server(command, model, "--expert-cache", "20%", "--cache-dir", cache)
    wanted = [server.post("/v1/completions", body)[1]["choices"][0]["text"] for body in PLAIN]
    page.seed = SEED
    arm(**rates)
    until = time.monotonic() + RANDOM_SECONDS
    threads = [threading.Thread(target=random_client, args=(server, SEED * 100 + i, until, wanted))
               for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    n = sum(page.n_faults[CLASSES.index(c)][0] for c in rates)
    disarm()
    check(f"{name}: faults came", n > 0, n)
    check(f"{name}: alive", server.process.poll() is None, server.log[-5:])
    check(f"{name}: sessions are free",
          wait_until(lambda: server.metrics()["sessions_active"] == 0))
    for body, text in zip(PLAIN, wanted):
        status, answer = server.post("/v1/completions", body)
        check(f"{name}: the text afterwards", status == 200 and
              answer["choices"][0]["text"] == text, (answer, text))
    check(f"{name}: the end", server.close() == 0, server.log[-5:])


def main():
    disk("threads", REQUESTS)
    disk("uring", ["a tool call"])
    cache_folder()
    mounted("ro", "read-only", read_only)
    mounted("size=64k,mode=700", "full", full)
    anything({"read": 20000, "completion": 20000, "open": 50000, "write": 50000}, "disk")
    anything({"alloc": 20000, "map": 20000}, "memory")
    anything({c: 5000 for c in CLASSES if c not in ("wait",)}, "any")


try:
    main()
finally:
    disarm()
    os.environ["LD_PRELOAD"] = ""
    shutil.rmtree(folder)
end_of_test()
