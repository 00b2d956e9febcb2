# SPDX-License-Identifier: MIT
"""Loads libmoe_offload and declares its functions. Errors become exceptions."""
import ctypes
import os
from ctypes import (POINTER, byref, c_bool, c_char_p, c_double, c_int, c_int32, c_float, c_size_t,
                    c_uint32, c_void_p)
from typing import Any, Dict, List, Tuple

from . import _layout as layout


class Error(RuntimeError):
    """An error of the library, in its own words, which name the cause and the remedy."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ContextFull(Error):
    """The session's context has no room for more tokens."""


class BudgetError(Error):
    """The memory budget is below what the model or the session needs."""


class Cancelled(Error):
    """Session.cancel() was called."""


_KINDS = {layout.MOE_ERR_CONTEXT_FULL: ContextFull, layout.MOE_ERR_BUDGET: BudgetError,
          layout.MOE_ERR_CANCELLED: Cancelled}
_ERROR = POINTER(layout.moe_error)
_OUT = POINTER(c_void_p)
_TEXT = POINTER(c_size_t)

# name: result, arguments. "error": the last argument is a moe_error, the result a status.
_FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "moe_version": (c_char_p, []),
    "moe_free": (None, [c_void_p]),
    "moe_status_name": (c_char_p, [c_int]),
    "moe_engine_options_init_sized": (None, [POINTER(layout.moe_engine_options), c_size_t]),
    "moe_engine_open": ("error", [_OUT, POINTER(layout.moe_engine_options)]),
    "moe_engine_close": (None, [_OUT]),
    "moe_plan_memory": ("error", [POINTER(layout.moe_engine_options),
                                  POINTER(layout.moe_memory_plan)]),
    "moe_engine_get_info": (c_int, [c_void_p, POINTER(layout.moe_engine_info)]),
    "moe_engine_get_stats": (c_int, [c_void_p, POINTER(layout.moe_engine_stats)]),
    "moe_tokenize": ("error", [c_void_p, c_char_p, c_size_t, ctypes.c_uint,
                               POINTER(POINTER(c_int32)), POINTER(c_size_t)]),
    "moe_token_piece": (c_void_p, [c_void_p, c_int32, c_bool, _TEXT]),
    "moe_token_is_end": (c_bool, [c_void_p, c_int32]),
    "moe_text_create": ("error", [_OUT, c_void_p]),
    "moe_text_close": (None, [_OUT]),
    "moe_text_push": (c_void_p, [c_void_p, c_int32, _TEXT]),
    "moe_text_finish": (c_void_p, [c_void_p, _TEXT]),
    "moe_session_options_init_sized": (None, [POINTER(layout.moe_session_options), c_size_t]),
    "moe_session_create": ("error", [_OUT, c_void_p, POINTER(layout.moe_session_options)]),
    "moe_session_close": (None, [_OUT]),
    "moe_session_feed": ("error", [c_void_p, POINTER(c_int32), c_size_t]),
    "moe_step": ("error", [c_void_p, POINTER(c_void_p), c_size_t]),
    "moe_session_take": (c_size_t, [c_void_p, POINTER(c_int32), c_size_t]),
    "moe_session_n_tokens": (c_size_t, [c_void_p]),
    "moe_session_n_pending": (c_size_t, [c_void_p]),
    "moe_session_tokens": (POINTER(c_int32), [c_void_p]),
    "moe_session_is_full": (c_bool, [c_void_p]),
    "moe_session_logits": (POINTER(c_float), [c_void_p]),
    "moe_session_truncate": ("error", [c_void_p, c_size_t]),
    "moe_session_fork": ("error", [_OUT, c_void_p]),
    "moe_session_set_sampling": ("error", [c_void_p, POINTER(layout.moe_sampling)]),
    "moe_session_save": ("error", [c_void_p, c_char_p]),
    "moe_session_load": ("error", [_OUT, c_void_p, c_char_p]),
    "moe_session_cancel": (None, [c_void_p]),
    "moe_session_follow": ("error", [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_size_t)]),
    "moe_embed": ("error", [c_void_p, POINTER(c_int32), POINTER(c_size_t), c_size_t, c_int, c_bool,
                            POINTER(c_float)]),
    "moe_chat_options_init_sized": (None, [POINTER(layout.moe_chat_options), c_size_t]),
    "moe_chat_render": ("error", [_OUT, c_void_p, POINTER(layout.moe_chat_options)]),
    "moe_chat_prompt_close": (None, [_OUT]),
    "moe_chat_prompt_tokens": (POINTER(c_int32), [c_void_p, POINTER(c_size_t)]),
    "moe_grammar_create": ("error", [_OUT, c_char_p, c_size_t]),
    "moe_grammar_close": (None, [_OUT]),
    "moe_json_schema_grammar": ("error", [POINTER(c_void_p), c_char_p, c_size_t]),
    "moe_session_set_grammar": ("error", [c_void_p, c_void_p]),
    "moe_trace_open_options_init_sized": (None, [POINTER(layout.moe_trace_open_options), c_size_t]),
    "moe_trace_open": ("error", [_OUT, POINTER(layout.moe_trace_open_options)]),
    "moe_trace_close": (None, [_OUT]),
    "moe_trace_save": ("error", [c_void_p, c_char_p, c_int, c_uint32]),
    "moe_trace_get_info": (c_int, [c_void_p, POINTER(layout.moe_trace_info)]),
    "moe_trace_generator_init_sized": ("error", [POINTER(layout.moe_trace_generator), c_size_t,
                                                 c_char_p]),
    "moe_trace_generate": ("error", [_OUT, POINTER(layout.moe_trace_generator)]),
    "moe_policy_name": (c_char_p, [c_uint32]),
    "moe_simulation_init_sized": (None, [POINTER(layout.moe_simulation), c_size_t]),
    "moe_simulate": ("error", [c_void_p, POINTER(layout.moe_simulation),
                               POINTER(layout.moe_simulation_result)]),
    "moe_analyze": ("error", [POINTER(POINTER(layout.moe_analysis)), c_void_p, c_uint32]),
    "moe_analysis_free": (None, [POINTER(POINTER(layout.moe_analysis))]),
    "moe_analysis_amdahl": (c_double, [POINTER(layout.moe_analysis), c_double, c_uint32]),
}


