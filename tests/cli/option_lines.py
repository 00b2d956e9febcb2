# SPDX-License-Identifier: MIT
"""What option_runs.py and option_triples.py share: command lines that are run, and what is a failure.
Arguments of both: the command, the lister of options, a model, then their own."""
import os
import re
import shutil
import signal
import subprocess
import sys
import time

command, lister, model = (os.path.abspath(a) for a in sys.argv[1:4])
verbose = "--verbose" in sys.argv
small = os.environ.get("MOE_TEST_SIZE") == "small"
whole = "MOE_TEST_WHOLE" in os.environ
failures = []
SECONDS = 900  # only ends what hangs for ever

# What a command has beside the option; an option that is tried, or that excludes one, replaces it.
BASE = {
    "run": {"-m": "model.gguf", "-p": "once upon a time", "-n": "4", "--temp": "0"},
    "serve": {"-m": "model.gguf", "--port": "0"},
    "worker": {"-m": "model.gguf", "--listen": "127.0.0.1:0"},
    "split-experts": {"-m": "model.gguf", "--share": "1/2", "-o": "out"},
    "tokenize": {"-m": "model.gguf", "-p": "once upon a time"},
    "logits": {"-m": "model.gguf", "-p": "once upon a time", "-o": "out.npy"},
    "perplexity": {"-m": "model.gguf", "-f": "text", "-c": "16"},
    "bench decode": {"-m": "model.gguf", "-p": "4", "-n": "2", "--repeat": "1"},
    "bench io": {"-m": "model.gguf", "--repeat": "1", "--bytes": "256K", "--depth": "4",
                 "--block": "256K"},
    "bench cache": {"-m": "model.gguf", "-p": "4", "-n": "2", "--repeat": "1",
                    "--expert-cache": "50%", "--policy": "lru", "-f": "text"},
    "bench offload": {"-m": "model.gguf", "-p": "4", "-n": "2", "--repeat": "1",
                      "--expert-cache": "50%"},
    "bench speculate": {"-m": "model.gguf", "-f": "text", "-p": "4", "-n": "3", "--repeat": "1",
                        "--configs": "off; ngram"},
    "plan": {"-m": "model.gguf"},
    "calibrate": {"-m": "model.gguf", "-f": "text", "-n": "40", "-o": "made.gguf"},
    "report": {"-m": "model.gguf", "-n": "16", "-o": "page.html"},
    "verify": {"-m": "model.gguf"},
    "inspect": {"-m": "model.gguf"},
    "devices": {},
    "show": {"-hf": "me/demo"},
    "list": {},
    "simulate": {"--trace": "trace.jsonl", "--policy": "lru,lfru"},
    "analyze": {"--trace": "trace.jsonl"},
}
# They need a hub, or remove the model: tests/hub.
NOT_RUN = {"pull", "rm"}
# Without UCX there are no workers.
has_workers = os.path.exists(os.path.join(os.path.dirname(command), "runtime/wire/module/moe_ucx.so"))
if not has_workers:
    NOT_RUN.add("worker")
    del BASE["worker"]
# What a refusal asks for.
REMEDIES = (
    (r"no tokenizer\.chat_template|no chat template", "--chat-template", "chatml"),
    (r"a raw prompt has no turns", "--chat", "-"),
    (r"calibration, and there|no sidecar|no model\.moe-lowbit|there is none for this",
     "--calibration", "cal.gguf"),
    (r"no memory of its own|computes in host memory anyway", "--device", "sim:memory=300M,link=16GB/s"),
    (r"ranges of .* of a file of", "--range", "64K-128K"),
    (r"recorded routing with --route-trace", "--route-trace", "trace.jsonl"),
    (r"below the least that works, the experts", "--expert-cache", "50%"),
    (r"takes forecasts", "--policy", "lfru"),
    (r"are to stay for the draft", "--draft-experts", "3"),
)
TEMPLATE = ('{% if enable_thinking is defined and enable_thinking %}!{% endif %}'
            '{% for m in messages %}{{ m["content"] }}{% endfor %}')


def fail(words, why, done=None):
    failures.append(words)
    shown = "" if done is None else f": {done[0]}: {done[2][-600:]!r}"
    print(f"FAIL {' '.join(words)}: {why}{shown}", flush=True)


def arguments(name, options):
    words = name.split()
    for option, value in options.items():
        words += [option] if value == "-" else [option, value]
    return words


