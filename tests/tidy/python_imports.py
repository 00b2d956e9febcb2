#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tells every import of a Python file that nothing can satisfy: python_imports.py TREE

A module is Python's own, a file or package of the tree, or one of PACKAGES. Nothing is run, so
scripts whose packages are not installed are checked as well. Exit status 1 if anything was told.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGES = {"agents", "anthropic", "auditwheel", "breathe", "gguf", "httpx", "huggingface_hub", "instructor", "ipykernel", "jinja2", "jsonschema", "langchain_anthropic",
            "langchain_openai", "libcachesim", "litellm", "llama_cpp", "llguidance", "matplotlib", "mlx", "mlx_lm", "mypy", "nbclient", "nbformat", "numpy", "ollama",
            "openai", "pip", "pyarrow", "pydantic", "pydantic_ai", "setuptools", "sphinx", "tokenizers", "torch", "transformers",
            "tvm_ffi", "typing_extensions", "wheel", "xgrammar", "xxhash", "yaml", "zstandard"}


def imported(path: Path) -> list[tuple[int, str]]:
    """Line and name of each module that the file asks for; relative imports are left out."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.append((node.lineno, node.module))
    return [(line, name.split(".")[0]) for line, name in found]


def main() -> int:
    root = Path(sys.argv[1])
    files = [path for path in sorted(root.rglob("*.py"))
             if not any(part.startswith(("build", ".")) for part in path.relative_to(root).parts)]
    known = PACKAGES | set(sys.stdlib_module_names) | {path.stem for path in files}
    known |= {path.parent.name for path in files if path.name == "__init__.py"}
    told = 0
    for path in files:
        for line, name in imported(path):
            if name not in known:
                print(f"{path.relative_to(root)}:{line}: no module {name}: not Python's, not in the "
                      "tree, and not in PACKAGES of python_imports.py")
                told += 1
    return 1 if told or not files else 0


if __name__ == "__main__":
    if not hasattr(sys, "stdlib_module_names"):
        print("needs Python 3.10")
        sys.exit(77)
    sys.exit(main())
