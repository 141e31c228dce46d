"""Finds the culprit: the part of torch's compiler without which a symptom goes away, using only torch's own switches and hooks.

On `aot_eager_decomp_partition` it is a decomposition; on `inductor` a graph pass, the lowering of an operator, vector code, or
fusion. If the compiler raises, it is the function that raised.

Counterpart: torch/_inductor/compiler_bisector.py
Differs: checks one symptom of a small program with the judge, not a user's test; tries lowerings and decompositions one by one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
import torch._inductor.compile_fx
import torch._inductor.config
from torch._inductor import graph as inductor_graph
from torch._inductor.lowering import fallback_handler
from torch.fx.passes.graph_transform_observer import GraphTransformObserver
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.judge.single import judge
from fuzz.program.render import to_program
from fuzz.program.structure import FuzzProgram
from oracle.case import CaseResult
from oracle.observe import observe
from oracle.program.build import instantiate
from oracle.subjects.base import Subject
from oracle.symptom import Symptom, matches, symptom_of
from oracle.verdict import Status

_CPU_BUDGET_S = 40.0
_Name = TypeVar("_Name")
# Passes that the next stage depends on, which cannot be switched off.
_NEEDED_PASSES = re.compile(
    r"decompose|stable_sort|topological|assert|cuda|comm|ddp|fsdp|custom|profiler|overlap|bucket"
)
_WHOLE_CODE = (
    ("vector code", {"cpp.simdlen": 1}),
    ("fusion", {"max_fusion_size": 1, "epilogue_fusion": False, "prologue_fusion": False}),
    ("buffers used again in place", {"inplace_buffers": False, "allow_buffer_reuse": False}),
    ("constant folding", {"joint_graph_constant_folding": False}),
    ("layout optimization", {"layout_optimization": False}),
)  # fmt: skip


def find_culprit(
    program: FuzzProgram, subject: Subject, symptom: Symptom, *, cpu_budget_s: float = _CPU_BUDGET_S
) -> str:
    """The culprit in a few words, or "" if no change makes the symptom go away. Call it in a child: it patches the compiler.

    The subject is the first wrong rung. The budget is CPU time, including compilers that are started, so that a busy machine
    gives the same answer.
    """
    asked = _Asked(program, subject, symptom, _cpu_seconds() + cpu_budget_s)
    if symptom.status == Status.FAIL_TO_RUN.value:
        return _raised_in(asked.result().traceback)
    backend = subject.spec.options.get("backend")
    with contextlib.suppress(_OutOfTimeError):
        if backend == "aot_eager_decomp_partition":
            return _decomposition(asked)
        if backend == "inductor":
            return _part_of_inductor(asked)
    return ""


class _OutOfTimeError(Exception):
    """The budget is used up."""


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class _Asked:
    """Judges one program on one subject again, with parts of the compiler changed."""

    def __init__(self, program: FuzzProgram, subject: Subject, symptom: Symptom, deadline: float) -> None:
        self.program = to_program(program, name="culprit")
        self._subject, self._symptom, self._deadline = subject, symptom, deadline

    def result(self) -> CaseResult:
        if _cpu_seconds() > self._deadline:
            raise _OutOfTimeError
        return judge(self.program, self._subject)

    def is_cured(self, change: contextlib.AbstractContextManager[Any]) -> bool:
        """Whether the program is right with the change; another failure is no cure."""
        with change:
            verdict = self.result().verdict
        return not verdict.status.is_finding and not matches(self._symptom, symptom_of(verdict))

    def cures(self, changes: Mapping[_Name, Callable[[], contextlib.AbstractContextManager[Any]]]) -> Iterator[_Name]:
        """The single changes that cure. None is tried if all of them together do not."""
        if len(changes) > 1:
            with contextlib.ExitStack() as all_changes:
                for change in changes.values():
                    all_changes.enter_context(change())
                verdict = self.result().verdict
            if matches(self._symptom, symptom_of(verdict)):
                return
        for name, change in changes.items():
            if self.is_cured(change()):
                yield name


# ---------------------------------------------------------------------------------------------------- decompositions


def _decomposition(asked: _Asked) -> str:
    called: dict[Any, None] = {}
    observe(instantiate(asked.program), around_call=lambda: _Recorder(called))
    table = torch._inductor.compile_fx.select_decomp_table()
    rules = {op: functools.partial(_without_decomposition, op) for op in called if op in table}
    overload = next(asked.cures(rules), None)
    return f"decomposition: {_packet(overload)}" if overload is not None else ""


class _Recorder(TorchDispatchMode):
    """A dispatch mode that records the overloads that are called, including backward."""

    supports_higher_order_operators = True

    def __init__(self, called: dict[Any, None]) -> None:
        super().__init__()
        self._called = called

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._called[func] = None
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _without_decomposition(overload: Any) -> Iterator[None]:
    module = torch._inductor.compile_fx
    original = module.select_decomp_table
    table = {op: rule for op, rule in original().items() if op != overload}
    with _replaced(module, "select_decomp_table", lambda: table):
        yield


# ----------------------------------------------------------------------------------------------------------- inductor


def _part_of_inductor(asked: _Asked) -> str:
    passes: dict[str, None] = {}
    lowered: dict[Any, None] = {}
    with torch._inductor.config.patch(force_disable_caches=True), _recording_passes(passes), _lowering(lowered, None):
        asked.result()
        optional = [name for name in passes if name and not _NEEDED_PASSES.search(name)]
        if optional and asked.is_cured(_config(disabled_passes=",".join(optional))):
            for name in optional:
                if asked.is_cured(_config(disabled_passes=name)):
                    return f"pass: {name}"
            return "pass: several"
        whole = next(asked.cures({name: functools.partial(_config, **values) for name, values in _WHOLE_CODE}), "")
        overloads = [op for op in lowered if isinstance(op, torch._ops.OpOverload)]
        cures = [_packet(op) for op in asked.cures({op: functools.partial(_lowering, {}, op) for op in overloads})]
        if len(cures) == 1 or (
            cures and whole != "fusion"
        ):  # if several cure, the last: falling back only prevents fusion with the earlier ones
            return f"lowering: {cures[-1]}" + (f", {whole}" if whole == "vector code" else "")
        return f"codegen: {whole}" if whole else ""


def _config(**values: Any) -> contextlib.AbstractContextManager[Any]:
    """A context with these values of Inductor's configuration; options that this torch lacks are ignored."""
    known = set(torch._inductor.list_options())
    return torch._inductor.config.patch({name: value for name, value in values.items() if name in known})


