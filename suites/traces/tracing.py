"""Subjects that trace a program once and keep the graph, so that the judge can check it, and it can run again at other sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.hygiene import differences, restore, snapshot
from oracle.program.clone import clone_tree
from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.spec import SubjectSpec
from oracle.subjects.traced import FlatProgram, unchanged_rng
from oracle.verdict import Status, Verdict

# Verdicts that say nothing about a subject, since eager fails or varies.
NO_MEASURE = (Status.EAGER_FAIL_TO_RUN, Status.EAGER_TWO_RUNS_DIFFER, Status.PASS_DUE_TO_SKIP)


class Tracer(Protocol):
    """The protocol of the subjects `make_fx` and `refimpl.make_fx`."""

    spec: SubjectSpec

    def trace(self, flat: FlatProgram, tensors: list[torch.Tensor]) -> Any:
        """A GraphModule of `flat(*tensors)`; any exception is a refusal."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traced:
    """A graph with the calling convention of its program."""

    module: torch.fx.GraphModule
    flat: FlatProgram

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.flat.unflatten_outputs(self.module(*self.flat.flatten_inputs(args, kwargs)))

    def guards(self) -> list[str]:
        """The printed guards of the shape environment; empty without one."""
        shape_env = getattr(self.module, "shape_env", None)
        return [] if shape_env is None else [str(guard.expr) for guard in shape_env.guards]

    def accepts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the recorded guards hold for other inputs, including sizes that were specialized."""
        shape_env = getattr(self.module, "shape_env")
        values = [node.meta["val"] for node in self.module.graph.nodes if node.op == "placeholder"]
        tensors = self.flat.flatten_inputs(args, kwargs)
        return bool(shape_env.evaluate_guards_for_args(values, tensors, ignore_static=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The tracer raised."""

    error: str  # "TypeName: message", one line


def trace(tracer: Tracer, target: Callable[..., Any], args: Any, kwargs: Any) -> Traced:
    """Trace on copies, and restore the random generators. Raises what the tracer raises."""
    flat = FlatProgram(target, clone_tree((args, kwargs)))
    with unchanged_rng():
        module = tracer.trace(flat, flat.tensors)
    assert isinstance(module, torch.fx.GraphModule), type(module)
    return Traced(module=module, flat=flat)


def trace_or_refusal(tracer: Tracer, target: Callable[..., Any], args: Any, kwargs: Any) -> Traced | Refused:
    """Like `trace`, with a refusal as a value. Restores process state that the tracer has changed."""
    before = snapshot()
    try:
        return trace(tracer, target, args, kwargs)
    except Exception as error:  # an exception of a tracer is a result to report
        return Refused(error=one_line(error))
    finally:
        if differences(before, snapshot()):
            restore(before)


class TraceOnce:
    """A subject for one program that traces when it is compiled, and keeps the result."""

    def __init__(self, tracer: Tracer) -> None:
        self.spec = tracer.spec
        self._tracer = tracer
        self.outcome: Traced | Refused | None = None

    def reset(self) -> None:
        self.outcome = None

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        try:
            self.outcome = trace(self._tracer, request.target, request.args, request.kwargs)
        except Exception as error:
            self.outcome = Refused(error=one_line(error))
            raise
        return self.outcome

    def counters(self) -> Counters:
        return Counters(graphs=int(isinstance(self.outcome, Traced)), graph_breaks=0, recompiles=0)


class AlreadyTraced:
    """A subject that runs a graph that was traced before, possibly on other inputs."""

    def __init__(self, spec: SubjectSpec, traced: Traced) -> None:
        self.spec = spec
        self._traced = traced

    def reset(self) -> None:
        """Nothing to reset, since the graph is given."""

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        return self._traced

    def counters(self) -> Counters:
        return Counters(graphs=1, graph_breaks=0, recompiles=0)


def judged(make: Callable[[], Any], subject: TraceOnce | AlreadyTraced) -> Verdict:
    """The judge's verdict on a subject; `make` makes instances of the program."""
    return judge_subject(eager=EagerState(make=make), subject=subject, options=CaseOptions()).verdict


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def malformed(module: torch.fx.GraphModule) -> str:
    """The error of fx's own checks of a graph, or ""."""
    try:
        for child in module.modules():
            if isinstance(child, torch.fx.GraphModule):
                child.graph.lint()
    except RuntimeError as error:
        return one_line(error)
    return ""
