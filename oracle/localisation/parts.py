"""The parts of torch's compilers that can be left out, each by a context manager: calls, passes, lowerings, decompositions ...

Only torch's own switches and hooks are used. A part is written "pass: reinplace_inplaceable_ops" or "lowering: aten.argmin".
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._inductor.compile_fx
import torch._inductor.config
from torch._functorch import config as functorch_config
from torch._inductor import graph as inductor_graph
from torch._inductor.lowering import fallback_handler
from torch.fx.passes.graph_transform_observer import GraphTransformObserver
from torch.utils._python_dispatch import TorchDispatchMode

from oracle.errors import UsageError
from oracle.localisation.aot_parts import (
    ALIASES,
    ANALYSIS,
    OBJECTS,
    NotSeen,
    analysis,
    functionalization,
    python_kernels,
)
from oracle.localisation.capture_parts import (
    DYNAMIC,
    MERGED,
    RECOMPUTATION,
    REPLAY,
    REUSE,
    TANGENTS,
    calls,
    replaced,
    without_capture,
)
from oracle.localisation.export_parts import CONSTANTS, EXPORT, INPUTS, NOT_STRICT, STRICT, SeenInExport, exporting

FRONT_KINDS = ("call", "capture", "analysis", "functionalization", "python kernel")  # of Dynamo and AOT autograd
BACK_KINDS = ("pass", "lowering", "decomposition", "codegen")  # of Inductor and its decompositions
EXPORT_KINDS = ("export", "overload")  # of torch.export
KINDS = (*FRONT_KINDS, *BACK_KINDS, *EXPORT_KINDS)
OPERATOR_KINDS = ("functionalization", "python kernel", "lowering", "decomposition", "overload")  # named by an overload
CAPTURE = (MERGED, REPLAY, TANGENTS, RECOMPUTATION, DYNAMIC, REUSE)  # later ones are coarser
# Passes that the next stage depends on, which cannot be switched off.
_NEEDED_PASSES = re.compile(
    r"decompose|stable_sort|topological|assert|cuda|comm|ddp|fsdp|custom|profiler|overlap|bucket"
)
# Steps of code generation that concern the whole program, with the options of Inductor that switch them off.
CODEGEN: dict[str, dict[str, Any]] = {
    "half precision kept in float32": {"emulate_precision_casts": True},
    "vector code": {"cpp.simdlen": 1},
    "fusion": {"max_fusion_size": 1, "epilogue_fusion": False, "prologue_fusion": False},
    "buffers used again in place": {"inplace_buffers": False, "allow_buffer_reuse": False},
    "constant folding": {"joint_graph_constant_folding": False},
    "layout optimization": {"layout_optimization": False},
    "loop order": {"pick_loop_orders": False, "loop_ordering_after_fusion": False, "loop_index_inversion_in_fusion": False},
    "threads": {"cpp.threads": 1},
    "split reductions": {"split_reductions": False},
    "index propagation": {"constant_and_index_propagation": False},
    "weights packed in advance": {"cpp.weight_prepack": False, "freezing": False},
    "random numbers of its own": {"fallback_random": True},
    "autotuning": {"max_autotune": False, "max_autotune_gemm": False, "coordinate_descent_tuning": False},
    "C++ wrapper": {"cpp_wrapper": False},
    "cache of compiled graphs": {"force_disable_caches": True},
}  # fmt: skip
# Those of them that concern the code of one operator: a culprit names them beside its lowering.
WAYS_OF_CODE = ("half precision kept in float32", "vector code")

# Settings of torch that switch off a step of the compiler, for users who have only torch.
_SETTINGS = {
    MERGED: "torch._functorch.config.cse = False",
    REPLAY: "torch._functorch.config.view_replay_for_aliased_outputs = False",
    TANGENTS: "tangents that are not copied to the strides of the results",
    RECOMPUTATION: "default_partition, which recomputes nothing in backward",
    DYNAMIC: "static sizes and numbers",
    REUSE: "torch.compiler.reset() before each call",
    ALIASES: "results that share memory as in eager",
    OBJECTS: "results that are one object as in eager",
    INPUTS: "example inputs that share no memory",
    CONSTANTS: "the module's state in place of constants",
    STRICT: "strict=False",
    NOT_STRICT: "strict=True",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a compiler.

    `name` is that of a call, a pass, an operator ("aten.argmin.default"), one of CAPTURE, ANALYSIS or EXPORT, or a key of
    CODEGEN.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}: {_packet(self.name) if self.kind in OPERATOR_KINDS else self.name}"


CACHE = Part(kind="codegen", name="cache of compiled graphs")


def parse_part(text: str) -> Part:
    """The part that a text such as "lowering: aten.argmin" names.

    Raises UsageError for another form, and for a part of capture or code generation that does not exist.
    """
    kind, colon, name = (piece.strip() for piece in text.partition(":"))
    names = {"codegen": tuple(CODEGEN), "capture": CAPTURE, "analysis": ANALYSIS, "export": EXPORT}
    if kind not in KINDS or not colon or not name or (kind in names and name not in names[kind]):
        known = "; ".join(f"of {kind} the names are {', '.join(those)}" for kind, those in names.items())
        raise UsageError(
            seen=f"part {text!r}",
            expected=f"KIND:NAME, where KIND is one of {', '.join(KINDS)}; {known}",
            do="copy a part from the table that `torch-oracle localise` prints",
        )
    return Part(kind=kind, name=name)


def in_torch(text: str) -> str:
    """How someone who has only torch leaves out a part such as "lowering: aten.argmin"; the text itself if it names no part."""
    try:
        part = parse_part(text)
    except UsageError:
        return text
    name = str(part).partition(": ")[2]
    match part.kind:
        case "call":
            return f"graph break at {name}"
        case "lowering":
            return f"{name} falls back to eager's kernel"
        case "decomposition":
            return f"{name} is not decomposed"
        case "pass":
            return f'torch._inductor.config.disabled_passes = "{name}"'
        case "codegen":
            return ", ".join(f"torch._inductor.config.{key} = {value!r}" for key, value in CODEGEN[part.name].items())
        case "functionalization":
            return f"{name} on a copy, which copy_ brings back, or as_strided for a view"
        case "python kernel":
            return f"{name} is traced by its C++ kernel"
        case "overload":
            return f"the function of Python's torch in place of {name}"
        case _:
            return _SETTINGS[part.name]


@contextlib.contextmanager
def without(parts: Sequence[Part]) -> Iterator[Callable[[], list[Part]]]:
    """A context without any of these parts, and without caches of compiled graphs.

    Gives a function that returns the parts that did not take part in what was compiled in the context, such as a name that is
    written wrong.
    """
    by_kind = {kind: frozenset(part.name for part in parts if part.kind == kind) for kind in KINDS}
    passes: dict[str, None] = {}
    lowered: dict[str, None] = {}
    called: dict[str, None] = {}
    functionalized: dict[str, None] = {}
    traced: dict[str, None] = {}
    exported = SeenInExport()
    decomposed = [*map(str, torch._inductor.compile_fx.select_decomp_table())] if by_kind["decomposition"] else []
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without_caches())
        if by_kind["pass"]:
            stack.enter_context(config(disabled_passes=",".join(sorted(by_kind["pass"]))))
            stack.enter_context(_recording_passes(passes))
        if by_kind["lowering"]:
            stack.enter_context(lowering(lowered, by_kind["lowering"]))
        if by_kind["decomposition"]:
            stack.enter_context(_without_decompositions(by_kind["decomposition"]))
        for name in by_kind["codegen"]:
            stack.enter_context(config(**CODEGEN[name]))
        if by_kind["capture"]:
            stack.enter_context(without_capture(by_kind["capture"]))
        if by_kind["call"]:
            stack.enter_context(calls(called, by_kind["call"]))
        if by_kind["analysis"]:
            stack.enter_context(analysis(NotSeen(), corrected=by_kind["analysis"]))
        if by_kind["functionalization"]:
            is_named = functools.partial(_is_named, names=by_kind["functionalization"])
            stack.enter_context(functionalization(functionalized, is_named))
        if by_kind["python kernel"]:
            stack.enter_context(python_kernels(traced, functools.partial(_is_named, names=by_kind["python kernel"])))
        if by_kind["export"] or by_kind["overload"]:
            is_overload = functools.partial(_is_named, names=by_kind["overload"])
            stack.enter_context(exporting(exported, by_kind["export"], is_overload))
        names: dict[str, Iterable[str]] = {
            "pass": passes,
            "lowering": lowered,
            "call": called,
            "functionalization": functionalized,
            "python kernel": traced,
            "overload": exported.operators,
            "decomposition": decomposed,
        }

        def absent() -> list[Part]:
            return [
                part
                for part in parts
                if part.kind in names and not any(part.name in (name, _packet(name)) for name in names[part.kind])
            ]

        yield absent


# ---------------------------------------------------------------------------------------------- parts that take part


@dataclass(frozen=True, slots=True)
class Seen:
    """The parts that a compilation used, in order."""

    passes: dict[str, None]
    lowered: dict[str, None]

    def optional_passes(self) -> list[Part]:
        """The passes that can be left out."""
        return [Part(kind="pass", name=name) for name in self.passes if name and not _NEEDED_PASSES.search(name)]

    def lowerings(self) -> list[Part]:
        """The operators that were lowered."""
        return [Part(kind="lowering", name=name) for name in self.lowered]


@dataclass(frozen=True, slots=True)
class SeenInFront:
    """The steps of Dynamo and AOT autograd, in order."""

    calls: dict[str, None]  # names of the calls that Dynamo captured
    functionalized: dict[str, None]  # overloads of writes and views that were functionalized
    python_kernels: dict[str, None] = field(default_factory=dict)  # overloads that were traced by a kernel in Python
    not_seen: NotSeen = field(default_factory=NotSeen)
    breaks: bool = False  # the program breaks the graph


@contextlib.contextmanager
def recording_front() -> Iterator[SeenInFront]:
    """A context that records what Dynamo and AOT autograd do."""
    seen = SeenInFront({}, {})
    with (
        _without_caches(),
        calls(seen.calls, frozenset()),
        functionalization(seen.functionalized, lambda func: False),
        python_kernels(seen.python_kernels, lambda overload: False),
        analysis(seen.not_seen),
    ):
        yield seen


@contextlib.contextmanager
def recording() -> Iterator[Seen]:
    """A context that records the parts of Inductor that are used, and keeps its caches from hiding them."""
    seen = Seen({}, {})
    with _without_caches(), _recording_passes(seen.passes), lowering(seen.lowered, frozenset()):
        yield seen


class CalledOperators(TorchDispatchMode):
    """A dispatch mode that records the overloads that are called, those of backward included."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.called: dict[Any, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called[func] = None
        return func(*args, **(kwargs or {}))

    def decomposed(self) -> list[Part]:
        """The decompositions of Inductor that apply to them."""
        table = torch._inductor.compile_fx.select_decomp_table()
        return [Part(kind="decomposition", name=str(op)) for op in self.called if op in table]


