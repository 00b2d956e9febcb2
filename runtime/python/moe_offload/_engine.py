# SPDX-License-Identifier: MIT
"""Engines and sessions."""
from __future__ import annotations

import ctypes
import json
import os
import threading
from contextlib import contextmanager
from ctypes import POINTER, byref, c_float, c_int32, c_size_t, c_void_p, sizeof
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional,
                    Sequence, Union)

import numpy as np

from . import _values as values
from ._library import Error, as_dict, layout, lib
from ._policy import Policy, Table, Use, give

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import EngineOptions, Sampling, Text

_LOG = ctypes.CFUNCTYPE(None, ctypes.c_char_p, c_void_p)


class Token(NamedTuple):
    """A token that was written, and the text that it completed ("" within a character)."""
    id: int
    text: str


def _options(path: Union[str, "os.PathLike[str]"], given: Any, policy: Any,
             what: str) -> tuple[Any, Optional[Table]]:
    """The struct, and what must live as long."""
    options = layout.moe_engine_options()
    lib.engine_options_init_sized(byref(options), sizeof(options))
    values.fill(options, given, what)
    options.model_path = values.path(path, f"{what}, path")
    return options, give(options, policy, what)


def _most(max_tokens: Optional[int]) -> None:
    if max_tokens is not None:
        values.count(max_tokens, "max_tokens")


def plan(path: Union[str, "os.PathLike[str]"], *, policy: Text = None,
         **options: Unpack[EngineOptions]) -> Dict[str, Any]:
    """Where memory would go, without loading the model: the members of moe_memory_plan. Options are
    those of Engine."""
    result = layout.moe_memory_plan(struct_size=sizeof(layout.moe_memory_plan))
    lib.plan_memory(byref(_options(path, options, policy, "plan")[0]), byref(result))
    return as_dict(result)


