# SPDX-License-Identifier: MIT
"""Texts with a gap (suffix, /infill) and prompts that come back (echo). What is written is compared
with that of the same tokens, put together here. Arguments: the command, a model."""
import os
import sys
import tempfile

from serving import Server, check, end_of_test
from with_tokens import with_tokens

command, model = sys.argv[1:3]
COMPLETIONS, INFILL = "/v1/completions", "/infill"
MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"]
FIXED = {"temperature": 0, "max_tokens": 16}


def ids(server, text, **fields):
    return server.post("/tokenize", dict({"content": text, "add_special": False}, **fields))[1]["tokens"]


def write(server, prompt, **fields):
    status, answer = server.post(COMPLETIONS, dict({"prompt": prompt}, **FIXED, **fields))
    check(f"{fields}: status", status == 200, answer)
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]


def streamed(server, path, body):
    events = [e for e in server.stream(path, body) if e != "[DONE]"]
    return "".join(e["content"] if path == INFILL else e["choices"][0]["text"] for e in events), events[-1]


def test_gaps(server):
    marks = {name: ids(server, name) for name in MARKS}
    check("single tokens", all(len(m) == 1 for m in marks.values()), marks)
    begin = ids(server, "", add_special=True)
    plain = {"parse_special": False}

    def tokens(prefix, suffix, files=(), begun=""):
        all_files = [t for name, text in files for t in
                     marks[MARKS[3]] + ids(server, name, **plain) + ids(server, "\n") +
                     ids(server, text, **plain) + ids(server, "\n")]
        return (begin + all_files + marks[MARKS[0]] + ids(server, prefix, **plain) + marks[MARKS[1]] +
                ids(server, suffix, **plain) + marks[MARKS[2]] + ids(server, begun, **plain))
    stops = {"stop_token_ids": [m[0] for m in marks.values()]}
    prefix, suffix = "Once upon a time <|fim_suffix|>", " they lived happily.\n"
    expected = write(server, tokens(prefix, suffix), **stops)
    check("suffix", write(server, prefix, suffix=suffix) == expected, expected)
    check("no gap", write(server, prefix, suffix="") == write(server, prefix))
    body = {"input_prefix": prefix, "input_suffix": suffix, "n_predict": 16, "temperature": 0, "samplers": ["top_k"]}
    status, answer = server.post(INFILL, body)
    check("infill", status == 200 and (answer["content"], answer["tokens_evaluated"]) == expected and
          answer["stop"] is True and answer["stop_type"] in ("limit", "eos"), answer)
    text, last = streamed(server, INFILL, body)
    check("an infill that streams", text == expected[0] and last["stop"] is True and
          last["tokens_predicted"] == answer["tokens_predicted"], (text, last))
    files = [{"filename": "a.py", "text": "x = 1"}, {"filename": "b.py", "text": "<|fim_middle|>"}]
    expected = write(server, tokens(prefix, suffix, [(f["filename"], f["text"]) for f in files], "and"), **stops)
    answer = server.post(INFILL, dict(body, input_extra=files, prompt="and"))[1]
    check("files and a beginning", (answer["content"], answer["tokens_evaluated"]) == expected, answer)
    check("one token", server.post(INFILL, dict(body, n_predict=0))[1]["tokens_predicted"] <= 1)
    for wrong, field in (({"input_suffix": 3}, "input_suffix"), ({"input_prefix": None}, "input_prefix"),
                         ({"input_extra": [{"text": 3}]}, "input_extra"), ({"input_extra": {}}, "input_extra"),
                         ({"prompt": ["a"]}, "prompt"), ({"n_predict": -2}, "n_predict"), ({"n": 2}, "n")):
        status, answer = server.post(INFILL, dict(body, **wrong))
        check(f"refusal of {wrong}", status == 400 and answer["error"]["param"] == field, answer)
    status, answer = server.post(COMPLETIONS, {"prompt": [1, 2], "suffix": "a"})
    check("ids and a suffix", status == 400 and answer["error"]["param"] == "prompt", answer)
    check("an echo beside a gap", write(server, prefix, suffix=suffix, echo=True)[0].startswith(prefix))


