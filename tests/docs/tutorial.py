# SPDX-License-Identifier: MIT
"""tutorial.py TREE BUILD-FOLDER: runs the commands of the tutorial's pages (docs/tutorial/*.rst) and compares
what they print with what the pages show. In a block of the language "console", a line that begins with
"$ " is a command, and the lines below it are its output; "..." stands for any text. A block with a
caption is a file. Commands of a page share a folder, in which model.gguf is the demo model, and a shell.
Commands of Python are left out without numpy."""
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import textwrap

tree, build = (os.path.abspath(a) for a in sys.argv[1:3])
pages = os.path.join(tree, "docs", "tutorial")
BLOCK = re.compile(r"^\.\. (code-block|literalinclude):: (\S+)\n((?:   :.*\n)*)\n?((?:(?:   .*)?\n)*)", re.M)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def read(page):
    """The page's files, and its commands with what they should print."""
    files, commands = {}, []
    with open(os.path.join(pages, page), encoding="utf-8") as file:
        text = file.read()
    for kind, argument, options, body in BLOCK.findall(text):
        body = textwrap.dedent(body).strip("\n")
        caption = re.search(r":caption: (\S+)", options)
        if kind == "literalinclude":
            with open(os.path.join(pages, argument), encoding="utf-8") as file:
                body = file.read()
        if caption:
            files[caption[1]] = body + "\n"
        elif argument == "console":
            for line in body.split("\n"):
                if line.startswith("$ "):
                    commands.append((line[2:], []))
                else:
                    commands[-1][1].append(line)
    return files, commands


def run(page, environment):
    files, commands = read(page)
    assert commands, page
    port = free_port()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.join(tree, "examples", "demo-model", "moe-demo-q4.gguf"), os.path.join(folder, "model.gguf"))
        for name, body in files.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(body)
        script = []
        for i, (command, _) in enumerate(commands):
            skipped = command.startswith("python3 ") and not has_numpy
            script.append("true" if skipped else f"{{ {command.replace('8080', port)}\n}} >{folder}/output.{i} 2>&1")
        script.append("kill $(jobs -p) 2>/dev/null; wait")
        subprocess.run(["bash", "-c", "\n".join(script)], cwd=folder, env=environment, stdin=subprocess.DEVNULL, timeout=600)
        for i, (command, lines) in enumerate(commands):
            if command.startswith("python3 ") and not has_numpy:
                continue
            with open(os.path.join(folder, f"output.{i}"), encoding="utf-8") as file:
                shown = file.read().replace(port, "8080").strip("\n")
            wanted = "\n".join(lines)
            pattern = ".*".join(re.escape(part) for part in wanted.split("..."))
            shell = command.rstrip().endswith("&")
            if not shell and not re.fullmatch(pattern, shown, re.S):
                wrong += 1
                print(f"{page}: $ {command}\nshould print\n{wanted}\nand prints\n{shown}\n")
    return wrong


try:
    import numpy
    has_numpy = True
    packages = os.path.dirname(os.path.dirname(numpy.__file__))
except ImportError:
    print("no numpy: commands of Python are left out")
    has_numpy = False
    packages = ""
# python3 is the interpreter that runs this file.
with tempfile.TemporaryDirectory() as programs:
    python = os.path.join(programs, "python3")
    with open(python, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} \"$@\"\n")
    os.chmod(python, 0o755)
    environment = dict(os.environ, PATH=os.pathsep.join([programs, build, os.environ["PATH"]]), LC_ALL="C.UTF-8",
                       PYTHONPATH=os.pathsep.join([os.path.join(tree, "runtime", "python"), packages]),
                       PYTHONDONTWRITEBYTECODE="1", MOE_OFFLOAD_LIBRARY=os.path.join(build, "libmoe_offload.so.0"),
                       LD_LIBRARY_PATH=build, PKG_CONFIG_PATH=os.path.join(build, "meson-uninstalled"))
    found = sorted(name for name in os.listdir(pages) if name.endswith(".rst"))
    assert len(found) == 5, found
    sys.exit(1 if sum(run(page, environment) for page in found) else 0)