class Engine:
    """An opened model. Options are the members of moe_engine_options (moe/moe.h): n_threads,
    context, host_memory="6G", expert_cache, speculate="off", kv_cache="q8_0", ... Speculation is
    off unless asked for. policy: a cache policy by its name, the path of a plug-in, a Policy, or a
    function that scores a Use. Calls from several threads wait for each other."""

    def __init__(self, path: Union[str, "os.PathLike[str]"], *,
                 log: Optional[Callable[[str], None]] = None,
                 policy: Union[Text, Policy, Callable[[Use], Any]] = None,
                 **options: Unpack[EngineOptions]) -> None:
        self._lock = threading.RLock()  # of the calls that moe.h calls "in turn"
        self._idle = threading.Condition()  # of _readers, and of the handle's end
        self._readers = 0
        self._inside = inside = threading.local()  # .log: this thread runs the log function
        self._handle = c_void_p()
        self._sessions = 0
        if log is not None and not callable(log):
            raise TypeError(f"Engine, log must be a function or None, not {log!r}")
        self._options, self._policy = _options(path, options, policy, "Engine")

        def call(line: bytes, _: Any) -> None:
            inside.log = True
            try:
                if log is not None:
                    log(line.decode("utf-8", "replace"))
            finally:
                inside.log = False

        self._log = _LOG(call)
        self._options.log = ctypes.cast(self._log, c_void_p)
        try:
            lib.engine_open(byref(self._handle), byref(self._options))
        finally:
            self._raise()

    def _raise(self) -> None:
        """Raises what a policy in Python raised."""
        if self._policy is not None:
            self._policy.raise_()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and self._sessions == 0:
            self.close()

    def close(self) -> None:
        """Closes the engine. Its sessions must be closed before."""
        with self._turn():
            if self._sessions > 0:
                raise Error(layout.MOE_ERR_ARGUMENT,
                            f"{self._sessions} sessions of this engine are open: close them first")
            with self._idle:
                self._idle.wait_for(lambda: self._readers == 0)
                lib.engine_close(byref(self._handle))

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One call at a time. A step may wait for the log function, which must not wait for it."""
        if getattr(self._inside, "log", False):
            raise Error(layout.MOE_ERR_ARGUMENT, "the log function must not call the engine or its "
                        "sessions: keep the line, and call them once log has returned")
        with self._lock:
            yield

    @contextmanager
    def _reading(self) -> Iterator[c_void_p]:
        """Beside all others; close() waits for it."""
        with self._idle:
            handle = self._open()
            self._readers += 1
        try:
            yield handle
        finally:
            with self._idle:
                self._readers -= 1
                self._idle.notify_all()

    def _open(self) -> c_void_p:
        if not self._handle:
            raise Error(layout.MOE_ERR_ARGUMENT, "the engine is closed")
        return self._handle

    @property
    def info(self) -> Dict[str, Any]:
        """The members of moe_engine_info: model_name, family, context, n_layer, ..."""
        result = layout.moe_engine_info(struct_size=sizeof(layout.moe_engine_info))
        with self._reading() as handle:
            lib.engine_get_info(handle, byref(result))
            return as_dict(result)

    def stats(self) -> Dict[str, Any]:
        """Counters since the engine was opened: the members of moe_engine_stats."""
        result = layout.moe_engine_stats(struct_size=sizeof(layout.moe_engine_stats))
        with self._turn():
            lib.engine_get_stats(self._open(), byref(result))
        return as_dict(result)

    def tokenize(self, text: str, *, special: bool = True, markup: bool = False) -> List[int]:
        """The ids of a text. special: BOS where the model asks for it. markup: text such as
        ``<|im_end|>`` becomes its control token."""
        tokens, n = POINTER(c_int32)(), c_size_t()
        data = values.text(text, "tokenize, text").encode()
        flags = (layout.MOE_TOKENIZE_ADD_SPECIAL * values.truth(special, "tokenize, special") |
                 layout.MOE_TOKENIZE_PARSE_SPECIAL * values.truth(markup, "tokenize, markup"))
        with self._reading() as handle:
            lib.tokenize(handle, data, len(data), flags, byref(tokens), byref(n))
        result = tokens[:n.value]
        lib.free(tokens)
        return result

    def piece(self, token: int, *, markup: bool = False) -> bytes:
        """The bytes of one token."""
        size = c_size_t()
        with self._reading() as handle:
            data = lib.token_piece(handle, values.token(token, "piece, token"),
                                   values.truth(markup, "piece, markup"), byref(size))
            return ctypes.string_at(data, size.value) if data else b""

    def detokenize(self, tokens: Iterable[int], *, markup: bool = False) -> str:
        return b"".join(self.piece(t, markup=markup) for t in tokens).decode("utf-8", "replace")

    def is_end(self, token: int) -> bool:
        """Whether the token ends a text."""
        with self._reading() as handle:
            return lib.token_is_end(handle, values.token(token, "is_end, token"))

    def render(self, messages: Sequence[Dict[str, Any]], *, tools: Optional[Sequence[Any]] = None,
               template: Optional[str] = None, arguments: Optional[Dict[str, Any]] = None,
               thinking: Optional[bool] = None) -> List[int]:
        """The tokens of a conversation by the model's chat template."""
        options = layout.moe_chat_options()
        lib.chat_options_init_sized(byref(options), sizeof(options))
        options.messages = json.dumps(list(messages)).encode()
        options.tools = None if tools is None else json.dumps(list(tools)).encode()
        options.template_name = None if template is None else values.path(template,
                                                                          "render, template")
        options.template_arguments = None if arguments is None else json.dumps(arguments).encode()
        options.thinking = layout.MOE_SWITCH_AUTO if thinking is None else \
            layout.MOE_SWITCH_ON if values.truth(thinking, "render, thinking") else \
            layout.MOE_SWITCH_OFF
        prompt, n = c_void_p(), c_size_t()
        with self._reading() as handle:
            lib.chat_render(byref(prompt), handle, byref(options))
        tokens = lib.chat_prompt_tokens(prompt, byref(n))[:n.value]
        lib.chat_prompt_close(byref(prompt))
        return tokens

    def embed(self, texts: Sequence[Union[str, Iterable[int]]], *, pooling: str = "mean",
              normalize: bool = True) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """float32 [len(texts)][n_embd]: the mean of each text's hidden states, or with
        pooling="last" that of its last token; normalize: of length 1. A text may be a str or
        tokens. The bits do not depend on the other texts, nor on memory or threads."""
        if isinstance(texts, (str, bytes)):
            raise TypeError(f"embed, texts must be a sequence of texts, not {texts!r}")
        kind = values.word(pooling, "MOE_POOLING_", "embed, pooling")
        scales = values.truth(normalize, "embed, normalize")
        lists = [self.tokenize(t) if isinstance(t, str) else list(t) for t in texts]
        ids, _ = values.tokens([token for tokens in lists for token in tokens], "embed, texts")
        lengths = (c_size_t * len(lists))(*[len(tokens) for tokens in lists])
        result = np.empty((len(lists), self.info["n_embd"]), np.float32)
        with self._turn():
            lib.embed(self._open(), ids, lengths, len(lists), kind, scales,
                      result.ctypes.data_as(POINTER(c_float)))
        return result

    def session(self, *, evaluate_only: bool = False, **sampling: Unpack[Sampling]) -> "Session":
        """A timeline. sampling: the members of moe_sampling: temperature, top_k, seed, ..."""
        return Session(self, evaluate_only, sampling)

    def load(self, path: Union[str, "os.PathLike[str]"]) -> "Session":
        """A session that Session.save() wrote."""
        handle = c_void_p()
        with self._turn():
            lib.session_load(byref(handle), self._open(), values.path(path, "load, path"))
        return Session(self, handle=handle)

    def step(self, sessions: Sequence["Session"]) -> List[List[int]]:
        """One pass over the sessions, as one batch; the tokens that each wrote. Raises what a
        policy in Python raised in the step before."""
        sessions = list(sessions)
        for i, session in enumerate(sessions):
            if not isinstance(session, Session):
                raise TypeError(f"step, sessions[{i}] must be a Session, not {session!r}")
            if session._engine is not self:
                raise ValueError(f"step, sessions[{i}] is of another engine: step it there")
        with self._turn():
            self._raise()
            handles = (c_void_p * len(sessions))(*[s._open() for s in sessions])
            lib.step(self._open(), handles, len(sessions))
            return [s._take() for s in sessions]


