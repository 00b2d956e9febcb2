# SPDX-License-Identifier: MIT
"""Embeddings: OpenAI's, llama-server's and Ollama's addresses, the three poolings, compared with each
other and with hidden states pooled here; with the package `openai`, if it is installed, its client
does so, too. Arguments: the command, a model."""
import base64
import math
import struct
import sys
import threading

from serving import Server, check, end_of_test

try:
    import openai
except ImportError:
    openai = None

command, model = sys.argv[1:3]
TEXTS = ["Once upon a time", "A dog ran.", "Once upon a time there was a very little girl", "é漢 <|im_end|>",
         "x", "Tom has 5 pens. He buys 7 more."]
PATH = "/v1/embeddings"


def embed(server, given, **fields):
    status, answer = server.post(PATH, dict({"input": given}, **fields))
    check(f"{given}: status", status == 200 and answer["object"] == "list", answer)
    check("places", [d["index"] for d in answer["data"]] == list(range(len(answer["data"]))), answer)
    return [d["embedding"] for d in answer["data"]], answer


def ids(server, text):
    return server.post("/tokenize", {"content": text, "add_special": True, "parse_special": False})[1]["tokens"]


def near(a, b):
    return len(a) == len(b) and all(math.isclose(x, y, rel_tol=1e-5, abs_tol=1e-6) for x, y in zip(a, b))


def unit(v):
    length = math.sqrt(sum(x * x for x in v))
    return [x / length for x in v]


def test_openai(server):
    vectors, answer = embed(server, TEXTS)
    tokens = [ids(server, t) for t in TEXTS]
    n = sum(map(len, tokens))
    check("usage", answer["usage"] == {"prompt_tokens": n, "total_tokens": n} and answer["model"], answer["usage"])
    check("length 1", all(near([sum(x * x for x in v)], [1]) for v in vectors))
    check("one by one", [embed(server, t)[0][0] for t in TEXTS] == vectors)
    check("again, from the end", embed(server, TEXTS[::-1])[0] == vectors[::-1])
    check("ids of one text", embed(server, tokens[2])[0] == [vectors[2]])
    check("ids of several", embed(server, tokens)[0] == vectors)
    coded = embed(server, TEXTS, encoding_format="base64")[0]
    check("base64", [struct.pack(f"<{len(v)}f", *v) for v in vectors] == [base64.b64decode(c) for c in coded])
    check("its width", embed(server, "x", dimensions=len(vectors[0]), user="me", model="any")[0] == [vectors[4]])
    product = sum(a * b for a, b in zip(vectors[0], vectors[2]))
    check("alike", product > sum(a * b for a, b in zip(vectors[0], vectors[1])), product)
    return vectors


def test_beside(server, vectors):
    """Others write meanwhile; the vectors are the same, and so are their texts."""
    asked = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 40}
    expected = server.post("/v1/completions", asked)[1]["choices"][0]["text"]
    texts, got = [], []
    threads = [threading.Thread(target=lambda: texts.append(server.post("/v1/completions", asked)[1]["choices"][0]["text"]))
               for _ in range(3)] + [threading.Thread(target=lambda: got.append(embed(server, TEXTS)[0])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check("texts beside", texts == 3 * [expected], texts)
    check("vectors beside", got == 3 * [vectors])


def test_ollama(server, vectors):
    status, answer = server.post("/api/embed", {"model": "any", "input": TEXTS, "keep_alive": "5m", "options": {}})
    check("embed", status == 200 and answer["embeddings"] == vectors and answer["total_duration"] > 0 and
          answer["prompt_eval_count"] == sum(len(ids(server, t)) for t in TEXTS), answer)
    check("one text", server.post("/api/embed", {"input": "x"})[1]["embeddings"] == [vectors[4]])
    status, answer = server.post("/api/embeddings", {"model": "any", "prompt": "A dog ran."})
    check("embeddings", status == 200 and near(unit(answer["embedding"]), vectors[1]) and
          not near(answer["embedding"], vectors[1]), answer)
    long_text = "pen " * 3000
    status, answer = server.post("/api/embed", {"input": long_text})
    check("cut to the context", status == 200 and answer["prompt_eval_count"] == 1024, answer)
    status, answer = server.post("/api/embed", {"input": long_text, "truncate": False})
    check("not cut", status == 400 and "1024" in answer["error"], answer)


def test_refusals(server):
    for wrong, field in (({}, "input"), ({"input": []}, "input"), ({"input": 3}, "input"), ({"input": [[]]}, "input"),
                         ({"input": ["a", 3]}, "input"), ({"input": [1 << 40]}, "input"), ({"input": [-1]}, "input"),
                         ({"input": {"a": 1}}, "input"), ({"input": ["a"] * 2049}, "input"),
                         ({"input": "pen " * 3000}, "input"), ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
                         ({"input": "a", "dimensions": 5}, "dimensions"), ({"input": "a", "stream": True}, "stream"),
                         ({"input": "a", "messages": []}, "messages")):
        status, answer = server.post(PATH, wrong)
        check(f"refusal of {str(wrong)[:60]}", status == 400 and answer["error"]["param"] == field, answer)


def test_package(server, vectors):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    for fields in ({}, {"encoding_format": "float"}):  # it asks for base64 by itself
        answer = client.embeddings.create(model="any", input=TEXTS, **fields)
        check("openai", all(near(d.embedding, v) for d, v in zip(answer.data, vectors)) and
              len(answer.data) == len(vectors), answer)


def with_server(test, *options):
    server = Server(command, model, "-c", "1024", "-t", "1", *options)
    try:
        return test(server)
    finally:
        check("exit", server.close() == 0, server.log)


def by_mean(server):
    vectors = test_openai(server)
    test_beside(server, vectors)
    test_ollama(server, vectors)
    test_refusals(server)
    if openai is not None:
        test_package(server, vectors)
    return vectors


def by_token(server):
    status, answer = server.post("/embedding", {"content": TEXTS})
    check("by token", status == 200 and [len(a["embedding"]) for a in answer] ==
          [len(ids(server, t)) for t in TEXTS] and [a["index"] for a in answer] == list(range(6)), answer)
    status, refused = server.post(PATH, {"input": "a"})
    check("needs a pooling", status == 400 and "--pooling" in refused["error"]["message"], refused)
    return [a["embedding"] for a in answer]


def native(server):
    vectors = embed(server, TEXTS)[0]
    status, answer = server.post("/embedding", {"content": TEXTS})
    check("native", status == 200 and [a["embedding"] for a in answer] == [[v] for v in vectors], answer)
    return vectors


mean = with_server(by_mean)
check("chunks and sessions", with_server(native, "-b", "5", "--parallel", "3") == mean)
check("a small cache", with_server(native, "--expert-cache", "30%", "--panel", "64", "-b", "16", "--parallel", "1") == mean)
last = with_server(native, "--pooling", "last")
states = with_server(by_token, "--pooling", "none")
for i, rows in enumerate(states):
    check(f"mean of {i}", near(unit([sum(column) / len(rows) for column in zip(*rows)]), mean[i]))
    check(f"last of {i}", near(unit(rows[-1]), last[i]))
end_of_test()
