# SPDX-License-Identifier: MIT
"""typing_test.py TREE: mypy accepts the package and finds the wrong lines of typed_use.py, each with the
error that its comment names, and no others. Skips (77) without mypy."""
import os
import re
import subprocess
import sys
import tempfile

try:
    import mypy  # noqa: F401
    import numpy  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
uses = os.path.join(os.path.dirname(os.path.abspath(__file__)), "typed_use.py")
package = os.path.join(os.path.abspath(sys.argv[1]), "runtime", "python")
with open(uses, encoding="utf-8") as file:
    wanted = {(n, found[1]) for n, line in enumerate(file, 1) if (found := re.search(r"# error: (\S+)", line))}
with tempfile.TemporaryDirectory() as cache:
    done = subprocess.run([sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", cache, uses],
                          env=dict(os.environ, MYPYPATH=package), capture_output=True, text=True)
shown = done.stdout + done.stderr
found = {(int(n), kind) for n, kind in re.findall(r"typed_use\.py:(\d+): error: .*\[(\S+)\]$", shown, re.M)}
others = [line for line in shown.splitlines() if ": error:" in line and "typed_use.py" not in line]
for line, kind in sorted(wanted - found):
    print(f"not found: line {line}, {kind}")
if found != wanted or others or not wanted:
    print(shown)
    sys.exit(1)
