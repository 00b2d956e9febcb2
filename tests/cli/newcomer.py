# SPDX-License-Identifier: MIT
"""The right word for somebody who comes from other programs: files that are no model for this engine, mistyped words,
what `plan` advises, and commands of a conversation. Arguments: the command, a model with a chat template."""
import json
import os
import struct
import subprocess
import sys
import tempfile

command, model = (os.path.abspath(a) for a in sys.argv[1:3])
failed = []


def run(*arguments, text=""):
    done = subprocess.run([command, *arguments], input=text, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout, done.stderr


def check(what, holds, shown=""):
    if not holds:
        failed.append(what)
        print(f"FAIL {what}: {shown}")


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf(path, keys, tensors=()):
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)))
        for key, value in keys.items():
            f.write(string(key) + struct.pack("<I", 8) + string(value))
        for i, name in enumerate(tensors):
            f.write(string(name) + struct.pack("<IQIQ", 1, 8, 0, 32 * i))
        f.write(b"\0" * 64 * (len(tensors) + 1))


def test_files(folder):
    os.mkdir(f"{folder}/weights")
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    with open(f"{folder}/weights/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    gguf(f"{folder}/dense.gguf", {"general.architecture": "qwen3"}, ["blk.0.ffn_down.weight"])
    gguf(f"{folder}/other.gguf", {"general.architecture": "qwen99"}, ["blk.0.ffn_down.weight", "blk.1.ffn_up_exps.weight"])
    gguf(f"{folder}/mmproj.gguf", {"general.architecture": "clip"})
    gguf(f"{folder}/projector.gguf", {"general.architecture": "qwen3moe", "general.type": "mmproj"})
    gguf(f"{folder}/lora.gguf", {"general.architecture": "qwen3moe", "general.type": "adapter"})
    gguf(f"{folder}/imatrix.gguf", {"general.architecture": "any", "general.type": "imatrix"})
    for file, words in (("dense.gguf", "'qwen3' model has no experts, it is dense"), ("dense.gguf", "llama.cpp runs this one"),
                        ("other.gguf", "architecture 'qwen99' is not supported"),
                        ("mmproj.gguf", "projector of images (mmproj), not a model"),
                        ("projector.gguf", "projector of images (mmproj), not a model"),
                        ("lora.gguf", "adapter (LoRA), not a model"), ("imatrix.gguf", "importance matrix"),
                        ("weights", "convert_hf_to_gguf.py"), ("weights/model.safetensors", "one of safetensors")):
        for arguments in (("run", "-p", "x"), ("plan",)):
            status, _, err = run(arguments[0], "-m", f"{folder}/{file}", *arguments[1:])
            check(f"{arguments[0]} {file}", status == 1 and words in err and err.count("\n") == 1, err)


def test_words():
    for line, words in (("run --host-mem 6G", "did you mean --host-memory?"), ("run --tmep 0", "did you mean --temp?"),
                        ("run --temprature 0", "did you mean --temperature?"), ("serve --prot 1", "did you mean --port?"),
                        ("plan --prallel 4", "did you mean --parallel?"), ("srve -m x", "did you mean serve"),
                        ("run model.gguf", "a model is given by -m or -hf"), ("bench decode --frobnicate", "(see 'moe-"),
                        ("dance", "is not a command (see")):
        status, _, err = run(*line.split())
        check(line, status == 2 and words in err and err.count("\n") == 1, err)


def small_budget():
    """A budget that some experts do not fit, whatever the process takes for itself (with a sanitizer, much)."""
    plan = json.loads(run("plan", "-m", model, "--host-memory", "60M", "--json")[1])
    return f"{(plan['floor_bytes'] >> 20) + 14}M"


def test_advice():
    budget = small_budget()
    given = ("plan", "-m", model, "--disk", "0.01", "--host-memory", budget)
    plan = json.loads(run(*given, "--json")[1])
    check("a second drive", abs(plan["second_drive_tokens_per_s"] / plan["expected_tokens_per_s"] - 2) < 0.01, plan)
    check("more memory", plan["more_memory_bytes"] == 8 << 30 and plan["more_memory_experts"] == plan["experts"], plan)
    out = run(*given)[1]
    check("as text", "a second drive" in out and "8.00 GiB more" in out and "(--model-copy)" in out, out)
    for more in (("--host-memory", "300M", "--disk", "1"), ("--host-memory", budget)):
        plan = json.loads(run("plan", "-m", model, *more, "--json")[1])
        check(f"no advice {more}", not any("more_memory" in k or "second_drive" in k for k in plan), plan)
    plan = json.loads(run("plan", "-m", model, "--expert-cache", "20%", "--disk", "1", "--json")[1])
    check("memory does not help a cache of this size", "more_memory_bytes" not in plan and
          "second_drive_tokens_per_s" in plan, plan)


def talk(*lines):
    """What was written to standard output, a line an answer, and what to standard error."""
    status, out, err = run("run", "-m", model, "-cnv", "-n", "9", "-s", "5", "--temp", "0.9", text="\n".join(lines) + "\n")
    check(f"{lines}: status", status == 0, err)
    return out, err


def test_talk(folder):
    open(f"{folder}/empty", "w").close()
    once, _ = talk("Hello")
    answers, _ = talk("Hello", "/regen")
    check("/regen says something else", answers.startswith(once) and answers[len(once):] not in ("", once), answers)
    greedy, _ = talk("/set temp 0", "Hello")
    check("/set", run("run", "-m", model, "-cnv", "-n", "9", "--temp", "0", text="Hello\n")[1] == greedy, greedy)
    check("/regen of greedy text", talk("/set temp 0", "Hello", "/regen")[0] == greedy + greedy)
    check("/set predict", len(talk("/set temp 0", "/set predict 2", "Hello")[0]) < len(greedy))
    for line, words in (("/set temp warm", "--temp must be"), ("/set heat 3", "names are"), ("/set temp", "takes a name and a value"),
                        ("/set temp 0 1", "takes a name and a value"), ("/regen", "nothing has been asked"),
                        ("/read /nowhere", "/nowhere"), (f"/read {folder}/empty", "empty")):
        check(line, words in talk(line)[1], talk(line)[1])
    with open(f"{folder}/question", "w") as f:
        f.write("Hello")
    check("/read", talk(f"/read {folder}/question")[0] == once)
    check("/clear", talk("/set temp 0", "Hello", "/clear", "Hello")[0] == greedy + greedy)
    system = run("run", "-m", model, "-cnv", "-n", "9", "--temp", "0", "--system", "Tom has 5 pens. He buys 7 more.", text="Hello\n")[1]
    check("/system", talk("/set temp 0", "/system Speak.", "/system Tom has 5 pens. He buys 7 more.", "Hello")[0] == system != greedy)
    check("/system outlasts /reset", talk("/set temp 0", "/system Tom has 5 pens. He buys 7 more.", "Hello", "/reset", "Hello")[0] == 2 * system)
    _, err = talk("/system Be brief.", "Hello", f"/save {folder}/talk", "/clear", f"/load {folder}/talk")
    said = err[err.index("loaded"):]
    check("the transcript after /load", "system: Be brief.\n> Hello\n" in said, err)


with tempfile.TemporaryDirectory() as scratch:
    test_files(scratch)
    test_words()
    test_advice()
    test_talk(scratch)
print(f"{len(failed)} failed")
sys.exit(1 if failed else 0)
