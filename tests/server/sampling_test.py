# SPDX-License-Identifier: MIT
"""Fields of sampling through the server: the texts of `run` with the same settings, several answers to
a prompt, logprobs. Arguments: the command, a model with a chat template."""
import json
import math
import re
import sys
import tempfile

from serving import Server, run

command, model = sys.argv[1:3]
PROMPT = "Tom has 5 pens. He buys 7 more. How many pens does he have? Tom has 5 pens. He buys"
failed = 0


def check(what, holds, shown=""):
    global failed
    if not holds:
        failed += 1
        print(f"FAIL {what}: {shown!r}"[:1500])


def pieces_of(events, index=0):
    return "".join(c["text"] if "text" in c else c["delta"].get("content") or ""
                   for e in events if e != "[DONE]" for c in e["choices"] if c["index"] == index)


def test_settings(server):
    """Penalties and biases, greedy and sampled."""
    for fields, flags in (
            ({"temperature": 0, "presence_penalty": 1.5},
             ["--temp", "0", "--presence-penalty", "1.5"]),
            ({"temperature": 0, "frequency_penalty": -0.75},
             ["--temp", "0", "--frequency-penalty", "-0.75"]),
            ({"temperature": 0.9, "seed": 4, "presence_penalty": 0.5, "frequency_penalty": 0.25,
              "repeat_penalty": 1.2},
             ["--temp", "0.9", "-s", "4", "--presence-penalty", "0.5", "--frequency-penalty", "0.25",
              "--repeat-penalty", "1.2"]),
            ({"temperature": 0, "logit_bias": {"7": -100, "300": 3.5, "12": -2}},
             ["--temp", "0", "--logit-bias", "7-inf,300+3.5", "--logit-bias", "12-2"])):
        text = run(command, model, PROMPT, "-n", "40", *flags).decode()
        body = dict(fields, prompt=PROMPT, max_tokens=40)
        status, answer = server.post("/v1/completions", body)
        check(str(fields), status == 200 and answer["choices"][0]["text"] == text, (answer, text))
        check(f"{fields} as a stream", pieces_of(server.stream("/v1/completions", body)) == text)


def test_choices(server):
    """Answer i is that of the seed plus i; the prompt is evaluated once."""
    texts = [run(command, model, PROMPT, "-n", "24", "--temp", "1", "-s", str(20 + i)).decode()
             for i in range(6)]
    body = {"prompt": PROMPT, "temperature": 1, "seed": 20, "max_tokens": 24, "n": 6}
    before = server.metrics()
    _, answer = server.post("/v1/completions", body)
    after = server.metrics()
    check("texts of n answers", [c["text"] for c in answer["choices"]] == texts, (answer, texts))
    check("their numbers", [c["index"] for c in answer["choices"]] == list(range(6)), answer)
    new = (after["prompt_tokens_total"] - after["cached_tokens_total"] -
           before["prompt_tokens_total"] + before["cached_tokens_total"])
    check("the prompt is shared", new <= answer["usage"]["prompt_tokens"] + 5, (before, after))
    check("usage", 6 * 1 <= answer["usage"]["completion_tokens"] <= 6 * 24, answer["usage"])
    events = server.stream("/v1/completions", body)
    check("n streams", [pieces_of(events, i) for i in range(6)] == texts, events[-3:])
    ends = [c["index"] for e in events[:-1] for c in e["choices"] if c["finish_reason"]]
    check("each ends once", sorted(ends) == list(range(6)), ends)
    chat = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 1, "seed": 3,
            "max_tokens": 12, "n": 2}
    wanted = [run(command, model, PROMPT, "-n", "12", "--temp", "1", "-s", str(3 + i),
                  chat=True).decode() for i in range(2)]
    _, answer = server.post("/v1/chat/completions", chat)
    check("two messages", [c["message"]["content"] for c in answer["choices"]] == wanted,
          (answer, wanted))