# ----------------------------------------------------------------------------------------------------------- switches


def config(**values: Any) -> AbstractContextManager[Any]:
    """A context with these values of Inductor's configuration; options that this torch lacks are ignored."""
    known = set(torch._inductor.list_options())
    return torch._inductor.config.patch({name: value for name, value in values.items() if name in known})


@contextlib.contextmanager
def _without_caches() -> Iterator[None]:
    """A block without the caches of compiled graphs, which may hold a graph compiled with another set of parts."""
    with config(force_disable_caches=True, fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        yield


@contextlib.contextmanager
def lowering(called: dict[str, None], as_fallback: frozenset[str]) -> Iterator[None]:
    """A context that records which overloads are lowered; those named in `as_fallback` fall back to eager's kernel."""
    original = inductor_graph.GraphLowering.call_function

    def call_function(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, torch._ops.OpOverload):
            called[str(target)] = None
            if _is_named(target, as_fallback):
                return fallback_handler(target, add_to_fallback_set=False)(*args, **kwargs)
        return original(self, target, args, kwargs)

    with replaced(inductor_graph.GraphLowering, "call_function", call_function):
        yield


@contextlib.contextmanager
def _recording_passes(names: dict[str, None]) -> Iterator[None]:
    original = GraphTransformObserver.__init__

    @functools.wraps(original)
    def init(self: Any, gm: Any, passname: str, *args: Any, **kwargs: Any) -> None:
        names[passname] = None
        original(self, gm, passname, *args, **kwargs)

    with replaced(GraphTransformObserver, "__init__", init):
        yield


@contextlib.contextmanager
def recording_decompositions() -> Iterator[dict[str, None]]:
    """A context that records the overloads whose decompositions are run, also by other decompositions, in order."""
    seen: dict[str, None] = {}
    module = torch._inductor.compile_fx
    original = module.select_decomp_table

    def recorded(op: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(rule)
        def run(*args: Any, **kwargs: Any) -> Any:
            seen[str(op)] = None
            return rule(*args, **kwargs)

        return run

    def select_decomp_table() -> Any:
        return {op: recorded(op, rule) for op, rule in original().items()}

    with _without_caches(), replaced(module, "select_decomp_table", select_decomp_table):
        yield seen


@contextlib.contextmanager
def _without_decompositions(names: frozenset[str]) -> Iterator[None]:
    module = torch._inductor.compile_fx
    original = module.select_decomp_table

    def select_decomp_table() -> Any:
        return {op: rule for op, rule in original().items() if not _is_named(op, names)}

    with replaced(module, "select_decomp_table", select_decomp_table):
        yield


def _is_named(overload: Any, names: frozenset[str]) -> bool:
    """Whether an overload is named, or all overloads of its operator are."""
    return bool(names) and (str(overload) in names or _packet(str(overload)) in names)


def _packet(overload: str) -> str:
    return overload.rpartition(".")[0] if overload.count(".") > 1 else overload
