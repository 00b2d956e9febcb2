# SPDX-License-Identifier: MIT
"""notebooks.py TREE LIBRARY: runs the notebooks of docs/notebooks, which check what they claim. Skips (77)
without nbclient, ipykernel or numpy."""
import os
import sys

try:
    import ipykernel  # noqa: F401
    import nbclient
    import nbformat
    import numpy  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
tree, library = (os.path.abspath(a) for a in sys.argv[1:3])
folder = os.path.join(tree, "docs", "notebooks")
os.environ.update(MOE_OFFLOAD_LIBRARY=library, PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=os.pathsep.join(
    [os.path.join(tree, "runtime", "python"), *filter(None, [os.environ.get("PYTHONPATH")])]))
names = sorted(name for name in os.listdir(folder) if name.endswith(".ipynb"))
assert len(names) == 3, names
failed = 0
for name in names:
    notebook = nbformat.read(os.path.join(folder, name), as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}})
    try:
        client.execute()
    except nbclient.exceptions.CellExecutionError as error:
        failed += 1
        print(f"{name}: {error}")
    printed = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    if len(printed) < 3:
        failed += 1
        print(f"{name}: printed little: {printed}")
sys.exit(1 if failed else 0)