@contextlib.contextmanager
def _recording_passes(names: dict[str, None]) -> Iterator[None]:
    original = GraphTransformObserver.__init__

    @functools.wraps(original)
    def init(self: Any, gm: Any, passname: str, *args: Any, **kwargs: Any) -> None:
        names[passname] = None
        original(self, gm, passname, *args, **kwargs)

    with _replaced(GraphTransformObserver, "__init__", init):
        yield


@contextlib.contextmanager
def _lowering(called: dict[Any, None], as_fallback: Any) -> Iterator[None]:
    """A context that records which overloads are lowered; one of them falls back to eager's kernel."""
    original = inductor_graph.GraphLowering.call_function

    def call_function(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
        called[target] = None
        if target is as_fallback:
            return fallback_handler(target, add_to_fallback_set=False)(*args, **kwargs)
        return original(self, target, args, kwargs)

    with _replaced(inductor_graph.GraphLowering, "call_function", call_function):
        yield


# -------------------------------------------------------------------------------------------------------------- raising

_FRAME = re.compile(r'File "[^"]*?/(torch/[\w/]+\.py)", line \d+, in ([\w<>]+)')
_CARRIES = re.compile(
    r"convert_frame|eval_frame|/exc\.py|output_graph|symbolic_convert|compile_fx|aot_autograd|_utils_internal"
)


def _raised_in(traceback: str) -> str:
    """The innermost function of torch in a traceback, without functions that only wrap errors."""
    frames = [(path, name) for path, name in _FRAME.findall(traceback)]
    telling = [frame for frame in frames if not _CARRIES.search(frame[0])] or frames
    return f"raised in: {telling[-1][0]} {telling[-1][1]}" if telling else ""


# ---------------------------------------------------------------------------------------------------------------- means


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Callable[..., Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _packet(overload: Any) -> str:
    return str(overload).rpartition(".")[0] if str(overload).count(".") > 1 else str(overload)
