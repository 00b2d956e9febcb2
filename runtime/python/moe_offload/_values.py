# SPDX-License-Identifier: MIT
"""Checks what a user gives before it becomes a C value. ctypes cuts an integer to the field's width,
takes any object for a bool and an integer for an address, and C ends a string at its first NUL."""
import ctypes
import math
import numbers
import operator
import os
import re
from ctypes import c_bool, c_char_p, c_int32, c_size_t, sizeof
from typing import Any

import numpy as np

from . import _layout as layout

# Members that a program sets itself, or that the package sets from an argument.
_NOT_OPTIONS = {"struct_size", "user", "read_user", "model_path", "own_policy", "reserved", "reserved32"}


def integer(value: Any, kind: Any, what: str) -> int:
    """An integer that the ctypes type kind can hold. bool is none: True is rarely meant as 1."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, not {value!r}") from None
    if kind(number).value != number:
        bits = 8 * sizeof(kind)
        least, most = (-1 << (bits - 1), (1 << (bits - 1)) - 1) if kind(-1).value < 0 else \
            (0, (1 << bits) - 1)
        raise OverflowError(f"{what} must be from {least} to {most}, not {number}")
    return number


def real(value: Any, kind: Any, what: str) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{what} must be a number, not {value!r}")
    try:
        number = float(value)
        if math.isfinite(number) and not math.isfinite(kind(number).value):
            raise OverflowError
    except OverflowError:
        raise OverflowError(f"{what} is too large: {value!r}") from None
    return number


def size(value: Any, kind: Any, what: str) -> int:
    """Bytes: an integer, or a text such as "6G" or "1.5M", as the command takes it."""
    if not isinstance(value, str):
        return integer(value, kind, what)
    found = re.fullmatch(r"\+?(\d+\.?\d*|\.\d+)([KMGT]?)", value, re.ASCII | re.IGNORECASE)
    number = float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ") if found else 0
    if not 0 < number <= 1e18:
        raise ValueError(f"{what} must be bytes, such as 6442450944 or \"6G\" (K, M, G, T: powers of "
                         f"1024), not {value!r}")
    return integer(max(1, int(number)), kind, what)


def truth(value: Any, what: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{what} must be True or False, not {value!r}")
    return bool(value)


def text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {value!r}")
    return value


def path(value: Any, what: str) -> bytes:
    """A path, or a name that C reads as a string."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise TypeError(f"{what} must be a str, bytes or os.PathLike, not {value!r}")
    data = os.fsencode(value)
    if b"\0" in data:
        raise ValueError(f"{what} must not have a NUL character: {value!r}")
    return data


def word(value: Any, prefix: str, what: str) -> int:
    """A constant of an enum, by its word or its number."""
    words = {name[len(prefix):].lower(): number for name, number in vars(layout).items()
             if name.startswith(prefix)}
    number = words.get(value, -1) if isinstance(value, str) else integer(value, ctypes.c_int, what)
    if number not in words.values():
        known = ", ".join(sorted(words, key=lambda name: words[name]))
        raise ValueError(f"{what} must be one of {known}, not {value!r}")
    return number


def token(value: Any, what: str) -> int:
    return integer(value, c_int32, what)


def tokens(values: Any, what: str):
    """The ids as an array of int32, and how many they are."""
    if isinstance(values, (str, bytes, bytearray)):
        raise TypeError(f"{what} must be token ids, not {type(values).__name__}: Engine.tokenize() "
                        "makes them of a text")
    try:
        ids = list(values)
    except TypeError:
        raise TypeError(f"{what} must be an iterable of token ids, not {values!r}") from None
    ids = [integer(value, c_int32, f"{what}[{i}]") for i, value in enumerate(ids)]
    return (c_int32 * len(ids))(*ids), len(ids)


def count(value: Any, what: str) -> int:
    return integer(value, c_size_t, what)


def _member(kind: Any, name: str, value: Any, what: str) -> Any:
    if kind is c_char_p:
        return None if value is None else path(value, what)
    if kind is c_bool:
        return truth(value, what)
    if name in layout.WORDS:
        return word(value, layout.WORDS[name], what)
    if name in layout.SIZES:
        return size(value, kind, what)
    if kind in (ctypes.c_double, ctypes.c_float):
        return real(value, kind, what)
    return integer(value, kind, what)


def fill(struct: Any, values: Any, what: str) -> None:
    """Sets members by name, each by its type. An unknown name is an error that lists what there
    is. A member that is a pointer, a callback or a struct has no plain value and is refused."""
    kinds = {name: kind for name, kind in struct._fields_ if name not in _NOT_OPTIONS}
    refused = {name for name, kind in kinds.items() if kind is ctypes.c_void_p or
               not issubclass(kind, ctypes._SimpleCData)}
    refused |= {form for name in refused for form in ("n_" + name, name + "_bytes")} & set(kinds)
    plain = set(kinds) - refused
    for name, value in values.items():
        if name in refused:
            raise TypeError(f"{what} cannot take {name} from Python, where the C interface has a "
                            "pointer: leave it out, or use the command moe-offload or C for it")
        if name not in plain:
            raise TypeError(f"{what} has no option {name!r}; it has {', '.join(sorted(plain))}")
        setattr(struct, name, _member(kinds[name], name, value, f"{what}, {name}"))
