# SPDX-License-Identifier: MIT
"""llama_flags.py COMMAND MODEL.gguf: what users of llama.cpp type. Each flag of its common list is
taken, with the effect of the option that it stands for, or refused in one line that names what does
the job here. MODEL.gguf has a chat template and is small."""
import os
import re
import subprocess
import sys
import tempfile

command, model = sys.argv[1:3]
failures = []


def run(*arguments, base=("run", "-m", model, "-p", "Once", "-n", "3", "--temp", "0", "-t", "1",
                          "-c", "256"), text=""):
    done = subprocess.run([command, *base, *arguments], capture_output=True, text=True, input=text,
                          timeout=240)
    return done.returncode, done.stdout, done.stderr


def check(name, holds, shown=""):
    if not holds:
        failures.append(name)
        print(f"FAIL {name}: {shown}")


folder = tempfile.mkdtemp()
grammar = os.path.join(folder, "grammar")
schema = os.path.join(folder, "schema")
template = os.path.join(folder, "template")
for path, content in ((grammar, 'root ::= "yes"'), (schema, '{"enum": ["no"]}'),
                      (template, "{% for m in messages %}{{ m.content }}{% endfor %}")):
    with open(path, "w") as file:
        file.write(content)

# The same text as with the options of the second list.
SAME = [
    ("-st -sys Be_brief", "--chat --system Be_brief"), ("-st", "--chat"),
    ("-st --system-prompt Be_brief", "--chat --system Be_brief"),
    ("--n-predict 5", "-n 5"), ("-ub 2", "-b 2"), ("--ubatch-size 2", "-b 2"),
    ("-ctk q8_0 -ctv q8_0", "--kv q8_0"),
    ("--cache-type-k q4_0 --cache-type-v q4_0", "--kv q4_0"),
    (f"-md {model}", f"--speculate model:{model}"), (f"--model-draft {model}", "--speculate off"),
    ("--draft 4", "--draft-max 4"), ("-ngl 0", "--device cpu"), ("-dev none", "--device cpu"),
    ("--temperature 0", "--temp 0"), (f"--grammar-file {grammar}", f"--grammar {grammar}"),
    (f"-jf {schema}", f"--json-schema {schema}"),
    (f"--json-schema-file {schema}", f"--json-schema {schema}"),
    ('-j {"enum":["no"]}', f"--json-schema {schema}"), ("-no-cnv", "--raw"),
    (f"--chat --chat-template-file {template}", f"--chat --chat-template {folder}/./template"),
    ("--log-disable", "--quiet"), ("--no-perf", "--quiet"),
    # What is always so.
    *((flag, "") for flag in (
        "--jinja", "--no-mmap", "-dio", "-fa on", "-fa auto", "--flash-attn on", "-ngl 99",
        "-ngl 999", "-ngl all", "-ngl -1", "--n-cpu-moe 0", "--no-warmup", "-kvu", "-sm none",
        "-mg 0", "--no-repack", "--no-display-prompt", "--repeat-last-n 64", "--mirostat 0",
        "--dry-multiplier 0", "--xtc-probability 0.0", "--typical 1.0", "--keep 0", "--perf",
        "--no-context-shift", "--no-escape", "--reasoning-format auto", "--reasoning-budget -1",
        "-cb", "--kv-offload")),
]
# What is refused, and what the message names.
NOT = [
    ("-ngl 20", "--device-memory"), ("-ot exps=CPU", "--expert-cache"), ("-cmoe", "--host-compute"),
    ("--cpu-moe", "--host-compute"), ("--n-cpu-moe 10", "--device-memory"),
    ("-ncmoe 10", "--device-memory"), ("--mlock", "MemorySwapMax"), ("--mmap", "--host-memory"),
    ("-fa off", "-fa on"), ("-ctk q8_0", "--kv TYPE"), ("-ctk q8_0 -ctv f16", "--kv TYPE"),
    ("-ctk q5_1 -ctv q5_1", "f16"), ("-tb 4", "-t"), ("-ts 1,1", "--device"), ("-mg 1", "--device"),
    ("-sm row", "--device"), ("-dev CUDA0", "--device"), ("--numa distribute", "numactl"),
    ("-nkvo", "--kv"), ("--check-tensors", "verify"), ("--rope-scaling yarn", "--override-kv"),
    ("--rope-freq-base 10000", "--override-kv"), ("--yarn-orig-ctx 4096", "--override-kv"),
    ("--lora a.gguf", "merge"), ("--mmproj a.gguf", "text"), ("-hft x", "HF_TOKEN"), ("-mu http://a", "--disk-cache"), ("--revision v1", "@REVISION"),
    ("--mirostat 2", "--top-p"), ("--typical 0.9", "--top-p"), ("--dry-multiplier 0.8", "--top-p"),
    ("--xtc-probability 0.5", "--min-p"), ("--samplers top_k", "--top-k"), ("-e", "-f FILE"),
    ("-r User:", "--chat-template"), ("--in-prefix x", "--chat-template"), ("-i", "-cnv"),
    ("--keep 5", "-c"), ("--context-shift", "-c"), ("--prompt-cache x", "/save"),
    ("--repeat-last-n 100", "64"), ("--draft-min 2", "--draft-max"), ("-ngld 9", "drafting model"),
    ("--no-jinja", "--chat-template"), ("--reasoning-format none", "--think"),
    ("--reasoning-budget 100", "--think"), ("--color", "colours"), ("-v", "--json"),
    ("--swa-full", "window"), ("--no-cache-prompt", "prompts"), ("--ssl-key-file a", "proxy"),
    ("-np 2", "other commands"), ("-a name", "other commands"), ("-ub", "needs a value"),
    ("--api-key a", "other commands"), ("-st --raw", "--raw"), ("-cnv", "-p"),
]
plain = run()
check("plain", plain[0] == 0 and plain[1] != "", plain)
for flags, options in SAME:
    given, meant = run(*flags.split()), run(*options.split())
    check(f"{flags} is {options}", given[:2] == meant[:2] and given[0] == 0, (given, meant))
for flags, remedy in NOT:
    status, out, error = run(*flags.split())
    name = flags.split()[0]
    check(f"{flags} is refused", status == 2 and out == "" and error.count("\n") == 1 and
          name in error and remedy in error, (status, error))
served = run("--parallel", "0", base=("serve", "-m", model, "--api-key", "a,b", "-a", "name", "-np",
                                      "2", "--jinja", "--metrics", "-cb", "--reasoning-format",
                                      "deepseek"))
check("serve takes its own", served[0] == 2 and "--parallel must be" in served[2], served)
talk = ("run", "-m", model, "-n", "3", "--temp", "0", "-t", "1", "-c", "256", "--quiet")
status, out, error = run("-cnv", base=talk, text="Hello\nAnother\n/exit\n")
check("-cnv", status == 0 and out.count("\n") >= 2, (status, out, error))
status, once, error = run("-cnv", "-st", base=talk, text="Hello\nAnother\n")
check("-cnv -st", status == 0 and out.startswith(once) and once != out, (once, out, error))
status, out, error = run("--grammar", 'root ::= "maybe"', "-n", "9")
check("--grammar with a text", status == 0 and out == "maybe", (out, error))
flags = {flag for flags, _ in SAME + NOT for flag in re.findall(r"(?<!\S)-{1,2}[a-z][\w-]*", flags)}
print(f"{len(flags)} flags of llama.cpp, {len(failures)} failed")
sys.exit(1 if failures or len(flags) < 44 else 0)
