"""CompiledGraph: one graph that Dynamo captured, with a copy of it after each step of the compiler, and its calls.

AOT autograd's wrapper around the compiled code stays in place, which applies mutations, makes views and differentiates. The code
in it can be switched: to the code that the compiler made, or to a copy of the graph after any step, run in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule

from oracle.localisation.steps.graph_runs import JointGraph, JointRun, placeholders_of, run, stand_ins
from oracle.program.clone import clone_tree

Boxed = Callable[[list[Any]], Any]  # takes a list of arguments and may empty it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """The graphs that replace compiled code: `captured` for all of it, or `joint`, or one graph for each side.

    A side without a graph runs the code that the compiler made.
    """

    captured: GraphModule | None = None
    joint: JointGraph | None = None
    forward: GraphModule | None = None
    backward: GraphModule | None = None

    def module(self, direction: str) -> GraphModule | None:
        """The graph of a direction of `RecordedStep`; None for compiled code."""
        match direction:
            case "captured":
                return self.captured
            case "joint":
                return None if self.joint is None else self.joint.module
            case "backward":
                return self.backward
            case _:
                return self.forward


COMPILED = Stage()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedStep:
    """One step of the compiler on one graph."""

    direction: str  # "captured" | "joint" | "forward" | "backward" | "inference"
    name: str
    stage: Stage  # after the step
    is_changed: bool  # the text of the graph changed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphCall:
    """One call of a captured graph by the program."""

    number: int  # of the program's call
    args: tuple[Any, ...]  # a copy, made before the call
    made_by_autograd: tuple[bool, ...]  # which arguments were results of differentiable operators
    grad_mode: str  # as in Call


@dataclass(slots=True, kw_only=True, eq=False)
class CompiledGraph:
    """A captured graph and what the compiler made of it. Mutable: filled while the program is compiled and run."""

    number: int
    captured: GraphModule
    steps: list[RecordedStep] = field(default_factory=list)
    calls: list[GraphCall] = field(default_factory=list)
    draws: bool = False  # random operators are left in it after tracing
    decomposed: dict[Any, int] = field(default_factory=dict)  # overloads that were decomposed -> how deep in other ones
    options: dict[str, Any] = field(default_factory=dict)  # of AOT autograd
    call: Callable[..., Any] | None = None  # the callable of AOT autograd
    stage: Stage = COMPILED  # what it runs at present
    code: dict[str, Boxed] = field(default_factory=dict)  # by side
    saved: list[Any] = field(default_factory=list)  # outputs of the forward graph that are saved for the backward
    tangents: list[int] = field(default_factory=list)  # which inputs of the backward graph are gradients of outputs
    code_args: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)  # arguments of the code, kept on request
    _joint_runs: dict[int, JointRun] = field(default_factory=dict)
    _last_joint_run: JointRun | None = None

    @property
    def is_differentiated(self) -> bool:
        """Whether the program ran or compiled the backward."""
        return "backward" in self.code

    def step(self, direction: str, name: str, *, is_changed: bool, **changed: Any) -> None:
        """Add a step, after which the stage differs from that of the last one in `changed`."""
        before = self.steps[-1].stage if self.steps else COMPILED
        self.steps.append(
            RecordedStep(direction=direction, name=name, stage=replace(before, **changed), is_changed=is_changed)
        )

    def run(self, stage: Stage, *args: Any) -> tuple[Any, ...]:
        """Call the graph as it is after a step. A backward that follows runs in the same stage."""
        self.stage = stage
        if stage.captured is not None:
            return tuple(run(stage.captured, args))
        assert self.call is not None
        return tuple(self.call(*args))  # else a list or a tuple, which Dynamo takes apart anyway

    def in_place_of(self, side: str, code: Callable[..., Any], graph: GraphModule) -> Boxed:
        """A callable to use as the compiled code of one side."""
        names = placeholders_of(graph)
        self.code[side] = _boxed(code)

        def call(args: list[Any]) -> Any:
            given = tuple(args)
            stage = self.stage
            module = stage.forward if side == "forward" else stage.backward
            if stage.joint is None and module is None:
                if side in self.code_args:
                    self.code_args[side].append(tuple(clone_tree(given)))
                return self.code[side](args)
            args.clear()
            if stage.joint is not None:
                return self._run_joint(stage.joint, side, given)
            assert module is not None
            return run(module, arguments_for(module, names, given))

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def _run_joint(self, joint: JointGraph, side: str, args: tuple[Any, ...]) -> Any:
        if side == "backward":
            saved = [value for value in args if isinstance(value, torch.Tensor)]
            done = self._joint_runs.get(saved[0].data_ptr()) if saved else None
            done = done or self._last_joint_run
            assert done is not None
            return joint.backward(done, [args[number] for number in self.tangents])
        done = joint.forward(args)
        saved = list(stand_ins(self.saved))
        key = next((value.data_ptr() for value in saved if isinstance(value, torch.Tensor)), None)
        if key is not None:
            self._joint_runs[key] = done  # no other tensor has this address while autograd keeps the first saved one
        self._last_joint_run = done
        return [*done.outputs, *saved]


def arguments_for(module: GraphModule, names: Sequence[str], given: Sequence[Any]) -> list[Any]:
    """The arguments that the graph takes. Freezing removes some of the inputs `names`."""
    wanted = placeholders_of(module)
    if len(wanted) == len(given):
        return list(given)
    by_name = dict(zip(names, given, strict=False))
    return [by_name[name] for name in wanted]


def _boxed(code: Callable[..., Any]) -> Boxed:
    if getattr(code, "_boxed_call", False):
        return code
    return lambda args: code(*args)


def graph_call(number: int, args: Sequence[Any]) -> GraphCall:
    """A record of a call that is about to be made."""
    grad_mode = "inference" if torch.is_inference_mode_enabled() else "grad" if torch.is_grad_enabled() else "no_grad"
    return GraphCall(
        number=number,
        args=tuple(clone_tree(tuple(args))),
        made_by_autograd=tuple(isinstance(arg, torch.Tensor) and not arg.is_leaf for arg in args),
        grad_mode=grad_mode,
    )


def derived(args: Sequence[Any], made_by_autograd: Sequence[bool]) -> tuple[Any, ...]:
    """The arguments of a call, computed from leaves where the program computed them: a leaf cannot be changed in place."""
    return tuple(
        _result_like(arg) if is_result and isinstance(arg, torch.Tensor) and arg.requires_grad else arg
        for arg, is_result in zip(args, made_by_autograd, strict=True)
    )


def _result_like(leaf: torch.Tensor) -> torch.Tensor:
    """A differentiable copy with the strides of the leaf."""
    if 0 in leaf.stride():
        return leaf.clone()
    return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=leaf.device).copy_(leaf)