def listens(pid):
    """Whether the process has a socket that listens, as a server has that was told to say nothing."""
    try:
        files = f"/proc/{pid}/fd"
        sockets = {os.readlink(os.path.join(files, name)) for name in os.listdir(files)}
        with open(f"/proc/{pid}/net/tcp", encoding="ascii") as table:
            rows = [line.split() for line in table]
    except OSError:  # a file that was closed meanwhile
        return False
    return any(row[3] == "0A" and f"socket:[{row[9]}]" in sockets for row in rows)


def execute(words):
    """Status, standard output and error; a server or worker is ended as soon as it listens."""
    stays = words[0] in ("serve", "worker")
    with open("stdin", "rb") as stdin, open("stdout", "wb") as out, open("stderr", "wb") as err:
        process = subprocess.Popen([command] + words, stdin=stdin, stdout=out, stderr=err)
        end = time.monotonic() + SECONDS
        asked = False
        while True:
            try:
                status = process.wait(0.005 if stays else SECONDS)
                break
            except subprocess.TimeoutExpired:
                with open("stderr", "rb") as so_far, open("stdout", "rb") as printed:
                    ready = b"listening on" in so_far.read() or b"worker at" in printed.read()
                if not asked and (ready or "--quiet" in words and listens(process.pid)):
                    asked = True
                    process.send_signal(signal.SIGTERM)
                elif time.monotonic() > end:
                    process.kill()
                    status = f"no end after {SECONDS} s, {process.wait()}"
                    break
    with open("stdout", "rb") as out, open("stderr", "rb") as err:
        return status, out.read(), err.read().decode("utf-8", "replace")


def with_base(name, options):
    base = {k: v for k, v in BASE[name].items() if k not in options}
    if "--synthetic" in options:
        base = {"-n": "4", **base}
    return {**base, **options}


def run(name, options, tried):
    """Leaves out of what the command has beside the options what excludes one of them, and adds what
    a refusal asks for, also in place of another value, but not of the option that is tried."""
    given = with_base(name, options)
    while True:
        for made in ("out.csv", "made.gguf"):
            if os.path.exists(made):
                os.remove(made)
        done = execute(arguments(name, given))
        again = [o for o in given if o not in options and done[0] == 2 and
                 "exclude each other" in done[2] and re.search(f" {re.escape(o)}[ :]", done[2])]
        asked = [(o, value) for words, o, value in REMEDIES
                 if done[0] in (1, 2) and re.search(words, done[2]) and o != tried and
                 given.get(o) != value]
        if again:
            del given[again[0]]
        elif asked:
            given[asked[0][0]] = asked[0][1]
        else:
            return given, done


def judge(name, given, done):
    """True: it succeeded. False: it was refused, in words."""
    status, _, err = done
    words = arguments(name, given)
    if status not in (0, 1, 2):
        fail(words, "ends otherwise than by a status of 0, 1 or 2", done)
    elif "Sanitizer" in err or "runtime error:" in err or "assertion failed" in err:
        fail(words, "a sanitizer or an assertion", done)
    elif status != 0 and re.search(r"^moe-offload: \S", err, re.M) is None:
        fail(words, "fails without a word", done)
    elif verbose and status != 0:
        print(f"refused: {' '.join(words)}: {err.strip().splitlines()[-1]}", flush=True)
    return status == 0


def prepare(folder):
    os.chdir(folder)
    shutil.copy(model, "model.gguf")
    # What -hf names is in the cache; no hub is asked.
    os.environ.update(HF_HOME=os.path.join(folder, "hf"), HF_HUB_OFFLINE="1")
    snapshot = os.path.join(folder, "hf", "hub", "models--me--demo", "snapshots", "0" * 40)
    os.makedirs(snapshot)
    shutil.copy(model, os.path.join(snapshot, "demo-Q8_0.gguf"))
    shutil.copy(model, "copy.gguf")
    words = "the cat and the dog went out, and day {} was good.\n"
    for name, text in (("text", "".join(words.format(i) for i in range(6))),
                       ("ids", " ".join(str(3 + i % 20) for i in range(40))),
                       ("keys", "secret\n"), ("worker_key", "0123456789abcdef"), ("stdin", "hello\nwell\n"),
                       ("template.jinja", TEMPLATE)):
        with open(name, "w") as file:
            file.write(text)
    os.chmod("keys", 0o600)
    for line in (["calibrate", "-m", "model.gguf", "-f", "text", "-n", "60", "-o", "cal.gguf",
                  "--low-bit-type", "Q2_K"],
                 ["run", "-m", "model.gguf", "-p", "once upon", "-n", "20", "--ignore-eos",
                  "--speculate", "off", "--trace", "trace.jsonl"]):
        done = execute(line)
        if done[0] != 0:
            fail(line, "cannot begin", done)
