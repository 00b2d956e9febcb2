# SPDX-License-Identifier: MIT
"""A model on a server, or on a slower drive, with a disk cache: the text, what is fetched, and each way in which it can go
wrong. Arguments: the command, a model, and perhaps names of tests below: the others are left out."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from range_server import RangeServer

command, model = (os.path.abspath(a) for a in sys.argv[1:3])
failed = []
with open(model, "rb") as demo:
    DEMO = demo.read()
GIVEN = ("-p", "Once upon a time", "-n", "24", "--temp", "0", "--quiet", "-c", "512", "-t", "1")
BLOCK = 256 << 10


def check(what, holds, shown=""):
    if not holds:
        failed.append(what)
        print(f"FAIL {what}: {shown}")


def start(*arguments):
    return subprocess.Popen([command, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env=dict(os.environ, HF_TOKEN="hf_secret"))


def run(*arguments):
    process = start(*arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


TEXT = run("run", "-m", model, *GIVEN)[1]


class Cache:
    def __init__(self, server, size=""):
        self.folder = tempfile.TemporaryDirectory()
        self.server = server
        self.given = self.folder.name + (":" + size if size else "")
        self.source = ("-m", server.address + "/model.gguf?key=secret", "--disk-cache", self.given)

    def run(self, *more):
        return run("run", *self.source, *GIVEN, *more)

    def right(self, what, *more):
        status, out, err = self.run(*more)
        check(f"{what}: the text", status == 0 and out == TEXT, f"status {status} {out!r} {err}")
        return err

    def refused(self, what, words, status=1, source=None):
        begun = time.monotonic()
        got, out, err = run("run", *(source or self.source), *GIVEN)
        check(f"{what}: refused in words", got == status and words in err, f"status {got}: {out}{err}")
        check(f"{what}: in time", time.monotonic() - begun < 240)
        check(f"{what}: no secret is told", "secret" not in err, err)
        return err

    def find(self, ending):
        return next(os.path.join(at, f) for at, _, names in os.walk(self.folder.name) for f in names if f.endswith(ending))

    def bytes_here(self):
        return os.stat(self.find("model.gguf")).st_blocks * 512


def is_whole(cache):
    with open(cache.find("model.gguf.far"), "rb") as f:
        return f.read(24)[20] == 1


def wait_until_whole(cache):
    """Serves until the rest has come."""
    process = start("serve", *cache.source, "-c", "512", "-t", "1", "--port", "0", "--quiet")
    deadline = time.monotonic() + 240
    while not is_whole(cache) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    check("the rest comes", is_whole(cache))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=240)


def test_text(server):
    cache = Cache(server)
    err = cache.right("first")
    check("as quiet as asked", err == "", err)
    check("the key goes along, the hub's token does not",
          {(path, token) for path, _, token in server.requests} == {("/model.gguf?key=secret", None)}, server.requests[:3])
    check("by ranges", all(r for _, r, _ in server.requests))
    check("nothing twice", server.sent <= len(DEMO) + BLOCK, server.sent)
    server.reset()
    cache.right("again")
    check("again: most is here", server.sent < len(DEMO) // 2, server.sent)
    wait_until_whole(cache)
    with open(cache.find("model.gguf"), "rb") as f:
        check("the whole file", f.read() == DEMO)
    server.reset()
    server.answers = [(500,)] * 100
    cache.right("the whole file needs no server")
    check("nobody is asked", server.requests == [], server.requests)
    for arguments in (("tokenize", "-p", "Once upon a time"), ("inspect", "--json"), ("plan", "--json")):
        server.reset()
        fresh = Cache(server)
        got = run(arguments[0], *fresh.source, *arguments[1:])
        want = run(arguments[0], "-m", model, *arguments[1:])
        keep = (lambda r: r[1].split('"experts"')[1][:80]) if arguments[0] == "plan" else \
            (lambda r: r[1].replace("model.gguf", "").replace(os.path.basename(model), "")[-400:])
        check(f"{arguments[0]} from the header", got[0] == 0 and keep(got) == keep(want), (got, want))
        check(f"{arguments[0]}: the header alone", 0 < server.sent < 4 << 20, server.sent)


def test_small(server):
    """A cache smaller than the file: blocks leave, the limit is kept, the text is the same."""
    err = Cache(server, "8M").refused("too small", "17.0 MiB is the least that holds", status=2)
    check("too small: one line", err.count("\n") == 1, err)
    cache = Cache(server, "20M")
    more = ("--expert-cache", "30%")
    cache.right("20 MiB of 38", *more)
    check("the limit", 10 << 20 < cache.bytes_here() <= (20 << 20) + (1 << 16), cache.bytes_here())
    check("blocks came twice", server.sent > len(DEMO) // 2, server.sent)
    server.reset()
    cache.right("again", *more)
    both = [start("run", *cache.source, *GIVEN, *more) for _ in range(2)]
    ends = sorted((p.communicate(timeout=120), p.returncode) for p in both)
    codes = sorted(c for _, c in ends)
    check("two at a time", codes in ([0, 0], [0, 1]) and
          all(c == 0 or "in use by another process" in e for (_, e), c in ends), ends)
    status, out, err = run("run", *cache.source[:-1], cache.folder.name, *GIVEN)
    check("the whole after all", status == 0 and out == TEXT, err)


def test_faults(server):
    cache = Cache(server)
    server.truncate = 100_000
    cache.right("a truncated answer")
    for what, answers in (("429", [(429, {"Retry-After": "1"})]), ("503", [(503,)] * 2)):
        server.reset()
        server.answers = answers
        Cache(server).right(what)
    server.reset()
    server.redirects = {"/old.gguf": server.address + "/model.gguf?signature=secret"}
    moved = Cache(server)
    moved.source = ("-m", server.address + "/old.gguf", "--disk-cache", moved.given)
    moved.right("a redirect")
    check("later requests go where it led", sum(p == "/old.gguf" for p, *_ in server.requests) < 4, server.requests)
    for what, words, change in (("no ranges", "gives no part of a file", {"ignore_ranges": True}),
                                ("404", "no such file (404)", {"answers": [(404,)]}),
                                ("403", "refuses access (403)", {"answers": [(403,)]}),
                                ("429 for an hour", "try again in 4000 seconds", {"answers": [(429, {"Retry-After": "4000"})]}),
                                ("500 for ever", "status 500", {"answers": [(500,)] * 50}),
                                ("redirects without end", "redirects", {"redirects": {"/model.gguf": "/model.gguf"}}),
                                ("another size in each answer", "127.0.0.1", {"answers": [None], "total_off": 5}),
                                ("always truncated", "127.0.0.1", {"truncate": 70_000, "truncates_always": True})):
        server.reset()
        for name, value in change.items():
            setattr(server, name, value)
        Cache(server).refused(what, words)
    server.reset()
    nobody = Cache(server)
    nobody.refused("nobody there", "127.0.0.1:9",
                   source=("-m", "http://127.0.0.1:9/model.gguf", "--disk-cache", nobody.given))
    nobody.refused("no cache is named", "--disk-cache DIR", status=2, source=("-m", server.address + "/model.gguf"))
    server.files["/text.gguf"] = b"no model" * 1000
    nobody.refused("no model", "text.gguf", source=("-m", server.address + "/text.gguf", "--disk-cache", nobody.given))


def test_changes(server):
    cache = Cache(server)
    kill_some(server, cache, 1)
    server.reset()
    server.version = "v2"
    status, out, err = run("run", *cache.source, *GIVEN[:-1], "1")
    check("another version begins anew", status == 0 and out == TEXT and "begins anew" in err and
          server.sent > len(DEMO) // 3, f"{server.sent} {err}")
    server.reset()
    server.version = None
    err = Cache(server).right("no version is named")
    check("no version is named: told", "names no version of the file" in err and err.count("\n") == 1, err)
    # The file changes while it is used.
    server.reset()
    fresh = Cache(server)
    server.link.bytes_per_s = 8_000_000
    process = start("run", *fresh.source, *GIVEN)
    while server.sent < 3_000_000 and process.poll() is None:
        time.sleep(0.01)
    server.version = "v3"
    out, err = process.communicate(timeout=240)
    check("a change under way", process.returncode == 1 and "is another one than when it was opened" in err, err)


def test_loss(server):
    """The link is lost for a moment, and for good."""
    server.link.bytes_per_s = 8_000_000
    cache = Cache(server)
    process = start("run", *cache.source, *GIVEN)
    while server.sent < 2_000_000 and process.poll() is None:
        time.sleep(0.01)
    server.answers = [(503,)] * 3
    out, err = process.communicate(timeout=240)
    check("a moment", process.returncode == 0 and out == TEXT, err)
    server.reset()
    server.link.bytes_per_s = 8_000_000
    cache = Cache(server)
    process = start("run", *cache.source, *GIVEN, "--io-timeout", "10")
    while server.sent < 2_000_000 and process.poll() is None:
        time.sleep(0.01)
    begun = time.monotonic()
    server.dead_seconds, server.dead_after = 400, 0
    out, err = process.communicate(timeout=240)
    took = time.monotonic() - begun
    check("for good: an error in time that names the host", process.returncode == 1 and "127.0.0.1" in err and took < 200,
          f"{took:.1f} s {err}")


HEAD_BYTES = 288  # of the book, before its records


def blocks_here(cache):
    with open(cache.find("model.gguf.far"), "rb") as f:
        records = f.read()[HEAD_BYTES:]
    return [i for i in range(len(records) // 16) if records[16 * i:16 * i + 16] != bytes(16)]


def kill_some(server, cache, n):
    """Kills runs while bytes come."""
    server.link.bytes_per_s = 20_000_000
    for _ in range(n):
        process = start("run", *cache.source, *GIVEN)
        before = server.sent
        while server.sent < before + 8_000_000 and process.poll() is None:
            time.sleep(0.005)
        process.kill()
        process.communicate()


def test_kills(server):
    cache = Cache(server)
    kill_some(server, cache, 4)
    n = len(blocks_here(cache))
    check("what has come is noted", n * BLOCK > 5_000_000, n)
    server.reset()
    cache.right("after kills")
    wait_until_whole(cache)
    check("what had come is kept", server.sent <= len(DEMO) - n * BLOCK + (8 << 20), (server.sent, n))
    with open(cache.find("model.gguf"), "rb") as f:
        check("the whole file", f.read() == DEMO)
    server.reset()
    with open(cache.find("model.gguf.far"), "r+b") as f:
        f.seek(20)
        f.write(bytes(4))  # no longer whole, and the checksum of the head is wrong
    cache.right("a damaged book")
    check("begins anew", server.sent > len(DEMO) // 3, server.sent)
    # What a kill has left without a record counts for no limit, and does not stay.
    server.reset()
    cache = Cache(server, "20M")
    kill_some(server, cache, 1)
    here = blocks_here(cache)
    absent = [i for i in range(len(DEMO) // BLOCK) if i not in here]
    with open(cache.find("model.gguf"), "r+b") as f:
        for i in absent[:20]:
            f.seek(i * BLOCK)
            f.write(b"left" * (BLOCK // 4))
    status, _, err = run("tokenize", *cache.source, "-p", "Once")
    check("what a kill has left is gone", status == 0 and len(absent) > 20 and
          cache.bytes_here() <= (len(blocks_here(cache)) + 1) * BLOCK, (cache.bytes_here(), len(blocks_here(cache)), err))
    cache.right("killed with a limit", "--expert-cache", "30%")
    # Blocks that are damaged are fetched again.
    server.reset()
    cache = Cache(server)
    kill_some(server, cache, 2)
    here = blocks_here(cache)
    with open(cache.find("model.gguf"), "r+b") as f:
        for i in here[4:]:  # behind the header
            f.seek(i * BLOCK + 1000)
            f.write(b"damage")
    server.reset()
    cache.right("damaged blocks")
    wait_until_whole(cache)
    with open(cache.find("model.gguf"), "rb") as f:
        check("damaged blocks are whole again", f.read() == DEMO)
    shared = Cache(server)
    both = [start("run", *shared.source, *GIVEN) for _ in range(2)]
    ends = [(p.communicate(timeout=120), p.returncode) for p in both]
    check("two at a time", all(c == 0 and o == TEXT for (o, _), c in ends), ends)


def test_slow_drive(_):
    """The same tier: a small fast drive before a large slow one."""
    with tempfile.TemporaryDirectory() as slow, tempfile.TemporaryDirectory() as fast:
        path = os.path.join(slow, "model.gguf")
        shutil.copyfile(model, path)
        source = ("-m", path, "--disk-cache", fast)
        status, out, err = run("run", *source, *GIVEN)
        check("a slow drive", status == 0 and out == TEXT, err)
        os.utime(path, (1, 1))
        status, out, err = run("run", *source, *GIVEN)
        check("another version of the slow file", status == 0 and out == TEXT and "begins anew" in err, err)
        # A copy of a part: the fast drive holds what is used, and the slow one is asked for the rest.
        part = tempfile.mkdtemp(dir=fast)
        source = ("-m", path, "--disk-cache", part + ":20M")
        for i in range(2):
            status, out, err = run("run", *source, *GIVEN, "--expert-cache", "30%")
            check(f"a part of it {i}", status == 0 and out == TEXT, err)
        held = sum(os.stat(os.path.join(at, f)).st_blocks * 512 for at, _, names in os.walk(part) for f in names)
        check("the part", 10 << 20 < held <= (20 << 20) + (1 << 17), held)
        # The sidecar beside the slow file is used.
        words = os.path.join(slow, "words.txt")
        with open(words, "w", encoding="utf-8") as file:
            file.write("Tom has 5 pens. He buys 7 more. How many pens does he have?")
        status, out, err = run("run", *source, *GIVEN, "--warm-start", "on")
        check("no sidecar", status == 2 and "calibrat" in err, err)
        status, out, err = run("calibrate", "-m", path, "-f", words, "--quiet")
        check("calibrate", status == 0, err)
        status, out, err = run("run", *source, *GIVEN, "--warm-start", "on", "--expert-cache", "30%")
        check("the sidecar beside the slow file", status == 0 and out == TEXT, err)
        for given, words in ((":5G", "must be DIR"), (fast + ":0", "must be bytes"), (fast + ":50%", "must be bytes")):
            status, out, err = run("run", "-m", path, "--disk-cache", given, *GIVEN)
            check(f"--disk-cache {given}", status == 2 and words in err, err)


def test_full_drive(server):
    """A drive that is too small for what has come: it is fetched again, and the text is the same."""
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", folder], capture_output=True).returncode != 0:
            print("a full drive: skipped, since no file system can be mounted here")
            return
        try:
            source = ("-m", server.address + "/model.gguf", "--disk-cache", folder)
            for what in ("a full drive", "again"):
                status, out, err = run("run", *source, *GIVEN, "--expert-cache", "30%")
                check(what, status == 0 and out == TEXT, f"{status} {err}")
        finally:
            subprocess.run(["umount", folder], check=True)


with RangeServer({"/model.gguf": DEMO}) as double:
    for test in (test_text, test_small, test_faults, test_changes, test_loss, test_kills, test_slow_drive,
                 test_full_drive):
        if sys.argv[3:] and test.__name__ not in sys.argv[3:]:
            continue
        begun = time.monotonic()
        double.reset()
        test(double)
        print(f"{test.__name__}: {time.monotonic() - begun:.1f} s")
print(f"{len(failed)} failed")
sys.exit(1 if failed else 0)
