# SPDX-License-Identifier: MIT
"""The `anthropic` package as a client of /v1/messages: whole, streams, stop sequences, counting, errors.
Skips where the package is not installed. Arguments: the command, a model with a chat template."""
import sys
import tempfile

from serving import HERMES, Server, run

try:
    import anthropic
except ImportError:
    print("skipped: the package anthropic is not installed")
    sys.exit(77)

command, model = sys.argv[1:3]
PROMPT = "Tom has 5 pens. He buys 7 more. How many pens does he have?"


def messages(client, name):
    text = run(command, model, PROMPT, "--temp", "0", "-n", "60", chat=True).decode()
    fields = {"model": name, "max_tokens": 60, "extra_body": {"temperature": 0},
              "messages": [{"role": "user", "content": PROMPT}]}
    answer = client.messages.create(**fields)
    assert answer.content[0].type == "text" and answer.content[0].text == text, (answer, text)
    assert answer.role == "assistant" and answer.stop_reason in ("end_turn", "max_tokens"), answer
    with client.messages.stream(**fields) as stream:
        pieces = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert pieces == text and final.content[0].text == text, (pieces, text)
    assert final.stop_reason == answer.stop_reason, final
    assert final.usage.output_tokens == answer.usage.output_tokens, final
    blocks = dict(fields, messages=[{"role": "user", "content": [{"type": "text", "text": PROMPT}]}])
    assert client.messages.create(**blocks).content[0].text == text
    stop = text[8:11]
    answer = client.messages.create(stop_sequences=["no such text", stop], **fields)
    assert answer.stop_reason == "stop_sequence" and answer.stop_sequence == stop, answer
    assert answer.content[0].text == text[:text.index(stop)], answer


def system(client, name):
    """The same tokens as those of a chat with a system message."""
    plain = client.messages.count_tokens(model=name, messages=[{"role": "user", "content": "Hi"}])
    more = client.messages.count_tokens(model=name, system="Be brief, please.",
                                        messages=[{"role": "user", "content": "Hi"}])
    assert 0 < plain.input_tokens < more.input_tokens, (plain, more)
    answer = client.messages.create(model=name, system="Be brief, please.", max_tokens=8,
                                    messages=[{"role": "user", "content": "Hi"}])
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == more.input_tokens, (usage, more)
    assert answer.stop_reason in ("end_turn", "max_tokens") and usage.output_tokens <= 8, answer


def tools(client, name):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}},
              "required": ["city"]}
    fields = {"model": name, "max_tokens": 100,
              "tools": [{"name": "get_weather", "description": "Weather.", "input_schema": schema}]}
    asked = [{"role": "user", "content": "What is the weather in Ulm?"}]
    one = {"type": "any", "disable_parallel_tool_use": True}
    answer = client.messages.create(messages=asked, tool_choice=one, **fields)
    use = answer.content[-1]
    assert answer.stop_reason == "tool_use" and use.type == "tool_use", answer
    assert use.name == "get_weather" and set(use.input) == {"city"}, use
    with client.messages.stream(messages=asked, tool_choice={
            "type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
                                **fields) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use" and set(final.content[-1].input) == {"city"}, final
    more = asked + [{"role": "assistant", "content": answer.content},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": use.id,
                         "content": [{"type": "text", "text": "sunny"}]},
                        {"type": "text", "text": "And tomorrow?"}]}]
    counted = client.messages.count_tokens(model=name, messages=more, tools=fields["tools"])
    answer = client.messages.create(messages=more, tool_choice={"type": "none"},
                                    **dict(fields, max_tokens=4))
    assert counted.input_tokens > 50 and answer.usage.output_tokens <= 4, (counted, answer)


def errors(client, name, base):
    fields = {"model": name, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    for more, kind in (({"extra_body": {"temperature": -1}}, anthropic.BadRequestError),
                       ({"tools": [{"name": "f", "input_schema": {"type": "object"}}]},
                        anthropic.BadRequestError),
                       ({"messages": [{"role": "user", "content": [{"type": "image"}]}]},
                        anthropic.BadRequestError),
                       ({"thinking": {"type": "sometimes"}},
                        anthropic.BadRequestError)):
        try:
            client.messages.create(**dict(fields, **more))
            assert False, more
        except kind as error:
            assert error.body["type"] == "error" and error.body["error"]["message"], error.body
            name_of = next(iter(more.get("extra_body", more)))
            assert name_of in error.body["error"]["message"], error.body
    try:
        anthropic.Anthropic(base_url=base, api_key="wrong", max_retries=0).messages.create(**fields)
        assert False, "a wrong key was taken"
    except anthropic.AuthenticationError as error:
        assert error.body["error"]["type"] == "authentication_error", error.body


def main(keys):
    server = Server(command, model, "--api-key-file", keys)
    base = f"http://127.0.0.1:{server.port}"
    client = anthropic.Anthropic(base_url=base, api_key="a-key", max_retries=0)
    try:
        name = server.get("/v1/models", {"Authorization": "Bearer a-key"})[1]["data"][0]["id"]
        messages(client, name)
        system(client, name)
        errors(client, name, base)
    finally:
        status = server.close()
    assert status == 0, server.log
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(HERMES)
        template.flush()
        server = Server(command, model, "--chat-template", template.name, "-c", "2048")
        try:
            client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}",
                                         api_key="none", max_retries=0)
            tools(client, server.get("/v1/models")[1]["data"][0]["id"])
        finally:
            status = server.close()
        assert status == 0, server.log
    print("anthropic", anthropic.__version__, "passed")


with tempfile.NamedTemporaryFile("w") as file:
    file.write("a-key\n")
    file.flush()
    main(file.name)
