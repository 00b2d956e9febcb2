# SPDX-License-Identifier: MIT
"""What models of many families write when they call tools, read by the server: whole answers and
streams. A grammar makes the demo model write each text of tool_corpus/corpus.json. Prints a score
for each family, and beside it how often sglang's parser reads the same (results kept in the file).
Arguments: the command, a model, the folder of templates; then names of families, or a folder of real
templates (--real FOLDER, of llama.cpp's names) that take the place of those kept here."""
import json
import os
import sys
import tempfile

from serving import FORCED, SMALL, Server
from with_tokens import with_tokens

command, model, folder = sys.argv[1:4]
only = sys.argv[4:]
real = only.pop(only.index("--real") + 1) if "--real" in only else None
only = [name for name in only if name != "--real"]
here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tool_corpus")
with open(os.path.join(here, "corpus.json"), encoding="utf-8") as file:
    CORPUS = json.load(file)
if not only and SMALL:
    only = ["qwen3", "qwen3-coder", "gemma-4", "lfm2", "kimi-k2", "kimi-k3", "hunyuan-4", "gpt-oss"]
# Marks that are control tokens in the vocabulary of the family's models.
CONTROL = {
    "gpt-oss": ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>",
                "<|return|>"],
    "kimi-k2": ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
                "<|tool_call_end|>", "<|tool_calls_section_end|>"],
    "kimi-k3": ["<|open|>", "<|close|>", "<|sep|>"],
    "kimi-k3-answers": ["<|open|>", "<|close|>", "<|sep|>"],
    "gemma-4": ["<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>", "<|turn>"],
    "lfm2": ["<|tool_call_start|>", "<|tool_call_end|>"],
    "llama-3.1-tag": ["<|python_tag|>"],
    "apertus": ["<|tools_prefix|>", "<|tools_suffix|>"],
    "hunyuan-4": [f"<{end}{name}:6124c78e>" for end in ("", "/")
                  for name in ("think", "tool_calls", "tool_call", "arg_key", "arg_value")],
}
# Families: their template among llama.cpp's.
REAL = {
    "qwen3": "Qwen-Qwen3-0.6B", "qwen3-coder": "Qwen3-Coder", "glm-4.6": "GLM-4.6",
    "glm-4.7": "GLM-4.7-Flash", "deepseek-v3": "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-v3.1": "deepseek-ai-DeepSeek-V3.1", "deepseek-v3.2": "deepseek-ai-DeepSeek-V3.2",
    "deepseek-v4": "deepseek-ai-DeepSeek-V4",
    "kimi-k3": "Kimi-K3", "kimi-k3-answers": "Kimi-K3", "kimi-k2": "Kimi-K2-Instruct", "kimi-k2-ids": "moonshotai-Kimi-K2",
    "gemma-4": "google-gemma-4-31B-it", "lfm2": "LFM2-8B-A1B", "llama-3.1": "meta-llama-Llama-3.1-8B-Instruct",
    "llama-3.1-tag": "meta-llama-Llama-3.3-70B-Instruct", "granite-3.3": "ibm-granite-granite-3.3-2B-Instruct",
    "granite-3.3-tag": "ibm-granite-granite-3.3-2B-Instruct", "granite-4": "ibm-granite-granite-4.0",
    "mistral-small-3.2": "Mistral-Small-3.2-24B-Instruct-2506",
    "mistral-small-3.2-ids": "Mistral-Small-3.2-24B-Instruct-2506",
    "mistral-nemo": "mistralai-Mistral-Nemo-Instruct-2407", "minimax-m2": "MiniMax-M2",
    "minimax-m3": "MiniMax-M3", "seed-oss": "ByteDance-Seed-OSS", "step-3.5": "StepFun3.5-Flash",
    "hunyuan-3": "tencent-Hy3", "apertus": "Apertus-8B-Instruct",
    "command": "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "functionary-3.1": "meetkai-functionary-medium-v3.1", "gpt-oss": "openai-gpt-oss-120b",
}
failed = 0


def grammar_of(text, tokens):
    """A grammar of this one text; marks that are control tokens are named by their numbers."""
    out, rest = "root ::= ", text
    while rest:
        places = [(rest.find(t), t) for t in tokens if t in rest]
        at, token = min(places) if places else (len(rest), "")
        if at > 0:
            out += json.dumps(rest[:at], ensure_ascii=False) + " "
        if token:
            out += f"<[{tokens[token]}]> "
        rest = rest[at + len(token):]
    return out


