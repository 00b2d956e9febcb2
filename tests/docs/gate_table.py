# SPDX-License-Identifier: MIT
"""bench/results/processors.md has the table that `bench/gate.py --print` prints of the recorded columns.

    gate_table.py SOURCE_ROOT
"""
import pathlib
import subprocess
import sys

bench = pathlib.Path(sys.argv[1]) / "bench"
printed = subprocess.run([sys.executable, bench / "gate.py", "--print"], check=True, capture_output=True, text=True).stdout
if printed.count("\n") < 10:
    sys.exit(f"gate.py prints no table: {printed}")
if printed not in (bench / "results" / "processors.md").read_text(encoding="utf-8"):
    sys.exit(f"bench/results/processors.md lacks the table that gate.py prints now:\n{printed}")
