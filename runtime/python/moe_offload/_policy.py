# SPDX-License-Identifier: MIT
"""Cache policies in Python, for experiments. Each use of an expert calls into the interpreter, which
takes microseconds; a plug-in in C (examples/policy_plugin.c) takes nanoseconds."""
import ctypes
import operator
from ctypes import POINTER, c_bool, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from ._library import layout

NO_KEY = 2**32 - 1  # MOE_KEY_NONE
_NEVER = 2**64 - 1
_EVICTABLE = ctypes.CFUNCTYPE(c_bool, c_void_p, c_uint32)
_ACCESS = POINTER(layout.moe_policy_access)
_NEEDS = {"hotness": layout.MOE_POLICY_NEEDS_HOTNESS, "gates": layout.MOE_POLICY_NEEDS_GATES,
          "future": layout.MOE_POLICY_NEEDS_FUTURE}


class Access(NamedTuple):
    """One use of an expert by a pass (moe_policy_access)."""
    number: int  # of the pass, from 0
    layer: int
    n_rows: int  # of the pass that chose it; 0 for a prefetch
    gate: float  # the sum of the weights those rows mix it with; 0 when not known
    next_use: Optional[int]  # None: never, or not known


class Setting(NamedTuple):
    """The cache and the model that a policy serves. A key is layer * n_expert + expert."""
    n_layer: int
    n_expert: int
    n_expert_used: int
    n_slots: int
    n_keys: int
    hotness: Optional[List[float]]  # [n_keys] share of a layer's calibrated activations
    seed: int


class Forecast(NamedTuple):
    """A use of an expert that a draft expects."""
    key: int
    chance: float
    number: int  # of the pass


class Policy:
    """A cache policy. A subclass keeps what it wants to know, and victim() says which expert goes.
    It must be deterministic, and no method may call the engine. An object serves one pool of slots at
    a time. It is an error to give it several: a simulation per layer or with host_slots has them, and
    so has an engine whose layers differ in size or that has a device. A function serves any number."""

    name = "python"
    needs: Sequence[str] = ()  # of "hotness", "gates", "future"; a cache without them refuses it

    def begin(self, setting: Setting) -> None:
        """A cache begins, empty."""

    def hit(self, key: int, access: Access) -> None:
        """An expert in memory was used."""

    def insert(self, key: int, access: Access) -> None:
        """An expert came into memory."""

    def evict(self, key: int) -> None:
        """An expert left memory."""

    def victim(self, for_key: int, evictable: Callable[[int], bool]) -> Optional[int]:
        """The key to evict: of those in memory for which evictable() is true; None: there is none."""
        raise NotImplementedError("a policy must have the method victim")

    def end_pass(self, number: int) -> None:
        """A pass is over."""

    def lookahead(self, first: int, uses: Iterator[Forecast]) -> None:
        """What the passes from `first` on are expected to use. Called if a subclass has it."""


class Use(NamedTuple):
    """What is known of an expert in memory, for a function that scores it."""
    key: int
    layer: int
    times: int  # how many passes used it since it came
    last: int  # the pass that used it last
    order: int  # of its last use among all uses of experts
    gate: float  # of its last use
    next_use: Optional[int]


class _Scored(Policy):
    """Evicts the expert with the smallest score."""

    def __init__(self, score: Callable[[Use], Any]) -> None:
        self.score = score
        self.uses: Dict[int, Use] = {}

    def begin(self, setting: Setting) -> None:
        self.uses.clear()
        self.n_uses = 0

    def insert(self, key: int, access: Access) -> None:
        old = self.uses.get(key)
        self.n_uses += 1
        self.uses[key] = Use(key, access.layer, 1 + (old.times if old else 0), access.number,
                             self.n_uses, access.gate, access.next_use)

    hit = insert

    def evict(self, key: int) -> None:
        self.uses.pop(key, None)

    def victim(self, for_key: int, evictable: Callable[[int], bool]) -> Optional[int]:
        for use in sorted(self.uses.values(), key=self.score):
            if evictable(use.key):
                return use.key
        return None


