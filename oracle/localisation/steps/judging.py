"""Judging of graphs: a captured graph is a program, and what the compiler made of it is a subject."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.localisation.steps.compiled_graph import CompiledGraph, GraphCall, Stage, derived
from oracle.program import Call, ComparePolicy, Program
from oracle.program.build import Instance
from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Verdict


@dataclass(slots=True, kw_only=True, eq=False)
class CallableSubject:
    """A subject that calls a function of this process instead of the program."""

    spec: SubjectSpec
    function: Callable[..., Any]

    def reset(self) -> None:
        """Nothing is kept between two programs."""

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        return self.function

    def counters(self) -> Counters:
        return Counters(graphs=1)


def judge_function(function: Callable[..., Any], eager: EagerState, *, rng: str = "eager") -> Verdict:
    """The verdict on a function that is called in place of eager's program."""
    subject = CallableSubject(spec=SubjectSpec(name="graph", kind="graph", rng=rng), function=function)
    return judge_subject(eager=eager, subject=subject, options=CaseOptions()).verdict


def given_program(
    program: Program, target: Callable[..., Any], args: Sequence[tuple[Any, ...]], device: str, **more: Any
) -> EagerState:
    """Eager's runs of `target` on the given arguments of each call. `more` are names that the program's source would define."""

    def inputs(call: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args[call], {}  # Instance.inputs clones

    def make() -> Instance:
        return Instance(program=program, namespace={"inputs": inputs, **more}, target=target, device=device)

    return EagerState(make=make)


@dataclass(slots=True, kw_only=True, eq=False)
class GraphJudge:
    """Judges stages of one compiled graph against the captured graph in eager, whose runs are made once."""

    graph: CompiledGraph
    original: Program  # whose graph it is
    device: str
    rng: str  # as in SubjectSpec: whose random numbers the compiled code draws
    config: Mapping[str, Any] = field(default_factory=dict)  # of torch, while it was compiled
    eager: EagerState = field(init=False)

    def __post_init__(self) -> None:
        calls, policy = self.graph.calls, self.original.policy
        program = Program(
            name=f"graph {self.graph.number} of {self.original.name}",
            source="",
            calls=tuple(Call(backward=self._has_backward(call), grad_mode=call.grad_mode) for call in calls),
            seed=self.original.seed + calls[0].number,  # the tangents of the program's call, if it has one graph
            config={**self.original.config, **self.config},
            policy=ComparePolicy(strides=policy.strides, aliases=policy.aliases, reason=policy.reason),
        )
        made = [any(call.made_by_autograd[i] for call in calls) for i in range(len(calls[0].args))]

        def derive(*args: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return derived(args, made), {}

        more = {"derive": derive} if any(made) else {}
        captured = functools.partial(self.graph.run, Stage(captured=self.graph.captured))
        self.eager = given_program(program, captured, [call.args for call in calls], self.device, **more)

    def _has_backward(self, call: GraphCall) -> bool:
        """Whether the program differentiates the call, by its plan or by itself."""
        return self.graph.is_differentiated or self.original.calls[call.number].backward

    def verdict(self, stage: Stage) -> Verdict:
        """The verdict on the graph as it is after a step."""
        return self.verdict_on(functools.partial(self.graph.run, stage))

    def verdict_on(self, function: Callable[..., Any]) -> Verdict:
        """The verdict on any function with the arguments of the captured graph."""
        return judge_function(function, self.eager, rng=self.rng)
