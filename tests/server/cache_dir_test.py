# SPDX-License-Identifier: MIT
"""serve --cache-dir: a prompt is read once, also after a restart; texts stay the same; damaged files
are noticed and removed; the folder stays within its limit, and what was used longest ago leaves first,
whatever the clock says; nothing is left torn by a kill.
Arguments: the command, a model with a context of 2,048 tokens, and, but with --times, the library
that makes the wall clock jump, or nothing. With "--times N" it prints the time to
the first token of a shared prompt of about N tokens, cold, warm and after a restart; further
arguments go to the server."""
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

from serving import Server, check, end_of_test

command, model = sys.argv[1:3]
folder = tempfile.mkdtemp(prefix="moe-cache-dir-")
cache = os.path.join(folder, "cache")


def files():
    return sorted(os.path.join(cache, name) for name in os.listdir(cache))


def ask(server, prompt, n=8):
    """The text, tokens that were there already, seconds to the first token."""
    begin = time.monotonic()
    connection = server.connect(600)
    connection.request("POST", "/v1/completions", json.dumps(
        {"prompt": prompt, "max_tokens": n, "temperature": 0, "stream": True, "ignore_eos": True,
         "stream_options": {"include_usage": True}}))
    answer = connection.getresponse()
    text, cached, first = "", None, None
    for line in answer:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            for choice in event["choices"]:
                if choice.get("text") and first is None:
                    first = time.monotonic() - begin
                text += choice.get("text") or ""
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    connection.close()
    return text, cached, first


def await_files(n):
    for _ in range(2400):
        if os.path.isdir(cache) and len([f for f in files() if f.endswith(".moe-session")]) >= n:
            return
        time.sleep(0.05)


def served(*options, **how):
    return Server(command, model, "-t", "2", "--cache-dir", cache, "--parallel", "2", *options, **how)


STORY = "The cat and the dog went out, and the day was good. Anna had a red ball. "
N_STORIES = 14
SHARED = STORY * N_STORIES
MOST = 10 * N_STORIES  # tokens of it that a server must find again, at least


def times(n, options):
    system = STORY * max(1, n // 18)
    for name in ("cold", "warm", "restart"):
        server = Server(command, model, "--cache-dir", cache, "--parallel", "2", *options) \
            if name != "warm" else server
        _, cached, first = ask(server, system + {"cold": "One", "warm": "Two", "restart": "Three"}[name])
        status, answer = server.post("/tokenize", {"content": system})
        print(f"{name}: first token after {first:.3f} s, {cached} of {len(answer['tokens'])} tokens "
              "were there")
        if name == "warm":
            server.close()
    server.close()


def restarts():
    plain = Server(command, model, "-t", "2")
    wanted = {q: ask(plain, SHARED + q)[0] for q in ("One", "Two", "Three", "Four")}
    plain.close()
    server = served()
    check("the folder is the owner's", stat.S_IMODE(os.stat(cache).st_mode) == 0o700)
    text, cached, _ = ask(server, SHARED + "One")
    check("cold", text == wanted["One"] and cached == 0, (text, cached))
    await_files(1)
    check("written while the server is up", len(files()) == 1, files())
    check("prompts are the owner's", stat.S_IMODE(os.stat(files()[0]).st_mode) == 0o600)
    server.close()
    server = served()
    text, cached, _ = ask(server, SHARED + "Two")
    check("after a restart", text == wanted["Two"] and cached > MOST, (text, cached))
    check("the log says so", any("cache: read from the disk" in line for line in server.log),
          server.log)
    server.send_signal(signal.SIGKILL)
    server.wait()
    leftovers = [os.path.join(cache, f"moe-offload-000000000000000{n}.tmp") for n in (1, 2)]
    for name in leftovers:
        with open(name, "wb") as file:
            file.write(b"half")
    with open(leftovers[1], "rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        server = served()
        check("what a killed writer left is removed", [os.path.exists(f) for f in leftovers] ==
              [False, True], os.listdir(cache))
    os.unlink(leftovers[1])
    text, cached, _ = ask(server, SHARED + "Three")
    check("after a kill", text == wanted["Three"] and cached > MOST, (text, cached))
    server.close()
    server = served("--kv", "q8_0")
    text, cached, _ = ask(server, SHARED + "Three")
    check("another type of KV cache", cached == 0, cached)
    server.close()
    return wanted


def verified(*options):
    """Status and lines of 'verify' for the folder."""
    done = subprocess.run([command, "verify", "--cache-dir", cache, *options], capture_output=True,
                          text=True, timeout=60)
    return done.returncode, done.stdout.splitlines() or [done.stderr]


def damage(wanted):
    for place in ("middle", "head", "cut", "tokens"):
        shutil.rmtree(cache)
        server = served()
        ask(server, SHARED + "One")
        server.close()
        path = files()[0]
        status, lines = verified()
        check("verify of what is whole", status == 0 and len(lines) == 1 and
              ": 1 kept prompts, " in lines[0] and lines[0].endswith("; 0 damaged"), lines)
        size = os.path.getsize(path)
        with open(path, "r+b") as file:
            if place == "cut":
                file.truncate(size // 2)
            else:
                at = {"middle": size // 2, "head": 3, "tokens": 206}[place]
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1]))
        status, lines = verified()
        check(f"damage in the {place}: verify", status == 1 and lines[0].startswith(path) and
              lines[1].endswith("; 1 damaged"), lines)
        status, lines = verified("--json")
        check(f"damage in the {place}: verify --json", status == 1 and
              json.loads("".join(lines))["damaged"] == [{"kind": "kept prompt", "file": path}], lines)
        server = served()
        text, cached, _ = ask(server, SHARED + "Four")
        status = server.close()
        told = [line for line in server.log if "cache: a file is removed" in line]
        check(f"damage in the {place}: the text", text == wanted["Four"] and cached == 0 or
              place == "tokens" and text == wanted["Four"], (text, cached))
        check(f"damage in the {place}: the log", place == "tokens" or len(told) == 1, server.log)
        check(f"damage in the {place}: the end", status == 0)


def fingerprint(server):
    return server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})[1]["system_fingerprint"]


