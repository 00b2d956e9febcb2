# SPDX-License-Identifier: MIT
"""line_editing.py COMMAND MODEL.gguf: conversations on a terminal, by keys. What a message was is
read from the file that /save writes; MODEL.gguf has a chat template without a switch for reasoning."""
import json
import os
import pty
import re
import select
import shutil
import signal
import stat
import sys
import tempfile
import termios
import time

command, model = sys.argv[1:3]
home = tempfile.mkdtemp(prefix="moe-line-editing-")
history = os.path.join(home, ".local/state/moe-offload/history")
failures = []


def check(name, holds, shown=""):
    if not holds:
        failures.append(name)
        print(f"FAIL {name}: {shown!r}")


class Talk:
    def __init__(self, *arguments, **environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"HOME": home, "TERM": "xterm", "LANG": "C"}, **environment)
            for name in {"XDG_STATE_HOME", "LC_ALL", "LC_CTYPE"} - set(environment):
                os.environ.pop(name, None)
            os.execv(command, [command, "run", "-m", model, "-t", "2", "--temp", "0", "--quiet",
                               *(arguments or ["-n", "2"])])
        self.text = b""
        self.seen = 0
        self.enter = "\n" if environment.get("TERM") == "dumb" else "\r"
        self.attributes = termios.tcgetattr(self.fd)
        self.wait("> ")

    def read(self, awaited):
        """What the terminal shows next, within two minutes."""
        if not select.select([self.fd], [], [], 120)[0]:
            raise SystemExit(f"no {awaited} in {self.text[self.seen:][-2000:]!r}")
        try:
            self.text += os.read(self.fd, 65536)
        except OSError:
            raise SystemExit(f"ended before {awaited}: {self.text[self.seen:][-2000:]!r}")

    def wait(self, word):
        """Reads until the word comes behind what was awaited before."""
        word = word.encode()
        while word not in self.text[self.seen:]:
            self.read(repr(word))
        start = self.text.index(word, self.seen)
        between = self.text[self.seen:start].decode(errors="replace")
        self.seen = start + len(word)
        return between

    def press(self, keys):
        """A terminal takes what there is room for; the rest waits."""
        data = keys if isinstance(keys, bytes) else keys.encode()
        while data:
            data = data[os.write(self.fd, data[:1000]):]

    def ask(self, keys):
        """Presses keys, and reads until the answer to them has begun."""
        self.press(keys)
        self.wait("\n")
        while not re.sub(rb"\x1b(\[[?0-9;]*[A-Za-z]?)?", b"", self.text[self.seen:]).strip():
            self.read("answer")

    def say(self, keys, message=""):
        self.press(keys)
        said = self.wait(message)
        return said + self.wait("\n> ")

    def messages(self):
        path = os.path.join(home, "talk")
        self.press(f"/save {path}" + self.enter)
        self.wait("what was said to")
        self.wait("\n> ")
        with open(path + ".messages.json", encoding="utf-8") as file:
            return json.load(file)

    def last(self):
        return [m["content"] for m in self.messages() if m["role"] == "user"][-1]

    def end(self):
        """The exit status, once the terminal is as it was before."""
        try:
            while os.read(self.fd, 65536):
                pass
        except OSError:
            pass
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)

    def is_restored(self):
        now = termios.tcgetattr(self.fd)
        return now[:4] == self.attributes[:4]


