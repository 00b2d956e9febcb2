# SPDX-License-Identifier: MIT
"""Uses of the package that a type checker accepts, but for the lines that end in the error that it must
find. typing_test.py checks both; nothing runs this file."""
import numpy as np

import moe_offload
from moe_offload import Access, Engine, Policy, Trace, Use


class Lru(Policy):
    def __init__(self) -> None:
        self.last: dict[int, int] = {}

    def hit(self, key: int, access: Access) -> None:
        self.last[key] = access.number


engine = Engine("model.gguf", n_threads=np.int64(2), host_memory="6G", kv_cache="q8_0", policy=Lru())
Engine("model.gguf", host_memory=6 << 30, expert_cache_share=0.5, buffered_io=True, policy="lru")
Engine("model.gguf", threads=2)  # error: call-arg
Engine("model.gguf", host_mem="6G")  # error: call-arg
Engine("model.gguf", n_threads="two")  # error: arg-type
Engine("model.gguf", n_threads=2.5)  # error: arg-type
Engine("model.gguf", kv_cache="f17")  # error: arg-type
Engine("model.gguf", host_memory=6.5)  # error: arg-type
Engine("model.gguf", buffered_io="no")  # error: arg-type
Engine("model.gguf", model_copies=["b.gguf"])  # error: call-arg
Engine("model.gguf", policy=5)  # error: arg-type
moe_offload.plan("model.gguf", context=4096, speculate="auto")
moe_offload.plan("model.gguf", contxt=4096)  # error: call-arg
session = engine.session(temperature=0, seed=7, evaluate_only=True)
engine.session(temprature=0)  # error: call-arg
engine.session(temperature="hot")  # error: arg-type
session.feed([1, 2]) if len(session) == 0 else session.feed("text")
text: str = session.complete("Once", 4)
number: int = session.complete("Once", 4)  # error: assignment
trace = Trace("trace.jsonl", format="jsonl")
Trace("trace.jsonl", format="csv")  # error: arg-type
Trace.generate("olmoe", decode_passes=60)
Trace.generate("olmoe", passes=60)  # error: call-arg
trace.simulate(policy="lfru", cache_share=0.25, expert_bytes="6M")


def score(use: Use) -> float:
    return use.last - use.gate


trace.simulate(policy=score, per_layer=True)
trace.simulate(policy=lambda use: use.newest)  # error: attr-defined
trace.simulate(share=0.25)  # error: call-arg
