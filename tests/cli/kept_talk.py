# SPDX-License-Identifier: MIT
"""kept_talk.py COMMAND MODEL.gguf: what /save keeps is its owner's alone, is never written through a
link, and a disk that fills up costs nothing of it."""
import os
import pty
import resource
import select
import shutil
import signal
import stat
import sys
import tempfile
import time

command, model = sys.argv[1:3]
folder = tempfile.mkdtemp(prefix="moe-kept-talk-")
talk = os.path.join(folder, "talk")
messages = talk + ".messages.json"
failures = []


def check(name, holds, shown=""):
    if not holds:
        failures.append(name)
        print(f"FAIL {name}: {shown!r}")


def say(*lines, most=None, options=()):
    """What a conversation on a terminal shows, line by line; most: how long files may become."""
    pid, fd = pty.fork()
    if pid == 0:
        os.umask(0o022)
        if most is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        os.environ["TERM"] = "dumb"
        os.execv(command, [command, "run", "-m", model, "-t", "2", "--temp", "0", "-n", "8",
                           "--history", "none", *options])
    shown, end, left = b"", time.monotonic() + 240, [*lines, "/exit"]
    prompts = 0
    while time.monotonic() < end:
        if left and (b"\n" + shown).count(b"\n> ") > prompts:
            prompts += 1
            os.write(fd, left.pop(0).encode() + b"\n")
        if select.select([fd], [], [], 1)[0]:
            try:
                shown += os.read(fd, 65536)
            except OSError:
                break
    else:
        os.kill(pid, signal.SIGKILL)
        check("it ends", False, shown)
    os.waitpid(pid, 0)
    return shown.decode(errors="replace")


def contents(path):
    with open(path, "rb") as file:
        return file.read()


try:
    shown = say("one " + "word " * 150, f"/save {talk}")
    check("/save", "saved" in shown, shown)
    for path in (talk, messages):
        check("its mode", stat.S_IMODE(os.stat(path).st_mode) == 0o600, path)
    old = contents(talk), contents(messages)
    check("there is something to lose", len(old[0]) > 8192 and len(old[1]) > 600)
    # What lossy modes computed is not used without them.
    lossy = ("--expert-budget", "8")
    shown = say("tell me a story", f"/save {talk}", options=lossy)
    check("/save under a lossy mode", "saved" in shown, shown)
    shown = say(f"/load {talk}", "go on")
    check("it is told", "lossy modes, which are off now: its tokens are evaluated again" in shown, shown)
    shown = say(f"/load {talk}", options=lossy)
    check("with lossy modes it is used", "loaded" in shown and "evaluated again" not in shown, shown)
    say("one " + "word " * 150, f"/save {talk}")
    shown = say(f"/load {talk}", options=lossy)
    check("exact ones are used by all", "loaded" in shown and "evaluated again" not in shown, shown)
    old = contents(talk), contents(messages)
    # No byte; not the messages; the messages alone; not quite the session.
    for most in (0, 512, 8192, len(old[0]) - 1000):
        shown = say("two " + "word " * 150, f"/save {talk}", most=most)
        check(f"a full disk ({most}) is told", "cannot write" in shown and "saved" not in shown, shown)
        check(f"a full disk ({most})", (contents(talk), contents(messages)) == old)
        check(f"a full disk ({most}): nothing is left", len(os.listdir(folder)) == 2,
              os.listdir(folder))
    # Whoever knew the name of the file beside it could have had another one overwritten.
    victim = os.path.join(folder, "victim")
    with open(victim, "w") as file:
        file.write("precious")
    for name in (talk + ".tmp", messages + ".tmp"):
        os.symlink(victim, name)
    shown = say(f"/load {talk}", f"/save {talk}")
    check("/load and /save", "loaded" in shown and "saved" in shown, shown)
    check("the victim", contents(victim) == b"precious")
    os.unlink(messages)
    os.mkfifo(messages)
    shown = say(f"/load {talk}")
    check("/load of a pipe", "is missing or holds no messages" in shown, shown)
    shown = say("three", f"/save {talk}")
    check("/save over a pipe", "not a regular file" in shown, shown)
    check("the pipe stays", stat.S_ISFIFO(os.stat(messages).st_mode))
finally:
    shutil.rmtree(folder)
sys.exit(1 if failures else 0)