def keys():
    talk = Talk()
    check("bracketed paste is asked for", b"\033[?2004h" in talk.text, talk.text)
    talk.say("ac\033[Db\033[C\u00e9\u65e5\u672c\u8a9e\033[D\033[D\033[3~x\033[Hz\033[F!\r")
    check("arrows, UTF-8", talk.last() == "zabc\u00e9\u65e5x\u8a9e!", talk.last())
    talk.say(b"a\xffb\xe2\x82c\r")
    check("bytes that are not UTF-8", talk.last() == "a\ufffdb\ufffdc", talk.last())
    long = "once upon a time " * 350
    talk.press(long + "\r")
    talk.wait("\n> ")
    check("a line of 6,000 bytes", talk.last() == long, talk.last())
    talk.say("/reset\r")
    talk.say("one\033\rtwo\r")
    check("Alt-Enter", talk.last() == "one\ntwo", talk.last())
    talk.say("\033[200~first\rsecond\r\n\tthird\nfourth \u00fc\033[201~ and more\r")
    check("paste", talk.last() == "first\nsecond\n\tthird\nfourth \u00fc and more", talk.last())
    talk.say("\033[200~/* not\r a command */\033[201~\r")
    check("paste with a slash", talk.last() == "/* not\n a command */", talk.last())
    said = talk.say("\033[200~" + "many words of a book\r" * 20000 + "\033[201~\r")
    check("a book is one message", "context" in said and "many words" in said, said[-500:])
    check("and the conversation goes on", talk.last() == "/* not\n a command */")
    talk.press("\004")
    talk.wait("\033[?2004l")
    check("Ctrl-D", talk.end() == 0)


def commands():
    talk = Talk()
    talk.say("/undo\r", "nothing has been said")
    talk.say("first\r")
    talk.say("second\r")
    check("/undo", "took back: second" in talk.say("/un\t\r"))
    check("/undo of one", [m["role"] for m in talk.messages()] == ["user", "assistant"])
    talk.press("/\t")
    listed = talk.wait("/exit")
    check("completions", all(word in listed for word in ("/reset", "/save", "/undo", "/think")),
          listed)
    talk.say("\025/thi\tmaybe\r", "/think takes auto, on or off, not 'maybe'; it is auto now")
    talk.say("/think off\r", "has no switch that turns it off")
    talk.say("/think auto\r")
    talk.say("/save\r", "/save takes an argument: /save FILE")
    talk.say("/load /no/such\r", "which /save writes beside /no/such")
    talk.say("/usr/bin\r", "a blank before it makes it a message")
    talk.say(" /usr/bin\r")
    check("a blank before a slash", talk.last() == " /usr/bin", talk.last())
    check("/stats", "prompt:" in talk.say("/stats\r"))
    talk.press("/exit\r")
    check("/exit", talk.end() == 0)


def grammars():
    """Every answer is held to the grammar; reasoning before it is not."""
    grammar = os.path.join(home, "grammar")
    template = os.path.join(home, "template.jinja")
    with open(grammar, "w") as file:
        file.write('root ::= "yes" | "no"')
    with open(template, "w") as file:
        file.write("{% for m in messages %}{{ m.content.split('</think>')[-1] }}\n{% endfor %}<think>")
    talk = Talk("-n", "40", "--grammar", grammar)
    talk.say("Do you know the cat?\r")
    talk.say("And the dog?\r")
    answers = [m["content"] for m in talk.messages() if m["role"] == "assistant"]
    check("answers", len(answers) == 2 and set(answers) <= {"yes", "no"}, answers)
    talk.press("/exit\r")
    talk.end()
    talk = Talk("-n", "12", "--grammar", grammar, "--chat-template", template)
    talk.say("Once upon a time\r")
    answer = talk.messages()[-1]
    check("reasoning is not held", answer["content"] == "" and
          len(answer["reasoning_content"]) > 10, answer)
    talk.press("/exit\r")
    talk.end()


