# SPDX-License-Identifier: MIT
"""The wall clock may jump: no wait's deadline is on it, texts are the same, and SIGTERM ends the server. Neither
run, simulate nor analyze minds it.
Arguments: the command, a model, the library that makes it jump."""
import os
import subprocess
import sys
import tempfile

from serving import Server, check, end_of_test, wait_until

command, model, jumps = sys.argv[1:4]
PROMPTS = ["Tell me a story.", "ROMEO:\nWhat light", "Tell me a story. Of a king."]


def texts(*options):
    """Of each prompt twice; and the exit status."""
    server = Server(command, model, *options)
    out = []
    for prompt in PROMPTS * 2:
        status, answer = server.post("/v1/completions",
                                     {"prompt": prompt, "max_tokens": 24, "temperature": 0})
        out.append((status, answer["choices"][0]["text"]) if status == 200 else (status, answer))
    check("all have ended", wait_until(lambda: server.metrics()["sessions_active"] == 0))
    return out, server.close(), server.log


def commands(folder):
    """What others than serve write, and their statuses."""
    trace = os.path.join(folder, "trace.jsonl")
    out = []
    for words in (["run", "-m", model, "-p", PROMPTS[0], "-n", "24", "--temp", "0.7", "-s", "3", "--quiet",
                   "--expert-cache", "50%", "--cost", "bytes", "--trace", trace],
                  ["simulate", "--trace", trace, "--format", "csv"],
                  ["analyze", "--trace", trace, "--format", "csv"]):
        done = subprocess.run([command, *words], capture_output=True, timeout=100)
        out.append((done.returncode, done.stdout))
    return out


wanted, status, log = texts()
check("status without jumps", status == 0, log)
with tempfile.TemporaryDirectory() as folder:
    plain = commands(folder)
    check("commands without jumps", all(code == 0 and out for code, out in plain), plain)
    os.environ["LD_PRELOAD"] = os.path.abspath(jumps)
    check("commands", commands(folder) == plain)
    cache = os.path.join(folder, "cache")
    os.mkdir(cache, 0o700)
    for options in ([], ["--io", "threads"], ["--cache-dir", cache], ["--cache-dir", cache]):
        got, status, log = texts(*options)
        check(f"texts {options}", got == wanted, got)
        check(f"status {options}", status == 0, log)
end_of_test()