def _raising(function):
    def call(*arguments):
        error = layout.moe_error()
        status = function(*arguments, byref(error))
        if status != layout.MOE_OK:
            raise _KINDS.get(status, Error)(status, error.message.decode("utf-8", "replace"))
    return call


class _Library:
    def __init__(self) -> None:
        name = "libmoe_offload.so.0"
        brought = os.path.join(os.path.dirname(__file__), name)  # by a wheel of make_wheel.sh
        name = os.environ.get("MOE_OFFLOAD_LIBRARY", brought if os.path.exists(brought) else name)
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            raise ImportError(f"libmoe_offload cannot be loaded ({error}): install it, or name its "
                              "file in MOE_OFFLOAD_LIBRARY") from None
        for function_name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, function_name)
            raises = result == "error"
            function.argtypes = arguments + ([_ERROR] if raises else [])
            function.restype = c_int if raises else result
            setattr(self, function_name[4:], _raising(function) if raises else function)


lib: Any = _Library()


def as_dict(struct: Any) -> Dict[str, Any]:
    """A struct's members as Python values: nested structs as dicts, arrays as lists."""
    result = {}
    for name, _ in struct._fields_:
        value = getattr(struct, name)
        if name in ("struct_size", "reserved", "reserved32"):
            continue
        if isinstance(value, ctypes.Structure):
            value = as_dict(value)
        elif isinstance(value, ctypes.Array):
            value = list(value)
        elif isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        result[name] = value
    return result


__all__ = ["lib", "layout", "Error", "ContextFull", "BudgetError", "Cancelled", "as_dict"]
