#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Records a terminal as an SVG picture that plays by itself, from a real run of the commands below.

usage: record.py COMMAND MODEL OUT.svg     writes the picture
       record.py COMMAND MODEL --check SVG  runs them again: is the picture's text still what they print,
                                           but for numbers?

Commands appear as if typed, 30 characters a second; what they print appears when they printed it."""
import html
import os
import pty
import re
import subprocess
import sys
import tempfile
import time

COMMANDS = [
    "moe-offload inspect -m model.gguf | head -n 8",
    "moe-offload plan -m model.gguf -c 512 --host-memory 64M --disk 3",
    "moe-offload run -m model.gguf -c 512 --host-memory 64M --temp 0 --chat \\\n"
    "    -p \"Tom has 5 pens. He buys 7 more. How many pens does he have?\"",
]
COLUMNS, ROW, CHARACTER, MARGIN = 100, 18, 8.4, 14
TYPED = 1 / 30


def printed(command, folder, environment):
    """The bytes that the command prints on a terminal, each piece with its time."""
    pieces, began = [], time.monotonic()
    parent, child = pty.openpty()
    process = subprocess.Popen(["sh", "-c", f"stty cols {COLUMNS} -onlcr; {command}"], cwd=folder, env=environment,
                               stdin=child, stdout=child, stderr=child, start_new_session=True)
    os.close(child)
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:
            break  # the last program has closed the terminal
        if not piece:
            break
        pieces.append((time.monotonic() - began, piece))
    os.close(parent)
    process.wait()
    return pieces


class Screen:
    """Text with the moment at which each piece of it came. Carriage returns begin a line anew."""

    def __init__(self):
        self.lines = [[]]  # pieces (time, text, class)
        self.now = 0.5

    def put(self, text, kind):
        for part in re.split(r"(\n|\r|\x1b\[[0-9;?]*[A-Za-z])", text):
            if part == "\n":
                self.lines.append([])
            elif part == "\r":
                self.lines[-1] = []
            elif part and not part.startswith("\x1b"):
                self.lines[-1].append((self.now, part, kind))

    def text(self):
        return "\n".join("".join(part for _, part, _ in line).rstrip() for line in self.lines)


def record(command, model):
    screen = Screen()
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.abspath(model), os.path.join(folder, "model.gguf"))
        environment = dict(os.environ, TERM="xterm", LC_ALL="C.UTF-8", PATH=os.pathsep.join(
            [os.path.dirname(os.path.abspath(command)), os.environ["PATH"]]))
        for line in COMMANDS:
            screen.put("$ ", "prompt")
            for word in re.findall(r"\S+\s*", line):
                screen.now += TYPED * len(word)
                screen.put(word, "typed")
            screen.now += 0.3
            screen.put("\n", "")
            began = screen.now
            data = b""
            for moment, piece in printed(line, folder, environment):
                screen.now = began + moment
                data += piece
                text = data.decode("utf-8", "ignore")
                data = data[len(text.encode()):]
                screen.put(text, "printed")
            screen.now += 1.0
            if screen.lines[-1]:
                screen.lines.append([])
    return screen


def wrapped(lines):
    """The lines as a terminal of COLUMNS wraps them: pieces (time, text, class, column), and whether the
    line goes on the one before."""
    for line in lines:
        row, column, goes_on = [], 0, False
        for moment, text, kind in line:
            while text:
                part, text = text[:COLUMNS - column], text[COLUMNS - column:]
                row.append((moment, part, kind, column))
                column += len(part)
                if text:
                    yield row, goes_on
                    row, column, goes_on = [], 0, True
        yield row, goes_on


def draw(screen):
    rows = list(wrapped(screen.lines))
    width, height = COLUMNS * CHARACTER + 2 * MARGIN, len(rows) * ROW + 2 * MARGIN
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}">',
           "<title>A terminal: moe-offload inspects a model, plans its memory and answers a question</title>",
           "<style>text{font:14px/18px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;"
           "opacity:0;animation:come 1ms forwards}@keyframes come{to{opacity:1}}.prompt{fill:#7ee787}"
           ".typed{fill:#fff}.printed{fill:#c9d1d9}@media(prefers-reduced-motion){text{animation-delay:0s!important}}</style>",
           f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#0d1117"/>']
    for row, (line, goes_on) in enumerate(rows):
        for moment, text, kind, column in line:
            if text.strip():
                more = " more" if goes_on else ""
                out.append(f'<text class="{kind}{more}" x="{MARGIN + column * CHARACTER:.1f}" y="{MARGIN + row * ROW + 13}" '
                           f'textLength="{len(text.rstrip()) * CHARACTER:.1f}" style="animation-delay:{moment:.2f}s">'
                           f"{html.escape(text.rstrip())}</text>")
    return "\n".join(out) + "\n</svg>\n"


def masked(text):
    """What does not depend on the machine and its load: no figures, and no line that is there or not by
    the processor, by whether drafts paid, or by when reads ended."""
    lines = [re.sub(r"[\d.]+(ns|us|ms|s|B|KiB|MiB|GiB)?", "0", re.sub(r"\s+", "", line))
             for line in text.split("\n") if not line.startswith(("loaded", "speculation:", "cache:"))]
    return [line for line in lines if line]


def main():
    screen = record(sys.argv[1], sys.argv[2])
    if sys.argv[3] != "--check":
        with open(sys.argv[3], "w", encoding="utf-8") as file:
            file.write(draw(screen))
        return 0
    with open(sys.argv[4], encoding="utf-8") as file:
        pieces = re.findall(r'<text class="\w+( more)?" [^>]*y="(\d+)"[^>]*>(.*?)</text>', file.read(), re.S)
    lines, last = [], None
    for more, y, text in pieces:
        if y != last and not more:
            lines.append("")
        lines[-1] += html.unescape(text)
        last = y
    shown, today = masked("\n".join(lines)), masked(screen.text())
    if shown != today:
        print(*[f"the picture: {a}\ntoday:       {b}" for a, b in zip(shown, today) if a != b], sep="\n")
        print("docs/record.py makes the picture anew")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