class Session:
    """One timeline of tokens; made by Engine.session()."""

    def __init__(self, engine: Engine, evaluate_only: bool = False,
                 sampling: Optional[Sampling] = None, *,
                 handle: Optional[c_void_p] = None) -> None:
        self._engine = engine
        self._ending = threading.RLock()  # keeps cancel() and close() apart
        self._handle = handle or c_void_p()
        if handle is None:
            options = layout.moe_session_options()
            lib.session_options_init_sized(byref(options), sizeof(options))
            values.fill(options.sampling, sampling or {}, "session")
            options.evaluate_only = values.truth(evaluate_only, "session, evaluate_only")
            with engine._turn():
                lib.session_create(byref(self._handle), engine._open(), byref(options))
        with engine._turn():
            engine._sessions += 1

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def close(self) -> None:
        with self._engine._turn():
            with self._ending:
                if self._handle:
                    lib.session_close(byref(self._handle))
                    self._engine._sessions -= 1

    def _open(self) -> c_void_p:
        if not self._handle:
            raise Error(layout.MOE_ERR_ARGUMENT, "the session is closed")
        return self._handle

    def _take(self) -> List[int]:
        tokens = (c_int32 * 256)()
        return tokens[:lib.session_take(self._open(), tokens, 256)]

    def __len__(self) -> int:
        with self._engine._turn():
            return lib.session_n_tokens(self._open())

    @property
    def tokens(self) -> List[int]:
        """The whole timeline; a copy."""
        with self._engine._turn():
            n = len(self)
            return lib.session_tokens(self._open())[:n] if n else []

    @property
    def pending(self) -> int:
        """Tokens that the next steps evaluate."""
        with self._engine._turn():
            return lib.session_n_pending(self._open())

    @property
    def is_full(self) -> bool:
        with self._engine._turn():
            return lib.session_is_full(self._open())

    @property
    def logits(self) -> Optional["np.ndarray[Any, np.dtype[np.float32]]"]:
        """float32 [n_vocab] after the last token evaluated; a copy. None: there are none."""
        with self._engine._turn():
            data = lib.session_logits(self._open())
            n = self._engine.info["n_vocab"]
            return np.ctypeslib.as_array(data, (n,)).copy() if data else None

    def feed(self, prompt: Union[str, Iterable[int]]) -> None:
        """Appends a text, or tokens. Nothing is computed yet. A text at the timeline's beginning
        gets what the model begins with (BOS)."""
        tokens = self._engine.tokenize(prompt, special=len(self) == 0) \
            if isinstance(prompt, str) else prompt
        with self._engine._turn():
            lib.session_feed(self._open(), *values.tokens(tokens, "feed, prompt"))

    def follow(self, tokens: Iterable[int]) -> int:
        """Makes these the timeline; what it has in common with the old one stays evaluated.
        Returns how many tokens that are."""
        kept = c_size_t()
        ids, n = values.tokens(tokens, "follow, tokens")
        with self._engine._turn():
            lib.session_follow(self._open(), ids, n, byref(kept))
        return kept.value

    def truncate(self, n: int) -> None:
        """Cuts the timeline to its first n tokens."""
        with self._engine._turn():
            lib.session_truncate(self._open(), values.count(n, "truncate, n"))

    def fork(self) -> "Session":
        """A second session with the same past, whose memory they share."""
        handle = c_void_p()
        with self._engine._turn():
            lib.session_fork(byref(handle), self._open())
        return Session(self._engine, handle=handle)

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        with self._engine._turn():
            lib.session_save(self._open(), values.path(path, "save, path"))

    def cancel(self) -> None:
        """Ends the step that is running, from any thread; it raises Cancelled."""
        with self._ending:
            lib.session_cancel(self._open())

    def hold(self, *, grammar: Optional[str] = None, schema: Optional[Any] = None) -> None:
        """Holds what comes from now on to a grammar in GBNF or to a JSON schema; neither: to
        nothing. Call it after the prompt was fed: what is fed later counts as text."""
        text = None if grammar is None else values.text(grammar, "hold, grammar").encode()
        if grammar is not None and schema is not None:
            raise ValueError("hold takes a grammar or a schema, not both")
        if schema is not None:
            made, given = c_void_p(), json.dumps(schema).encode()
            lib.json_schema_grammar(byref(made), given, len(given))
            text = ctypes.string_at(made)
            lib.free(made)
        handle = c_void_p()
        if text is not None:
            lib.grammar_create(byref(handle), text, len(text))
        try:
            with self._engine._turn():
                lib.session_set_grammar(self._open(), handle)
        finally:
            lib.grammar_close(byref(handle))

    def generate(self, max_tokens: Optional[int] = None) -> Iterator[Token]:
        """Writes tokens until the text ends, max_tokens are written or the context is full. The
        timeline then has no more than what was given out."""
        _most(max_tokens)
        text = c_void_p()
        size = c_size_t()
        with self._engine._reading() as handle:
            lib.text_create(byref(text), handle)
        try:
            n = 0
            while max_tokens is None or n < max_tokens:
                taken = self._engine.step([self])[0]
                if not taken and self.pending == 0 and self.is_full:
                    return
                for i, token in enumerate(taken):
                    ends = self._engine.is_end(token)
                    n += not ends
                    if ends or n == max_tokens:
                        self.truncate(len(self) - (len(taken) - i - 1))
                    if ends:
                        return
                    piece = lib.text_push(text, token, byref(size))
                    yield Token(token, ctypes.string_at(piece, size.value).decode())
                    if n == max_tokens:
                        return
        finally:
            lib.text_close(byref(text))

    def stream(self, prompt: Union[str, Iterable[int]], max_tokens: Optional[int] = None) -> Iterator[str]:
        """Feeds the prompt and writes on: pieces of text, in whole characters."""
        _most(max_tokens)
        self.feed(prompt)
        for token in self.generate(max_tokens):
            if token.text:
                yield token.text

    def complete(self, prompt: Union[str, Iterable[int]], max_tokens: Optional[int] = None) -> str:
        """The whole text."""
        return "".join(self.stream(prompt, max_tokens))
