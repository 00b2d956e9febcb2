# SPDX-License-Identifier: MIT
"""Writes a model whose matrices have tensors of scales beside them, from one of the oracles here:

    python3 make_scaled.py FOLDER       # writes FOLDER-scaled beside it

Each matrix that may be scaled is divided by a number, which becomes its tensor `.scale`; those of
stacked experts have a number for each expert. `.input_scale` tensors stand beside some, and change
nothing. The prompts, logits and tokens are those of FOLDER, which transformers wrote. Needs numpy
and gguf; the seed is fixed.
"""
import shutil
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

ROLES = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
         "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "ffn_gate_exps", "ffn_up_exps",
         "ffn_down_exps", "output")


def copy_keys(reader, writer):
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[0]
        writer.add_key_value(key, field.contents(), kind,
                             field.types[-1] if kind == GGUFValueType.ARRAY else None)


def main():
    source = Path(sys.argv[1])
    target = source.with_name(source.name + "-scaled")
    shutil.copytree(source, target, dirs_exist_ok=True)
    rng = np.random.default_rng(7)
    reader = GGUFReader(source / "model.gguf")
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target / "model.gguf", architecture)
    copy_keys(reader, writer)
    for tensor in reader.tensors:
        values = np.array(tensor.data)
        stem, _, kind = tensor.name.rpartition(".")
        if kind != "weight" or stem.rpartition(".")[2] not in ROLES:
            writer.add_tensor(tensor.name, values)
            continue
        assert values.dtype == np.float32, tensor.name
        scales = np.exp(rng.normal(size=len(values) if stem.endswith("_exps") else 1) * 3)
        scales = (scales * rng.choice([-1, 1], size=scales.shape)).astype(np.float32)
        shape = (-1,) + (1,) * (values.ndim - 1)
        writer.add_tensor(tensor.name, (values / scales.reshape(shape)).astype(np.float32))
        writer.add_tensor(stem + ".scale", scales)
        if rng.integers(2):
            writer.add_tensor(stem + ".input_scale", np.abs(scales))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