def streamed(events):
    content, reasoning, calls, reason = "", "", {}, None
    for event in events:
        for choice in event["choices"] if event != "[DONE]" else []:
            delta = choice["delta"]
            content += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                known = calls.setdefault(call["index"], {"id": None, "name": None, "arguments": ""})
                known["id"] = known["id"] or call.get("id")
                known["name"] = known["name"] or call["function"].get("name")
                known["arguments"] += call["function"]["arguments"]
            reason = choice["finish_reason"] or reason
    return content, reasoning, [calls[i] for i in sorted(calls)], reason


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def read(server, case, tokens, stream, kwargs):
    """What the server makes of a text: content, reasoning, calls, ids, the reason of the end."""
    body = {"messages": [{"role": "user", "content": "What is new?"}], "tools": CORPUS["tools"],
            "temperature": 0, "max_tokens": 4000, "grammar": grammar_of(case["text"], tokens),
            "chat_template_kwargs": kwargs}
    if stream:
        content, reasoning, calls, reason = streamed(server.stream("/v1/chat/completions", body))
    else:
        status, answer = server.post("/v1/chat/completions", body)
        if status != 200:
            return answer
        choice = answer["choices"][0]
        message, reason = choice["message"], choice["finish_reason"]
        content, reasoning = message["content"] or "", message.get("reasoning_content", "")
        calls = [dict(c["function"], id=c["id"]) for c in message.get("tool_calls") or []]
    return [content, reasoning, [[c["name"], parsed(c["arguments"])] for c in calls],
            [c["id"] for c in calls], reason]


def holds(case, got, stream):
    if not isinstance(got, list):
        return False
    content, reasoning, calls, ids, reason = got
    if case.get("cut") and stream and calls:
        # A stream has told the beginning of a call that did not become one.
        return len(calls) == 1 and isinstance(calls[0][1], str) and content == ""
    return (content, reasoning, calls) == (case["content"], case["reasoning"], case["calls"]) and \
        reason == ("tool_calls" if calls else "stop") and len(set(ids)) == len(ids) and \
        (case["ids"] is None or ids == case["ids"])


def path_of(name, template):
    if real is not None:
        return os.path.join(real, REAL[name] + ".jinja") if name in REAL else None
    if template.startswith("own/"):
        return os.path.join(here, "templates", template[4:] + ".jinja")
    return os.path.join(folder, template + ".jinja")


def goes_back(server, name):
    """Calls and their results are in the next prompt."""
    messages = [{"role": "user", "content": "What is new?"},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "functions.ping:0" if "kimi-k2" in name else "abcdefgh1", "type": "function",
                     "function": {"name": "ping", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "functions.ping:0" if "kimi-k2" in name else "abcdefgh1",
                 "content": "pong-result"}]
    status, answer = server.post("/apply-template", {"messages": messages, "tools": CORPUS["tools"]})
    text = answer.get("prompt", "")
    found = status == 200 and "pong-result" in text and text.count("ping") > 1
    if "kimi-k2" in name:
        found = found and "Return of functions.ping:0" in text
    return found or answer


def test_family(name, family, model_of_it, tokens):
    global failed
    path = path_of(name, family["template"])
    if path is None:
        return
    right = n = agreed = asked = 0
    server = Server(command, model_of_it, "--chat-template", path, "-c", "16384", *FORCED)
    try:
        ids = {}
        for token in tokens:
            _, answer = server.post("/tokenize", {"content": token, "parse_special": True})
            ids[token] = answer["tokens"][0]
        for case in family["cases"]:
            for stream in (False, True):
                got = read(server, case, ids, stream, family.get("kwargs", {}))
                n += 1
                if holds(case, got, stream):
                    right += 1
                else:
                    print(f"FAIL {name}, {case['case']}, {'stream' if stream else 'whole'}: "
                          f"{got!r} of {case['text']!r}"[:1200])
            if "sglang" in case:
                asked += 1
                agreed += case["sglang"].get("calls") == case["calls"]
        back = goes_back(server, name)
        if back is not True:
            failed += 1
            print(f"FAIL {name}, a call goes back: {back!r}"[:1500])
    finally:
        status = server.close()
    failed += n - right + (status != 0)
    print(f"{name:24}{right:4} of {n:3}" + (f"   sglang {agreed} of {asked}" if asked else "") +
          ("   with control tokens" if tokens else ""), flush=True)


names = [n for n in CORPUS["families"] if not only or n in only]
with tempfile.TemporaryDirectory() as space:
    for name in names:
        family = CORPUS["families"][name]
        if name != "gpt-oss":
            test_family(name, family, model, [])
        if name in CONTROL:
            copy = os.path.join(space, name + ".gguf")
            with_tokens(model, copy, CONTROL[name])
            test_family(name, family, copy, CONTROL[name])
            os.remove(copy)
print("failed" if failed else "all held")
sys.exit(failed > 0)