def test_logprobs(server):
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 16}
    _, plain = server.post("/v1/completions", body)
    _, answer = server.post("/v1/completions", dict(body, logprobs=4))
    got = answer["choices"][0]["logprobs"]
    check("the same text", answer["choices"][0]["text"] == plain["choices"][0]["text"])
    check("a row a token", len(got["tokens"]) == answer["usage"]["completion_tokens"] ==
          len(got["token_logprobs"]) == len(got["top_logprobs"]) == len(got["text_offset"]), got)
    check("tokens are the text", "".join(got["tokens"]).startswith(
        answer["choices"][0]["text"]), got)
    for token, logprob, top in zip(got["tokens"], got["token_logprobs"], got["top_logprobs"]):
        check("greedy takes the likeliest", logprob <= 0 and top[token] == logprob and
              max(top.values()) == logprob and sum(map(math.exp, top.values())) <= 1.0001, top)
    events = server.stream("/v1/completions", dict(body, logprobs=4))
    streamed = [t for e in events[:-1] for c in e["choices"] if c["logprobs"]
                for t in c["logprobs"]["tokens"]]
    check("streamed reports", streamed == got["tokens"], streamed)
    # Biases and temperature do not change what the model thought.
    first = server.post("/v1/completions", dict(body, max_tokens=1, logprobs=20))[1]
    other = server.post("/v1/completions", dict(
        body, max_tokens=1, logprobs=20, logit_bias={"300": 50}, temperature=2, seed=1))[1]
    check("before sampling", first["choices"][0]["logprobs"]["top_logprobs"] ==
          other["choices"][0]["logprobs"]["top_logprobs"], other)
    chat = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 8,
            "logprobs": True, "top_logprobs": 2}
    _, answer = server.post("/v1/chat/completions", chat)
    rows = answer["choices"][0]["logprobs"]["content"]
    check("chat", len(rows) == answer["usage"]["completion_tokens"] and
          all(len(r["top_logprobs"]) == 2 and r["logprob"] == r["top_logprobs"][0]["logprob"] and
              bytes(r["bytes"]).decode() == r["token"] for r in rows), rows)
    del chat["top_logprobs"]
    rows = server.post("/v1/chat/completions", chat)[1]["choices"][0]["logprobs"]["content"]
    check("without the likeliest", all(r["top_logprobs"] == [] for r in rows), rows)


SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "ages", "sex"],
          "properties": {"name": {"type": "string", "maxLength": 12},
                         "ages": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
                         "sex": {"enum": ["f", "m"]}, "note": {"type": ["null", "boolean"]}}}


def test_grammars(server):
    """What comes fits, whole and streamed, and is the text of `run`."""
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    for seed in range(6):
        body = {"prompt": PROMPT, "temperature": 1.3, "seed": seed, "max_tokens": 300,
                "response_format": wanted}
        _, answer = server.post("/v1/completions", body)
        text = answer["choices"][0]["text"]
        with tempfile.NamedTemporaryFile("w") as file:
            json.dump(SCHEMA, file)
            file.flush()
            same = run(command, model, PROMPT, "-n", "300", "--temp", "1.3", "-s", str(seed),
                       "--json-schema", file.name).decode()
        check("the text of run", text == same, (text, same))
        if answer["choices"][0]["finish_reason"] == "stop":
            got = json.loads(text)
            check("fits the schema", set(got) - {"note"} == {"name", "ages", "sex"} and
                  len(got["name"]) <= 12 and got["sex"] in "fm" and len(got["ages"]) <= 3 and
                  all(isinstance(a, int) for a in got["ages"]), got)
    body = {"prompt": PROMPT, "temperature": 1, "seed": 2, "max_tokens": 40, "n": 4,
            "grammar": 'root ::= ("yes" | "no" | [0-9]{1,3}) "."'}
    _, answer = server.post("/v1/completions", body)
    check("a grammar", all(re.fullmatch(r"(yes|no|\d{1,3})\.", c["text"]) for c in
                           answer["choices"]), answer)
    check("streamed", [pieces_of(server.stream("/v1/completions", body), i) for i in range(4)] ==
          [c["text"] for c in answer["choices"]])
    _, answer = server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 200,
        "response_format": {"type": "json_object"}})
    if answer["choices"][0]["finish_reason"] == "stop":
        check("an object", isinstance(json.loads(answer["choices"][0]["message"]["content"]), dict))


server = Server(command, model, "--parallel", "8")
try:
    test_settings(server)
    test_choices(server)
    test_logprobs(server)
    test_grammars(server)
finally:
    status = server.close()
check("exit status", status == 0, server.log[-5:])
sys.exit(failed != 0)