def mended(wanted):
    """What a damaged model has computed is not served once the file is mended, although the sample in
    the fingerprint is the same; and the other way round."""
    shutil.rmtree(cache)
    own = os.path.join(folder, "model.gguf")
    spoilt = os.path.join(folder, "spoilt")
    shutil.copyfile(model, own)
    with open(own, "rb") as file:
        content = bytearray(file.read())
    for at in range(len(content) // 4, len(content) - 100000, len(content) // 16):
        content[at:at + 30000] = bytes(byte ^ 3 for byte in content[at:at + 30000])
    with open(spoilt, "wb") as file:
        file.write(content)
    del content
    names, texts = [], []
    for source in (spoilt, model, spoilt):
        shutil.copyfile(source, own)
        server = Server(command, own, "-t", "2", "--cache-dir", cache)
        text, cached, _ = ask(server, SHARED + "One")
        texts.append(text)
        names.append(fingerprint(server))
        check("nothing is served of other weights", cached == 0, (source, cached))
        server.close()
        server = Server(command, own, "-t", "2", "--cache-dir", cache)
        again, cached, _ = ask(server, SHARED + "One")
        check("the same weights are served", again == text and cached > MOST, (again, text, cached))
        server.close()
    check("the fingerprint does not tell", names[0] == names[1] == names[2], names)
    check("damage has an effect", texts[0] != texts[1], texts)
    check("the text of the mended model", texts[1] == wanted["One"] and texts[2] == texts[0], texts)
    check("checksums are kept", os.path.getsize(os.path.join(folder, "model.moe-sums")) > 1000)


def limits():
    shutil.rmtree(cache)
    server = served()
    ask(server, SHARED)
    server.close()
    one = os.path.getsize(files()[0])
    limit = 2 * one + (3 << 20)
    server = served("--cache-dir-size", str(limit))
    for i in range(6):
        ask(server, f"{i} " + SHARED)
    server.close()
    total = sum(os.path.getsize(f) for f in files())
    check("the limit", 0 < total <= limit, (total, limit))
    server = served("--cache-dir-size", "4096")
    ask(server, SHARED)
    server.close()
    check("a limit that holds nothing", files() == [], files())
    shutil.rmtree(cache)
    with open(cache, "w"):
        pass
    try:
        served().close()
        check("a file in the folder's place", False)
    except RuntimeError as error:
        check("a file in the folder's place", "--cache-dir" in str(error), str(error))


def order(library):
    """Which file leaves is told by the uses, while the clock jumps both ways and the files' times say the
    opposite; of files whose names tell no use, by their times, and before all others."""
    prompts = {name: f"{name} " + SHARED for name in "ABCD"}
    os.unlink(cache)
    if library is not None:
        os.environ["LD_PRELOAD"] = os.path.abspath(library)

    def of(files_before):
        return sorted(set(files()) - set(files_before))

    for jump in (-400 * 86400, 400 * 86400, None):
        shutil.rmtree(cache, ignore_errors=True)
        server = served()
        for name in "ABC":
            ask(server, prompts[name])
        server.close()
        made = files()
        check("three prompts", len(made) == 3, made)
        one = max(os.path.getsize(f) for f in made)
        for i, path in enumerate(sorted(made, key=lambda f: f.split(".")[-2])):
            now = time.time()
            if jump is None:  # as servers of before have named and left them: B is the oldest
                plain = path.replace("." + path.split(".")[-2], "")
                os.rename(path, plain)
                os.utime(plain, (now, now + (0, -100, 100)[i]))
            else:
                os.utime(path, (now, now - jump * i))
        kept = files()
        server = served("--cache-dir-size", str(3 * one + one // 2 + (1 << 20)))
        if jump is not None:
            _, cached, _ = ask(server, prompts["A"])
            check("A is used again", cached > MOST, cached)
        ask(server, prompts["D"])
        server.close()
        check("one leaves for D", len(files()) == 3 and len(of(kept)) == (2 if jump else 1),
              (jump, kept, files()))
        server = served("--cache-dir-size", str(4 * one + (8 << 20)))
        found = {name: ask(server, prompts[name])[1] > MOST for name in "ACDB"}
        server.close()
        check("B leaves, which was used longest ago", found == {"A": True, "C": True, "D": True,
                                                               "B": False}, (jump, found))
    os.environ.pop("LD_PRELOAD", None)


def hostile():
    """A folder that others may write to is refused; links and pipes in one's own lead nowhere."""
    shutil.rmtree(cache)
    os.mkdir(cache)
    for mode in (0o770, 0o702, 0o1777):
        os.chmod(cache, mode)
        try:
            served().close()
            check(f"mode {mode:o}", False)
        except RuntimeError as error:
            check(f"mode {mode:o}", "others may write to it" in str(error), str(error))
    os.chmod(cache, 0o755)
    victim = os.path.join(folder, "victim")
    with open(victim, "wb") as file:
        file.write(b"precious")
    os.symlink(victim, os.path.join(cache, "link.moe-session"))
    os.symlink(victim, os.path.join(cache, "moe-offload-0000000000000001.tmp"))
    os.mkfifo(os.path.join(cache, "pipe.moe-session"))
    server = served()
    ask(server, SHARED)
    server.close()
    with open(victim, "rb") as file:
        check("the victim", file.read() == b"precious")
    whole = [f for f in files() if os.path.basename(f)[0].isdigit() or f.endswith(".moe-session")]
    check("links and pipes stay", len(whole) == 3, files())
    name = [f for f in whole if os.path.isfile(f) and not os.path.islink(f)][0]
    os.unlink(name)
    os.symlink(victim, name)
    server = served()
    ask(server, SHARED)
    server.close()
    with open(victim, "rb") as file:
        check("the victim by the name of a prompt", file.read() == b"precious")
    check("the link is replaced", not os.path.islink(name))


try:
    if "--times" in sys.argv:
        times(int(sys.argv[sys.argv.index("--times") + 1]), sys.argv[5:])
    else:
        wanted = restarts()
        damage(wanted)
        mended(wanted)
        limits()
        order(sys.argv[3] if len(sys.argv) > 3 else None)
        hostile()
finally:
    shutil.rmtree(folder)
end_of_test()
