# SPDX-License-Identifier: MIT
"""Runs mixture-of-experts language models larger than memory: libmoe_offload for Python.

A text is continued as follows::

    import moe_offload
    with moe_offload.Engine("model.gguf") as engine, engine.session(temperature=0) as session:
        for piece in session.stream("Once upon a time", 50):
            print(piece, end="", flush=True)
"""
from ._engine import Engine, Session, Token, plan
from ._library import BudgetError, Cancelled, ContextFull, Error, lib
from ._policy import Access, Forecast, Policy, Setting, Use
from ._trace import Analysis, Rows, Trace, policies

__version__: str = lib.version().decode()
__all__ = ["Access", "Analysis", "BudgetError", "Cancelled", "ContextFull", "Engine", "Error",
           "Forecast", "Policy", "Rows", "Session", "Setting", "Token", "Trace", "Use", "plan",
           "policies"]