def kept():
    os.remove(history)
    talk = Talk()
    talk.say("\033[200~to be\ror \\not\033[201~\r")
    talk.say(" a secret\r")
    talk.press("/exit\r")
    talk.end()
    with open(history, encoding="utf-8") as file:
        check("the file", file.read() == "to be\\nor \\\\not\n/exit\n")
    check("its mode", stat.S_IMODE(os.stat(history).st_mode) == 0o600)
    talk = Talk()
    talk.say("\033[A\033[A again\r")
    check("the arrow brings the message", talk.last() == "to be\nor \\not again", talk.last())
    long = "x" * 1500
    talk.press(long + "\033[A\r")
    talk.wait("\n> ")
    check("the arrow leaves a long line whole", talk.last() == long)
    talk.press("\022secr\007\025/exit\r")
    talk.end()
    size = os.stat(history).st_size
    talk = Talk("-n", "2", "--history", "none")
    talk.say("\033[Anothing\r")
    check("none has no entries", talk.last() == "nothing", talk.last())
    talk.press("/exit\r")
    talk.end()
    check("none keeps nothing", os.stat(history).st_size == size)
    talk = Talk(XDG_STATE_HOME=os.path.join(home, "state"))
    talk.press("/exit\r")
    talk.end()
    check("XDG_STATE_HOME", os.path.exists(os.path.join(home, "state/moe-offload/history")))
    talk = Talk("-n", "2", "--history", "/proc/none/history")
    talk.say("Hello\r")
    check("a file that cannot be written", b"--history none keeps none" in talk.text, talk.text)
    talk.press("/exit\r")
    check("and the conversation went on", talk.end() == 0)
    other = os.path.join(home, "other")
    with open(other, "wb") as file:
        file.write(b"\xff\xfe\n\0\0\n" + b"old\n" * 3000 + b"y" * (5 << 20) + b"\nnewest\n")
    talk = Talk("-n", "2", "--history", other)
    talk.say("\033[A\r")
    check("a damaged file", talk.last() == "newest", talk.last())
    talk.press("/exit\r")
    talk.end()
    check("a large file is cut", os.stat(other).st_size < 5000, os.stat(other).st_size)


def interrupts():
    talk = Talk("--ignore-eos", "--chat-template", "chatml")
    talk.ask("Tell me a story.\r")
    talk.press("typed ahead\003")
    talk.wait("\n> ")
    talk.press("\003")
    talk.wait("Ctrl-C once more leaves")
    talk.wait("> ")
    talk.ask("kept\r")
    talk.say("\003")
    check("Ctrl-C stops an answer", talk.last() == "kept", talk.last())
    os.kill(talk.pid, signal.SIGSTOP)
    os.waitpid(talk.pid, os.WUNTRACED)
    termios.tcsetattr(talk.fd, termios.TCSANOW, talk.attributes)
    os.kill(talk.pid, signal.SIGCONT)
    for _ in range(2400):
        if not termios.tcgetattr(talk.fd)[3] & termios.ICANON:
            break
        time.sleep(0.05)
    check("edits on after a stop", not termios.tcgetattr(talk.fd)[3] & termios.ICANON)
    termios.tcsetwinsize(talk.fd, (10, 20))
    talk.press("x\003")
    talk.wait("Ctrl-C once more leaves")
    talk.press("\003")
    talk.wait("\033[?2004l")
    check("Ctrl-C twice at the prompt", talk.end() == 130)
    talk = Talk("--ignore-eos", "--chat-template", "chatml")
    talk.ask("Tell me a story.\r")
    os.kill(talk.pid, signal.SIGINT)
    os.kill(talk.pid, signal.SIGTERM)
    talk.wait("\033[?2004l")
    for _ in range(2400):
        if talk.is_restored():
            break
        time.sleep(0.05)
    check("the terminal is as before", talk.is_restored())
    check("two signals at once end an answer", talk.end() in (130, 143))


def ahead():
    talk = Talk("-n", "150", "--ignore-eos", "--chat-template", "chatml")
    waiting = "once upon a time " * 350
    talk.ask("Tell me a story.\r")
    talk.press(waiting + "\033[200~in\r\na\033[201~ forest\r")
    talk.wait("\n> ")
    talk.wait("\n> ")
    check("typed during an answer", talk.last() == waiting + "in\na forest", talk.last()[-100:])
    talk.press("/exit\r")
    check("/exit", talk.end() == 0)


def plain():
    talk = Talk(TERM="dumb")
    check("no sequences on a dumb terminal", b"\033" not in talk.text, talk.text)
    talk.say("one\n")
    check("a line", talk.last() == "one", talk.last())
    # It has no editor, and the terminal itself collects lines of 4,095 bytes.
    os.write(talk.fd, b"x" * 3000)
    time.sleep(0.2)
    os.write(talk.fd, b"x" * 3000)
    talk.say("\n", "the terminal cuts lines of more than 4095 bytes here, so this one is not sent")
    talk.press("/exit\n")
    check("/exit", talk.end() == 0)


try:
    for part in (keys, commands, grammars, kept, interrupts, ahead, plain):
        part()
finally:
    shutil.rmtree(home)
if failures:
    sys.exit(1)
print("all held")
