# SPDX-License-Identifier: MIT
"""The server through its sockets: the text of `run`, streams, refusals, hostile input, clients that
leave, keys, the end; and tiny models of families whose sessions keep more than keys and values.
Arguments: the command, a model with a chat template, the folder of the tiny models."""
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from serving import SMALL, Server, run, wait_until

command, model, families = sys.argv[1:4]
failed = 0
n_checks = 0

PROMPTS = [
    "Anna has 3 boxes with 12 apples in each. She gives 8 apples to her friend. "
    "How many apples does she have left?",
    "Once upon a time",
    "The cat and the dog went out, and the day was",
    "Tom has 5 pens. He buys 7 more. How many pens does he have?",
]


def check(what, holds, shown=""):
    global failed, n_checks
    n_checks += 1
    if not holds:
        failed += 1
        print(f"FAIL {what}: {shown!r}"[:1000])


def chat(prompt, **fields):
    return dict({"messages": [{"role": "user", "content": prompt}]}, **fields)


def text_of(answer):
    choice = answer["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def streamed_text(events):
    text = ""
    for event in events:
        if event != "[DONE]":
            for choice in event["choices"]:
                text += choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
    return text


def cases():
    """(path, body, the text of `run`): greedy and sampled, raw and as turns."""
    greedy = {"temperature": 0, "max_tokens": 40}
    sampled = {"temperature": 0.9, "seed": 7, "max_tokens": 40}
    flags = {0: ("--temp", "0", "-n", "40"), 1: ("--temp", "0.9", "-s", "7", "-n", "40")}
    out = []
    for prompt in PROMPTS[:2 if SMALL else None]:
        for i, fields in enumerate((greedy, sampled)):
            out.append(("/v1/completions", dict(fields, prompt=prompt),
                        run(command, model, prompt, *flags[i]).decode()))
            out.append(("/v1/chat/completions", chat(prompt, **fields),
                        run(command, model, prompt, *flags[i], chat=True).decode()))
    return out


def test_same_text(server, wanted):
    for path, body, text in wanted:
        status, answer = server.post(path, body)
        check(f"{path} alone", status == 200 and text_of(answer) == text, (answer, text))
        events = server.stream(path, dict(body, stream_options={"include_usage": True}))
        check(f"{path} as a stream", streamed_text(events) == text, (events[-3:], text))
        check("the stream's end", events[-1] == "[DONE]")
        usage = events[-2]["usage"]
        check("usage alone in the last event", events[-2]["choices"] == [], events[-2])
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            check("usage of a stream", usage[key] == answer["usage"][key], (usage, answer["usage"]))
        reasons = [e["choices"][0]["finish_reason"] for e in events[:-2]]
        check("one finish reason", reasons[-1] == answer["choices"][0]["finish_reason"] and
              not any(reasons[:-1]), reasons)


def test_neighbours(server, wanted, n_clients=3 if SMALL else 12):
    """Several clients at a time get the same texts, each a half of them."""
    def client(first):
        for i in range(len(wanted) // 2):
            path, body, text = wanted[(first + i) % len(wanted)]
            if (first + i) % 2 == 0:
                got = streamed_text(server.stream(path, body))
            else:
                status, answer = server.post(path, body)
                got = text_of(answer) if status == 200 else answer
            check(f"{path} among {n_clients} clients", got == text, (got, text))
    threads = [threading.Thread(target=client, args=(i,)) for i in range(n_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_stop_strings(server):
    _, plain = server.post("/v1/completions", {"prompt": PROMPTS[1], "temperature": 0,
                                               "max_tokens": 40})
    text = text_of(plain)
    for begin, size in ((5, 1), (7, 4), (10, 9), (20, 2)):
        stop = text[begin:begin + size]
        body = {"prompt": PROMPTS[1], "temperature": 0, "max_tokens": 40,
                "stop": [stop, "no such text"]}
        want = text[:text.index(stop)]
        _, answer = server.post("/v1/completions", body)
        check(f"stop {stop!r}", text_of(answer) == want and
              answer["choices"][0]["finish_reason"] == "stop", (answer, want))
        check(f"stop {stop!r} streamed", streamed_text(server.stream("/v1/completions", body)) ==
              want)
    # What begins like a stop string and is none comes at the end.
    body = {"prompt": PROMPTS[1], "temperature": 0, "max_tokens": 40, "stop": text[-3:] + "\x01"}
    _, answer = server.post("/v1/completions", body)
    check("the beginning of a stop string at the end", text_of(answer) == text, answer)
    check("finish reason", answer["choices"][0]["finish_reason"] ==
          plain["choices"][0]["finish_reason"], answer)


def test_cut_off(server):
    """An answer that ends within a character at max_tokens ends before it."""
    for n, text in ((1, ""), (2, ""), (4, "𝔊")):
        body = {"grammar": 'root ::= "𝔊𝔊"', "temperature": 0, "max_tokens": n}
        _, answer = server.post("/v1/completions", dict(body, prompt="once"))
        check("a character cut off", text_of(answer) == text, answer)
        _, answer = server.post("/v1/chat/completions", dict(chat("once"), **body))
        check("a character cut off in a chat",
              (answer["choices"][0]["message"]["content"] or "") == text, answer)


def test_prefix(server):
    """A prompt that begins like an earlier one goes on from there, with the same text."""
    prompt = " ".join(PROMPTS)
    body = {"prompt": prompt, "temperature": 0.8, "seed": 3, "max_tokens": 24}
    longer = dict(body, prompt=prompt + " and then")
    texts = [run(command, model, p, "--temp", "0.8", "-s", "3", "-n", "24").decode()
             for p in (prompt, prompt + " and then")]
    for fields, text in ((body, texts[0]), (longer, texts[1]), (body, texts[0])):
        _, answer = server.post("/v1/completions", fields)
        check("text after a shared beginning", text_of(answer) == text, (answer, text))
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    check("cached tokens", 16 <= cached < answer["usage"]["prompt_tokens"], answer["usage"])


def test_other_addresses(server):
    status, models = server.get("/v1/models")
    check("models", status == 200 and models["object"] == "list" and
          models["data"][0]["id"] == "moe-demo-q4", models)
    check("health", server.get("/health") == (200, {"status": "ok"}))
    _, props = server.get("/props")
    check("props", props["context"] == 2048 and props["sessions"] == 4, props)
    _, tokens = server.post("/tokenize", {"content": "Grüße, 世界", "add_special": False})
    listed = subprocess.run([command, "tokenize", "-m", model, "-p", "Grüße, 世界"],
                            stdout=subprocess.PIPE, check=True, text=True).stdout.split()
    check("tokenize", tokens["tokens"] == [int(t) for t in listed][-len(tokens["tokens"]):],
          (tokens, listed))
    check("detokenize", server.post("/detokenize", tokens) == (200, {"content": "Grüße, 世界"}))
    _, rendered = server.post("/apply-template", chat("Hello"))
    check("apply-template", "Hello" in rendered["prompt"] and rendered["prompt"] != "Hello",
          rendered)
    _, tokens = server.post("/tokenize", {"content": PROMPTS[1], "add_special": True})
    body = {"temperature": 0, "max_tokens": 8}
    check("a prompt of ids", text_of(server.post("/v1/completions", dict(
        body, prompt=tokens["tokens"]))[1]) == text_of(server.post(
            "/v1/completions", dict(body, prompt=PROMPTS[1]))[1]))
    metrics = server.metrics()
    check("metrics", metrics["written_tokens_total"] > 0 and metrics["requests_failed_total"] == 0,
          metrics)


def test_refusals(server):
    """Each field that would change the answer and is not supported is named."""
    def refused(path, body, status, field, headers=None):
        got, answer = server.post(path, body, headers)
        error = answer.get("error", {})
        check(f"{path} {str(body)[:80]}", got == status and error.get("param") == field and
              isinstance(error.get("message"), str) and error.get("type"), (got, answer))
    path = "/v1/chat/completions"
    for name, value in (("n", 0), ("n", 17), ("n", "2"), ("logprobs", 3), ("top_logprobs", 3),
                        ("top_logprobs", 21), ("logit_bias", {"x": 1}), ("logit_bias", {"5": 101}),
                        ("logit_bias", {"99999999": 1}), ("logit_bias", [5]),
                        ("presence_penalty", 1001), ("frequency_penalty", "-1"),
                        ("tools", [{"type": "function"}]),
                        ("tool_choice", "required"), ("response_format", {"type": "xml"}),
                        ("response_format", {"type": "json_schema"}), ("grammar", "root ::= a"),
                        ("response_format", {"type": "json_schema", "json_schema": {
                            "strict": True, "schema": {"type": "string", "pattern": "(?=a)"}}}),
                        ("modalities", ["audio"]), ("reasoning_effort", 3),
                        ("temperature", "hot"), ("temperature", -1), ("temperature", 1e999),
                        ("top_p", 0), ("top_p", 1.5), ("min_p", 1), ("top_k", -1), ("top_k", 1.5),
                        ("seed", -3), ("max_tokens", 0), ("max_tokens", "7"), ("stop", ""),
                        ("stop", ["x"] * 17), ("stop", "x" * 257), ("stop", [1]),
                        ("stream", "yes"), ("stream_options", {"include_usage": True}),
                        ("stream_options", {"other": 1}), ("messages", []), ("messages", "hi"),
                        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
                        ("messages", [5]), ("model", 1), ("mirostat", 2), ("min_tokens", 5),
                        ("guided_regex", "a"), ("stop_token_ids", [99999999]), ("stop_token_ids", 3),
                        ("stop_token_ids", ["a"]), ("typical_p", 0.5), ("instructions", "be brief")):
        body = chat("hi", max_tokens=4)
        body[name] = value
        if value == 1e999:
            body = json.dumps(body).replace("Infinity", "1e999").encode()
        refused(path, body, 400, name)
    refused(path, {}, 400, "messages")
    refused("/v1/completions", {}, 400, "prompt")
    refused("/v1/completions", {"prompt": ["a", "b"]}, 400, "prompt")
    refused("/v1/completions", {"prompt": [-1]}, 400, "prompt")
    refused("/v1/completions", {"prompt": [1 << 40]}, 400, "prompt")
    refused("/v1/completions", {"prompt": "a", "logprobs": True}, 400, "logprobs")
    refused("/v1/completions", {"prompt": "word " * 4000}, 400, "prompt")
    refused("/detokenize", {"tokens": [99999999]}, 400, "tokens")
    refused("/tokenize", {"content": 5}, 400, "content")
    refused("/v1/nowhere", {}, 404, None)
    refused("/v1/models", {}, 405, None)
    refused("/../../etc/passwd", {}, 404, None)
    refused(path, chat("hi"), 403, None, {"Origin": "http://example.com"})
    refused(path, chat("hi"), 403, None, {"Host": "example.com"})
    # What asks for nothing is accepted.
    status, answer = server.post(path, chat(
        "hi", max_tokens=1, n=1, logprobs=False, logit_bias={}, presence_penalty=0, tools=[],
        tool_choice="auto", response_format={"type": "text"}, user="me", metadata={"a": "b"},
        store=False, stop=None, top_logprobs=None, model="moe-demo-q4"))
    check("defaults are accepted", status == 200, answer)


def test_hostile(server):
    path = "/v1/chat/completions"
    for body in (b"", b"{", b"[]", b"null", b"\x00", b'{"messages": }', b"{'messages': []}",
                 b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
                 b'{"a": "\xed\xa0\x80"}', b"[" * 100000, b'{"a":' * 100000, b'{} {}', b"{}x",
                 b'{"prompt": "a" /* comment */}', b'\xef\xbb\xbf{}', b'{"messages": NaN}'):
        status, answer = server.post(path, body)
        check(f"hostile {body[:40]!r}", status == 400 and answer["error"]["message"],
              (status, answer))
    status, answer = server.post("/v1/completions", b'{"prompt": "a\\u0000b", "max_tokens": 2}')
    check("a NUL in a prompt", status == 200, answer)
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\n" % path.encode()
    answer = server.raw(head + b"Content-Length: 99999999\r\n\r\n")
    check("a length that is too large", answer.startswith(b"HTTP/1.1 413"), answer[:200])
    answer = server.raw(head + b"X: " + b"y" * 100000 + b"\r\n\r\n")
    check("headers that are too large", answer[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 413"),
          answer[:200])
    piece = b"%x\r\n" % 65536 + b" " * 65536 + b"\r\n"
    answer = server.raw(head + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" +
                        piece * 80 + b"0\r\n\r\n")
    check("a chunked body that is too large", answer.startswith(b"HTTP/1.1 413"), answer[:200])
    server.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
    server.raw(b"GET / HTTP/9.9\r\n\r\n")
    server.raw(b"POST " + b"/" * 40000 + b" HTTP/1.1\r\n\r\n")
    check("alive after all that", server.get("/health")[0] == 200)


def test_leaving(server):
    """A client that leaves frees its session, with and without a stream, before and while the model
    writes; a slow one holds nobody up."""
    long = {"prompt": PROMPTS[0], "ignore_eos": True, "temperature": 0, "max_tokens": 1800}
    before = server.metrics()
    for stream in (True, False):
        for wait_for_text in (True, False):
            sockets = []
            for _ in range(4):
                data = json.dumps(dict(long, stream=stream)).encode()
                s = socket.create_connection(("127.0.0.1", server.port))
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                          b"Content-Length: %d\r\n\r\n" % len(data) + data)
                sockets.append(s)
            if wait_for_text:
                if stream:
                    for s in sockets:
                        s.recv(1000)
                else:
                    wait_until(lambda: server.metrics()["sessions_active"] == 4)
            for s in sockets:
                s.close()
            check("sessions are free again",
                  wait_until(lambda: server.metrics()["sessions_active"] == 0), server.metrics())
    check("cancelled requests are counted",
          wait_until(lambda: server.metrics()["requests_cancelled_total"] >=
                     before["requests_cancelled_total"] + 8), server.metrics())
    check("none is left", wait_until(lambda: server.metrics()["sessions_active"] == 0))
    after = server.metrics()
    check("idle sessions are few", after["sessions_idle"] <= 4, after)
    # One that does not read: others are answered, and its session ends by itself.
    data = json.dumps(dict(long, stream=True, max_tokens=500)).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(data) + data)
        status, _ = server.post("/v1/completions", {"prompt": "a", "max_tokens": 4})
        check("answered beside a slow client", status == 200)
        check("a slow client's answer ends",
              wait_until(lambda: server.metrics()["sessions_active"] == 0), server.metrics())


def test_full_queue():
    server = Server(command, model, "--parallel", "1")
    long = {"prompt": "a", "ignore_eos": True, "max_tokens": 1500, "stream": True}
    data = json.dumps(long).encode()
    head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" %
            len(data))
    sockets = []
    for _ in range(40):
        s = socket.create_connection(("127.0.0.1", server.port), timeout=120)
        s.sendall(head + data)
        sockets.append(s)
    refused, left, end = 0, sockets[19:], time.monotonic() + 120
    while left and not refused and time.monotonic() < end:
        for s in select.select(left, [], [], 1)[0]:
            left.remove(s)
            try:
                answer = s.recv(4000)
            except ConnectionError:
                continue
            if answer.startswith(b"HTTP/1.1 503"):
                refused += b"Retry-After: " in answer and b'"overloaded"' in answer
    check("a full queue refuses", refused > 0, refused)
    for s in sockets:
        s.close()
    check("all are gone", wait_until(lambda: server.metrics()["sessions_active"] == 0 and
                                     server.metrics()["requests_waiting"] == 0), server.metrics())
    check("exit status", server.close() == 0, server.log)


def test_keys():
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("# keys\nfirst-key\n\nsecond-key\n")
        file.flush()
        server = Server(command, model, "--api-key-file", file.name, "--alias", "my model")
        body = chat("hi", max_tokens=1)
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "first-key"},
                        {"Authorization": "Bearer first-key2"}, {"Authorization": "Bearer # keys"},
                        {"Authorization": "Bearer "}):
            status, answer = server.post("/v1/chat/completions", body, headers)
            check(f"key {headers}", status == 401 and
                  answer["error"]["code"] == "invalid_api_key", answer)
        for key in ("first-key", "second-key"):
            headers = {"Authorization": "Bearer " + key}
            status, answer = server.post("/v1/chat/completions", body, headers)
            check(f"key {key}", status == 200 and answer["model"] == "my model", answer)
        check("health needs no key", server.get("/health")[0] == 200)
        check("metrics need one", server.get("/metrics")[0] == 401)
        server.close()
        check("no prompt and no key in the log", not any("hi" == w or "first-key" in w for line in
                                                         server.log for w in line.split()))