class Table:
    """The moe_policy of a policy in Python. Keeps the first exception of a method, for raise_():
    none can pass through C."""

    def __init__(self, given: Union[Policy, Callable[[Use], Any]]) -> None:
        self.given = given
        self.states: Dict[int, Policy] = {}  # of pools of slots, by what C has as their state
        self.n_states = 0
        policy = given if isinstance(given, Policy) else _Scored(given)
        self.raised: Optional[BaseException] = None
        unknown = [need for need in policy.needs if need not in _NEEDS]
        if unknown:
            raise ValueError(f"a policy's needs must be of {', '.join(_NEEDS)}, not {unknown[0]!r}")
        self._name = str(policy.name).encode()
        struct = layout.moe_policy(abi=layout.MOE_POLICY_ABI, name=self._name,
                                   needs=sum(_NEEDS[need] for need in policy.needs))
        looks = type(policy).lookahead is not Policy.lookahead
        calls: Dict[str, Tuple[Any, List[Any], Callable[..., Any], Any]] = {
            "create": (c_void_p, [POINTER(layout.moe_policy_config)], self._create, None),
            "hit": (None, [c_void_p, c_uint32, _ACCESS], self._hit, None),
            "insert": (None, [c_void_p, c_uint32, _ACCESS], self._insert, None),
            "evict": (None, [c_void_p, c_uint32], lambda at, key: self.states[at].evict(key), None),
            "victim": (c_uint32, [c_void_p, c_uint32, _EVICTABLE, c_void_p], self._victim, NO_KEY),
            "end_pass": (None, [c_void_p, c_uint64], lambda at, number: self.states[at].end_pass(number), None),
        }
        if looks:
            calls["lookahead"] = (None, [c_void_p, c_uint64, POINTER(layout.moe_policy_forecast),
                                         c_size_t], self._lookahead, None)
        self._kept: List[Any] = []  # C holds their addresses
        for name, (result, arguments, function, otherwise) in calls.items():
            call = ctypes.CFUNCTYPE(result, *arguments)(self._guarded(function, otherwise))
            self._kept.append(call)
            setattr(struct, name, ctypes.cast(call, c_void_p))
        end = ctypes.CFUNCTYPE(None, c_void_p)(self._destroy)
        self._kept.append(end)
        struct.destroy = ctypes.cast(end, c_void_p)
        self.struct = struct
        self.pointer = ctypes.pointer(struct)

    def raise_(self) -> None:
        """Raises what a method raised since the last call."""
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised

    def _guarded(self, function: Callable[..., Any], otherwise: Any) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self.raised is None:
                try:
                    return function(*arguments)
                except BaseException as error:  # raised later, by the call that is under way
                    self.raised = error
            return otherwise
        return call

    def _create(self, pointer: Any) -> int:
        config = pointer.contents
        if isinstance(self.given, Policy) and self.states:
            raise ValueError("a Policy serves one pool of slots, and here are several: give a function "
                             "that scores a Use, or a plug-in")
        policy = self.given if isinstance(self.given, Policy) else _Scored(self.given)
        hotness = config.hotness[:config.n_keys] if config.hotness else None
        policy.begin(Setting(config.n_layer, config.n_expert, config.n_expert_used, config.n_slots,
                             config.n_keys, hotness, config.seed))
        self.n_states += 1
        self.states[self.n_states] = policy
        return self.n_states

    def _destroy(self, at: int) -> None:
        del self.states[at]

    @staticmethod
    def _access(pointer: Any) -> Access:
        access = pointer.contents
        following = access.next_use
        return Access(getattr(access, "pass"), access.layer, access.n_rows, access.gate,
                      None if following in (0, _NEVER) else following)

    def _hit(self, at: int, key: int, pointer: Any) -> None:
        self.states[at].hit(key, self._access(pointer))

    def _insert(self, at: int, key: int, pointer: Any) -> None:
        self.states[at].insert(key, self._access(pointer))

    def _victim(self, at: int, for_key: int, evictable: Any, context: Any) -> int:
        key = self.states[at].victim(for_key, lambda key: bool(evictable(context, key)))
        return NO_KEY if key is None else operator.index(key)

    def _lookahead(self, at: int, first: int, uses: Any, n: int) -> None:
        self.states[at].lookahead(first, (Forecast(u.key, u.chance, getattr(u, "pass")) for u in uses[:n]))


def give(options: Any, policy: Any, what: str) -> Optional[Table]:
    """Sets the options' policy. Returns the table of one in Python, which must be kept."""
    from . import _values as values
    if not isinstance(policy, Policy) and not callable(policy):
        options.policy = None if policy is None else values.path(policy, f"{what}, policy")
        return None
    table = Table(policy)
    options.own_policy = table.pointer
    return table
