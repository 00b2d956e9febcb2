#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""report.py COMMAND MODEL: `report` writes one page that needs no other file, whose hit rates are the engine's,
and leaves nothing behind when it fails."""
import html.parser
import json
import os
import re
import subprocess
import sys
import tempfile

VOID = {"meta", "link", "br", "img", "line", "circle", "rect", "path"}


class Page(html.parser.HTMLParser):
    """Elements close in the order in which they opened; counts them, and finds what is loaded from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.count, self.foreign = [], {}, []

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        self.foreign += [value for name, value in attrs if name in ("src", "href") or "url(" in (value or "")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == "p" and tag != "p":
            self.open.pop()
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"


def run(command, *arguments):
    return subprocess.run([command, "report", *arguments], capture_output=True, text=True)


def numbers(row):
    return [float(cell) for cell in re.findall(r'<td class="n">([^<]*)</td>', row)]


def check_page(text, n_runs):
    page = Page()
    page.feed(text)
    assert not page.open and not page.foreign, (page.open, page.foreign)
    assert text.count('<svg class="chart"') == 3, "three pictures"
    assert "nan" not in text and "inf" not in re.sub("[a-z]*inf[a-z]+|[a-z]+inf", "", text), "a figure is missing"
    assert "prefers-color-scheme:dark" in text
    rows = [numbers(row) for row in re.findall(r"<tr><td class=\"n\">.*", text)]
    assert len(rows) in n_runs, rows
    for _, hits, megabytes, speed, predicted, low, high in rows:
        assert 0 < hits <= 100 and speed > 0 and low <= predicted <= high, rows
        assert hits == 100 or megabytes > 0, rows
    return rows


def check_within(command, model, folder):
    out = os.path.join(folder, "page.html")
    plan = json.loads(subprocess.run([command, "plan", "-m", model, "-c", "256", "--json", "--calibration", "none"],
                                     capture_output=True, text=True, check=True).stdout)
    budget = plan["total_bytes"] - 45 * plan["expert_cache_bytes"] // 100
    result = run(command, "-m", model, "-o", out, "-n", "40", "-c", "256", "--host-memory", str(budget))
    assert result.returncode == 0, result.stderr
    with open(out, encoding="utf-8") as file:
        text = file.read()
    rows = check_page(text, (2, 3))  # a quarter, half if the budget holds it, and the budget
    # The simulator finds what the engine found: in the words rounded to a point.
    simulated = float(re.search(r"([0-9]+) % of the experts that a token needs", text)[1])
    assert abs(simulated - rows[-1][1]) <= 0.6, (simulated, rows)
    assert "memory for all experts" in text and "a second drive" in text


def check_all(command, model, folder):
    out = os.path.join(folder, "all.html")
    text = os.path.join(folder, "<text>")
    with open(text, "w", encoding="utf-8") as file:
        file.write("She has 3 apples & buys 5 more. How many apples does she have now? " * 4)
    result = run(command, "-m", model, "-o", out, "-n", "32", "-c", "256", "-f", text)
    assert result.returncode == 0, result.stderr
    with open(out, encoding="utf-8") as file:
        page = file.read()
    rows = check_page(page, (3,))
    assert rows[-1][1] >= 80, rows  # experts may still come in the background
    assert "All experts are in memory" in page and "&lt;text&gt;" in page


def check_failures(command, model, folder):
    text = os.path.join(folder, "short")
    with open(text, "w", encoding="utf-8") as file:
        file.write("Hello")
    out = os.path.join(folder, "none.html")
    for arguments, says in ((("-f", text), "or a longer text"), (("--host-memory", "8M"), "memory"),
                            (("-m", text), "short")):
        result = run(command, "-m", model, "-o", out, *arguments)
        assert result.returncode != 0 and says in result.stderr, (arguments, result.stderr)
        assert not [name for name in os.listdir(folder) if name.startswith("none")], os.listdir(folder)
    result = run(command, "-m", model, "-o", folder)
    assert result.returncode == 1 and "not a regular file" in result.stderr, result.stderr


def main():
    command, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        check_within(command, model, folder)
        check_all(command, model, folder)
        check_failures(command, model, folder)
        assert not [name for name in os.listdir(folder) if name.endswith(".part")]


main()
