# SPDX-License-Identifier: MIT
"""The `openai` package as a client of the server: chat, streams, completions, models, errors. Skips
where the package is not installed. Arguments: the command, a model with a chat template."""
import json
import sys
import tempfile

from serving import HERMES, Server, run

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


SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12},
                                           "days": {"type": "integer"}},
          "required": ["city", "days"], "additionalProperties": False}
FORCED = '<tool_call>{"name": "get_weather", "arguments": {"city": "Ulm", "days": 2}}</tool_call>'


def grammar(text):
    return {"grammar": "root ::= " + json.dumps(text)}


def tools(client, name):
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA,
                                             "strict": True}}
    fields = {"model": name, "tools": [tool], "max_completion_tokens": 200,
              "messages": [{"role": "user", "content": "What is the weather in Ulm?"}]}
    answer = client.chat.completions.create(extra_body=grammar(FORCED), **fields).choices[0]
    call = answer.message.tool_calls[0]
    assert answer.finish_reason == "tool_calls" and answer.message.content is None, answer
    assert call.function.name == "get_weather" and call.id, call
    assert json.loads(call.function.arguments) == {"city": "Ulm", "days": 2}, call
    got = ""
    for chunk in client.chat.completions.create(stream=True, extra_body=grammar(FORCED), **fields):
        for choice in chunk.choices:
            got += "".join(c.function.arguments for c in choice.delta.tool_calls or [])
    assert json.loads(got) == {"city": "Ulm", "days": 2}, got
    # What the model writes by itself, held to the schema; then its result goes back.
    answer = client.chat.completions.create(tool_choice="required", seed=3, **fields).choices[0]
    call = answer.message.tool_calls[0]
    assert set(json.loads(call.function.arguments)) == {"city", "days"}, call
    messages = fields["messages"] + [answer.message, {"role": "tool", "tool_call_id": call.id,
                                                      "content": "sunny"}]
    again = client.chat.completions.create(**dict(fields, messages=messages, tool_choice="none",
                                                  max_completion_tokens=8))
    assert again.choices[0].message.tool_calls is None, again


def schema(client, name):
    answer = client.chat.completions.create(
        model=name, messages=[{"role": "user", "content": PROMPT}], seed=1,
        max_completion_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}})
    assert set(json.loads(answer.choices[0].message.content)) == {"city", "days"}, answer


def responses(client, name, text):
    fields = {"model": name, "input": PROMPT, "temperature": 0, "max_output_tokens": 60}
    answer = client.responses.create(**fields)
    assert answer.output_text == text, (answer.output_text, text)
    assert answer.status in ("completed", "incomplete") and answer.usage.total_tokens > 0, answer
    with client.responses.stream(**fields) as stream:
        pieces = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert pieces == text and final.output_text == text, (pieces, final)
    items = [{"role": "user", "content": [{"type": "input_text", "text": PROMPT}]}]
    assert client.responses.create(**dict(fields, input=items)).output_text == text
    form = {"format": {"type": "json_schema", "name": "w", "schema": SCHEMA, "strict": True}}
    answer = client.responses.create(text=form, **dict(fields, max_output_tokens=200))
    assert set(json.loads(answer.output_text)) == {"city", "days"}, answer
    briefly = client.responses.create(instructions="Be brief.", **fields)
    assert briefly.usage.input_tokens > answer.usage.input_tokens, briefly
    more = client.responses.create(**dict(fields, previous_response_id=briefly.id))
    assert more.previous_response_id == briefly.id and more.usage.input_tokens > answer.usage.input_tokens, more
    for more, param in (({"previous_response_id": "resp_1"}, "previous_response_id"),
                        ({"truncation": "auto"}, "truncation"),
                        ({"input": [{"type": "input_image"}]}, "input")):
        try:
            client.responses.create(**dict(fields, **more))
            assert False, more
        except openai.BadRequestError as error:
            assert error.param == param, error.body


def response_tools(client, name):
    tool = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}
    items = [{"role": "user", "content": "What is the weather in Ulm?"}]
    fields = {"model": name, "tools": [tool], "input": items, "max_output_tokens": 200}
    answer = client.responses.create(extra_body=grammar("I look. " + FORCED), **fields)
    assert [i.type for i in answer.output] == ["message", "function_call"], answer
    call = answer.output[1]
    assert answer.output_text == "I look." and call.name == "get_weather", answer
    assert json.loads(call.arguments) == {"city": "Ulm", "days": 2} and call.call_id, call
    with client.responses.stream(extra_body=grammar("I look. " + FORCED), **fields) as stream:
        kinds = [e.type for e in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    assert "response.function_call_arguments.done" in kinds, kinds
    assert [i.type for i in final.output] == ["message", "function_call"], final
    items = items + [call.to_dict(), {"type": "function_call_output", "call_id": call.call_id,
                                      "output": "sunny"}]
    again = client.responses.create(**dict(fields, input=items, tool_choice="none",
                                           max_output_tokens=8))
    assert again.output and again.usage.output_tokens <= 8, again
    one = client.responses.create(tool_choice={"type": "function", "name": "get_weather"}, **fields)
    assert one.output[-1].type == "function_call", one


def errors(client, name, base):
    messages = [{"role": "user", "content": "hi"}]
    for fields, kind, param in (({"n": 99}, openai.BadRequestError, "n"),
                                ({"top_logprobs": 3}, openai.BadRequestError, "top_logprobs"),
                                ({"messages": []}, openai.BadRequestError, "messages")):
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
        schema(client, name)
        responses(client, name, run(command, model, PROMPT, "--temp", "0", "-n", "60",
                                    chat=True).decode())
    finally:
        status = server.close()
    assert status == 0, server.log
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(HERMES)
        template.flush()
        server = Server(command, model, "--chat-template", template.name, "-c", "2048")
        try:
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none",
                                   max_retries=0)
            name = client.models.list().data[0].id
            tools(client, name)
            response_tools(client, name)
        finally:
            status = server.close()
        assert status == 0, server.log
    print("openai", openai.__version__, "passed")


with tempfile.NamedTemporaryFile("w") as file:
    file.write("a-key\n")
    file.flush()
    main(file.name)
