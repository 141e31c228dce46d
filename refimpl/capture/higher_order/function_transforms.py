"""Transforms of torch.func (vmap, grad, jvp and those made of them): a node for each call into the C++ side of torch.func.

Counterpart: torch/_dynamo/variables/functions.py FunctorchHigherOrderVariable;
torch/_dynamo/variables/ctx_manager.py VmapIncrementNestingCtxManagerVariable, GradIncrementNestingCtxManagerVariable
Differs: torch's Python code of a transform is interpreted like code of the program. Capture enters the transform's level for
its fakes at the same time as it adds the node that enters it. If the graph breaks within a level, the segment ends before it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from refimpl._torch import (
    autograd_grad_of_transforms,
    load_batching_rules,
    load_forward_derivatives,
    set_tensor_requires_grad,
    transform_loaders,
    transform_operators,
    transform_questions,
    transform_setters,
    wraps_transformed,
)
from refimpl.capture.higher_order.graph_functions import gradients_within, with_gradient
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.rules.rule_table import Rule, RuleTable, wrong
from refimpl.capture.values import ConstantValue, ObjectValue, PartialValue, TensorValue

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

TRANSFORM_RULES = RuleTable()


def _setter(name: str, function: Any) -> Rule:
    """Changes torch's state now, with a node that changes it when the graph runs."""

    def changed(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return domain.state.change_transforms(name, function, args, kwargs)

    return changed


def _operator(function: Any) -> Rule:
    def called(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return domain.state.operator(function, args, kwargs)

    return called


def _question(function: Any) -> Rule:
    """Answered on fakes: they are wrapped as the tensors of the run are."""

    def answered(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        name = function.__name__
        return ConstantValue(function(*(domain.state.fake_of(arg, name) for arg in args)))

    return answered


for _name, (_native, _others) in transform_setters.items():
    TRANSFORM_RULES.of(_native, *_others)(_setter(_name, _native))
for _native, _others in transform_operators.values():
    TRANSFORM_RULES.of(_native, *_others)(_operator(_native))
for _native in transform_questions:
    TRANSFORM_RULES.of(_native)(_question(_native))


@TRANSFORM_RULES.of(*transform_loaders, load_forward_derivatives)
def _load(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Registers what eager mode registers at the first transform."""
    load_batching_rules()
    load_forward_derivatives()
    return ConstantValue(None)


@TRANSFORM_RULES.of(wraps_transformed)
def _wraps(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Like functools.wraps. Torch's own also leaves out marks of torch.compile, but a function made here has none."""
    return PartialValue(ObjectValue(functools.update_wrapper), [], {"wrapped": args[0]})


@TRANSFORM_RULES.of(set_tensor_requires_grad)
def _set_requires_grad(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`x.requires_grad_()` of a wrapper that a level has just made; it is no tensor of the program."""
    value = domain.state.realize(args[0])
    if not isinstance(value, TensorValue):
        wrong("requires_grad_")
    domain.state.operator(with_gradient, [value], {})
    return value


@TRANSFORM_RULES.of(autograd_grad_of_transforms)
def _gradients(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.state.operator(gradients_within, args, kwargs)