def test_start():
    def fails(*options):
        done = subprocess.run([command, "serve", "-m", model, *options], capture_output=True,
                              text=True, timeout=120)
        return done.returncode, done.stderr
    status, error = fails("--host", "0.0.0.0", "--port", "0")
    check("another address needs keys", status == 1 and "--api-key-file" in error, error)
    status, error = fails("--api-key-file", "/nonexistent")
    check("a missing file of keys", status == 1 and "/nonexistent" in error, error)
    status, error = fails("--api-key-file", "/dev/null")
    check("an empty file of keys", status == 1 and "no key" in error, error)
    status, error = fails("--parallel", "9", "-b", "8")
    check("more sessions than rows", status == 2 and "-b" in error, error)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, error = fails("--port", port)
        check("a port that is taken", status == 1 and port in error, error)


def test_drain():
    """SIGTERM: an answer that has begun is finished, a new one is refused, the status is 0."""
    server = Server(command, model)
    body = {"prompt": PROMPTS[1], "ignore_eos": True, "temperature": 0, "max_tokens": 700}
    got = []
    thread = threading.Thread(target=lambda: got.append(server.post("/v1/completions", body)))
    thread.start()
    wait_until(lambda: server.metrics()["sessions_active"] == 1)
    kept = server.connect()
    kept.request("GET", "/health")
    kept.getresponse().read()
    server.send_signal(signal.SIGTERM)
    wait_until(lambda: any("shutting down" in line for line in server.log))
    kept.request("GET", "/health")
    check("refused while it ends", kept.getresponse().status == 503)
    kept.close()
    thread.join()
    check("the answer that had begun", got[0][0] == 200 and
          got[0][1]["usage"]["completion_tokens"] == 700, got[0][1].get("usage"))
    check("exit status", server.wait() == 0, server.log)