def test_echo(server):
    prompt = "Once upon a time ✓"
    text, n = write(server, prompt)
    check("echo", write(server, prompt, echo=True) == (prompt + text, n))
    check("echo of ids", write(server, ids(server, prompt), echo=True)[0].startswith(prompt))
    check("no echo", write(server, prompt, echo=False) == (text, n))
    check("a stream", streamed(server, COMPLETIONS, dict(prompt=prompt, echo=True, **FIXED))[0] == prompt + text)
    status, answer = server.post(COMPLETIONS, dict(prompt=prompt, echo=True, n=3, **FIXED))
    check("three", [c["text"] for c in answer["choices"]] == 3 * [prompt + text], answer)
    for wrong, field in (({"echo": "yes"}, "echo"), ({"echo": False, "max_tokens": 0}, "max_tokens")):
        status, answer = server.post(COMPLETIONS, dict({"prompt": prompt, "echo": True}, **wrong))
        check(f"refusal of {wrong}", status == 400 and answer["error"]["param"] == field, answer)


def logprobs_of(server, prompt, **fields):
    status, answer = server.post(COMPLETIONS, dict(dict({"prompt": prompt, "echo": True, "logprobs": 3, "ignore_eos": True}, **FIXED),
                                                   **fields))
    check(f"{fields}: logprobs", status == 200, answer)
    return answer["choices"]


def test_echo_logprobs(server):
    """Tokens of the prompt are reported on as those that are written: what the model writes after a
    part of the prompt, forced by nothing, tells the same chances."""
    written, _ = write(server, "Once upon a time")
    prompt = "Once upon a time" + written
    tokens = ids(server, prompt)
    choice, = logprobs_of(server, tokens, max_tokens=4)
    told = choice["logprobs"]
    n = len(tokens)
    check("a row for each token", {len(told[k]) for k in told} == {n + 4}, told)
    check("the first has no chance", told["token_logprobs"][0] is None and told["top_logprobs"][0] is None, told)
    check("the text", choice["text"].startswith("".join(told["tokens"][:n])) and
          "".join(told["tokens"][:n]) == prompt, told)
    check("offsets", all(choice["text"][at:].startswith(t) for at, t in zip(told["text_offset"][:n], told["tokens"])))
    check("top 3", all(len(top) == 3 for top in told["top_logprobs"][1:]) and
          all(lp <= max(top.values()) + 1e-6 for lp, top in zip(told["token_logprobs"][1:], told["top_logprobs"][1:])))
    for at in (3, n // 2, n - 1):  # as if the model had written it
        status, answer = server.post(COMPLETIONS, {"prompt": tokens[:at], "max_tokens": 1, "temperature": 0, "logprobs": 3})
        one = answer["choices"][0]["logprobs"]
        check(f"the chances of token {at}", one["top_logprobs"][0] == told["top_logprobs"][at], (one, at))
    alone, = logprobs_of(server, tokens, max_tokens=0)
    check("no token more", alone["text"] == prompt and alone["finish_reason"] == "length" and
          alone["logprobs"] == {k: v[:n] for k, v in told.items()}, alone)
    check("without a cache", logprobs_of(server, tokens, max_tokens=4) == [choice])
    check("two answers", [c["logprobs"]["token_logprobs"] for c in logprobs_of(server, tokens, max_tokens=4, n=2)] ==
          2 * [told["token_logprobs"]])
    events = [e for e in server.stream(COMPLETIONS, dict(prompt=tokens, echo=True, logprobs=3, max_tokens=4,
                                                         ignore_eos=True, temperature=0)) if e != "[DONE]"]
    parts = [e["choices"][0]["logprobs"] for e in events if e["choices"][0]["logprobs"]]
    check("in a stream", {k: sum((p[k] for p in parts), []) for k in told} == told, parts)
    check("a prompt as text", logprobs_of(server, prompt, max_tokens=4) == [choice])
    check("others go on from it", write(server, prompt)[0] == write(server, tokens)[0])


server = Server(command, model, "-c", "1024", "-t", "1")
try:
    test_echo(server)
    test_echo_logprobs(server)
    for path, body in ((COMPLETIONS, {"prompt": "a", "suffix": "b"}),
                       (INFILL, {"input_prefix": "a", "input_suffix": "b"})):
        status, answer = server.post(path, body)
        check("a vocabulary without", status == 400 and "vocabulary" in answer["error"]["message"], answer)
finally:
    check("exit", server.close() == 0, server.log)
with tempfile.TemporaryDirectory() as folder:
    marked = os.path.join(folder, "marked.gguf")
    with_tokens(model, marked, MARKS)
    server = Server(command, marked, "-c", "1024", "-t", "1")
    try:
        test_gaps(server)
    finally:
        check("exit", server.close() == 0, server.log)
end_of_test()
