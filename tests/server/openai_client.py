# SPDX-License-Identifier: MIT
"""The `openai` package as a client of the server: chat, streams, completions, models, errors. Skips
where the package is not installed. Arguments: the command, a model with a chat template."""
import sys
import tempfile

from serving import Server, run

try:
    import openai
except ImportError:
    print("skipped: the package openai is not installed")
    sys.exit(77)

command, model = sys.argv[1:3]
PROMPT = "Tom has 5 pens. He buys 7 more. How many pens does he have?"


def chat(client, name):
    text = run(command, model, PROMPT, "--temp", "0", "-n", "60", chat=True).decode()
    fields = {"model": name, "messages": [{"role": "user", "content": PROMPT}], "temperature": 0,
              "max_completion_tokens": 60}
    answer = client.chat.completions.create(**fields)
    assert answer.choices[0].message.content == text, (answer, text)
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    pieces = ""
    usage = None
    for chunk in client.chat.completions.create(stream=True,
                                                stream_options={"include_usage": True}, **fields):
        usage = chunk.usage or usage
        pieces += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert pieces == text, (pieces, text)
    assert usage.completion_tokens == answer.usage.completion_tokens


def completion(client, name):
    text = run(command, model, PROMPT, "--temp", "0.7", "-s", "11", "-n", "20").decode()
    fields = {"model": name, "prompt": PROMPT, "temperature": 0.7, "seed": 11, "max_tokens": 20}
    answer = client.completions.create(**fields)
    assert answer.choices[0].text == text, (answer, text)
    pieces = "".join(chunk.choices[0].text
                     for chunk in client.completions.create(stream=True, **fields))
    assert pieces == text, (pieces, text)


def sampling(client, name):
    fields = {"model": name, "messages": [{"role": "user", "content": PROMPT}], "seed": 5,
              "max_completion_tokens": 16}
    answer = client.chat.completions.create(n=2, presence_penalty=0.5, frequency_penalty=0.5,
                                            logit_bias={"7": -100}, logprobs=True, top_logprobs=3,
                                            **fields)
    assert [c.index for c in answer.choices] == [0, 1], answer
    for choice in answer.choices:
        rows = choice.logprobs.content
        assert rows and all(len(row.top_logprobs) == 3 and row.logprob <= 0 for row in rows), rows
    texts = {0: "", 1: ""}
    for chunk in client.chat.completions.create(n=2, presence_penalty=0.5, frequency_penalty=0.5,
                                                logit_bias={"7": -100}, stream=True, **fields):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert [texts[i] for i in (0, 1)] == [c.message.content for c in answer.choices], texts


def errors(client, name, base):
    messages = [{"role": "user", "content": "hi"}]
    for fields, kind, param in (({"n": 99}, openai.BadRequestError, "n"),
                                ({"top_logprobs": 3}, openai.BadRequestError, "top_logprobs"),
                                ({"model": "other"}, openai.NotFoundError, "model")):
        try:
            client.chat.completions.create(**{"model": name, "messages": messages, **fields})
            assert False, fields
        except kind as error:
            assert error.param == param and error.body["message"], error.body
    try:
        openai.OpenAI(base_url=base, api_key="wrong").models.list()
        assert False, "a wrong key was taken"
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key"


def main(keys):
    server = Server(command, model, "--api-key-file", keys)
    base = f"http://127.0.0.1:{server.port}/v1"
    client = openai.OpenAI(base_url=base, api_key="a-key", max_retries=0)
    try:
        name = client.models.list().data[0].id
        chat(client, name)
        completion(client, name)
        sampling(client, name)
        errors(client, name, base)
    finally:
        status = server.close()
    assert status == 0, server.log
    print("openai", openai.__version__, "passed")


with tempfile.NamedTemporaryFile("w") as file:
    file.write("a-key\n")
    file.flush()
    main(file.name)