# Residual streams, chosen pools and blocks of positions, rows from disk, compressed keys, delta rules.
FAMILIES = ["qwen4exp", "deepseek4-long"] if SMALL else \
    ["hy_v4-long", "glm5-next-long", "qwen4exp", "deepseek4-long", "bailingmoe3-long"]
BEGINNING = "the cat and the dog went out, and the day was good; a red ball was there. " * 4


def leave_early(server, body):
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps(dict(body, stream=True, max_tokens=900)))
    connection.getresponse().readline()
    connection.close()


def test_family(name, cache):
    """Four sessions in each pass, answers that go on from one session, prompts that begin alike, a
    client that leaves, and a session from the disk: always the text of `run`."""
    path = os.path.join(families, name, "model.gguf")
    prompts = [BEGINNING + end for end in ("Tom", "Anna has", "Why?")] + ["abcabcabcdabc"]
    wanted = [run(command, path, p, "--temp", "0", "-n", "24", "--ignore-eos").decode() for p in prompts]
    check(f"{name}, texts of run", len(set(wanted)) > 1 and all(wanted), wanted)
    bodies = [{"prompt": p, "temperature": 0, "max_tokens": 24, "ignore_eos": True} for p in prompts]

    def client(server, i):
        if i % 2 == 0:
            got = streamed_text(server.stream("/v1/completions", bodies[i]))
        else:
            status, answer = server.post("/v1/completions", bodies[i])
            got = text_of(answer) if status == 200 else answer
        check(f"{name}, prompt {i} of four", got == wanted[i], (got, wanted[i]))

    server = Server(command, path, "--parallel", "4", "--cache-dir", cache)
    try:
        for _ in range(2):  # the second time their sessions are there
            threads = [threading.Thread(target=client, args=(server, i)) for i in range(len(prompts))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            leave_early(server, bodies[0])
        status, answer = server.post("/v1/completions", dict(bodies[1], n=3))
        texts = [choice["text"] for choice in answer["choices"]] if status == 200 else answer
        check(f"{name}, three answers", texts == [wanted[1]] * 3, (texts, wanted[1]))
        status, answer = server.post("/v1/completions", bodies[2])
        check(f"{name}, a prompt again", text_of(answer) == wanted[2] and
              answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, answer)
        metrics = server.metrics()
        rows = {key: metrics[f"rows_{key}total"] for key in ("", "waited_", "failed_")}
        check(f"{name}, rows", rows["failed_"] == 0 and rows["waited_"] <= rows[""] and
              (rows[""] > 0) == (name == "qwen4exp"), rows)
    finally:
        check(f"{name}, exit status", server.close() == 0, server.log[-5:])
    server = Server(command, path, "--parallel", "4", "--cache-dir", cache)
    try:
        status, answer = server.post("/v1/completions", bodies[0])
        check(f"{name}, after a restart", text_of(answer) == wanted[0] and
              answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, answer)
    finally:
        server.close()


def test_families():
    with tempfile.TemporaryDirectory() as folder:
        for name in FAMILIES:
            test_family(name, os.path.join(folder, name))


def main():
    server = Server(command, model)
    try:
        wanted = cases()
        test_same_text(server, wanted)
        test_neighbours(server, wanted)
        test_stop_strings(server)
        test_cut_off(server)
        test_prefix(server)
        test_other_addresses(server)
        test_refusals(server)
        test_hostile(server)
        test_leaving(server)
        test_same_text(server, wanted[:4])
    finally:
        status = server.close()
    check("exit status", status == 0, server.log[-5:])
    check("no prompt in the log", not any("Anna" in line or "apples" in line
                                          for line in server.log))
    test_full_queue()
    test_keys()
    test_start()
    test_drain()
    test_families()
    print(f"{n_checks} checks, {failed} failed")
    return failed != 0 or n_checks < 200


sys.exit(main())
