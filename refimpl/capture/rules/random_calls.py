"""Functions of Python's `random`: what they return is read when the segment is entered, and is an input of the graph.

Counterpart: torch/_dynamo/variables/functions.py, output_graph.py random_calls
Differs: the numbers are tensors of one element and the graph reads them with `item()`, so that they promote like Python numbers.
Methods of other generators than that of the module end the graph.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import transform_depth
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import Draws, DrawsSource, ItemSource
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.rules.rule_table import Rule, RuleTable
from refimpl.capture.state.graph import SegmentGraph
from refimpl.capture.values import ConstantValue, ObjectValue, TensorValue, Value

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

RANDOM_RULES = RuleTable()
_GENERATOR = getattr(random, "_inst")
_MOST_BITS = 62


def _rule(function: Callable[..., Any]) -> Rule:
    def called(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Value:
        name = f"random.{function.__name__}"
        given = [domain.constant_of(arg, name) for arg in args]
        named = {key: domain.constant_of(arg, name) for key, arg in kwargs.items()}
        if not _is_drawable(function.__name__, [*given, *named.values()]):
            raise GraphBreak("call_of_native_code", what=name)
        state = domain.state
        if type(state.graph) is not SegmentGraph:  # a branch may not run, a backward may run again
            raise GraphBreak("effect_in_branch", what="an operator", kind="Python's random state")
        if transform_depth():
            raise GraphBreak("unsupported_operation", what=f"{name} in a transform of torch.func", kind="generator")
        draws = Draws(_GENERATOR) if state.draws is None else state.draws
        try:
            drawn = draws.example(function.__name__, given, named)
        except Exception as error:
            raise GraphBreak("op_raises_on_fake", what=name, error=type(error).__name__) from error
        if not isinstance(drawn, torch.Tensor) and function.__name__ != "seed":
            raise GraphBreak("call_of_native_code", what=name)
        state.draws = draws
        state.graph.has_effects = True  # a second run would draw other numbers
        index = draws.add(function.__name__, given, named)
        return ConstantValue(None) if not isinstance(drawn, torch.Tensor) else _number(domain, draws, index, drawn)

    return called


def _is_drawable(name: str, args: list[Any]) -> bool:
    """Whether every call with these arguments returns a number of one type that fits a tensor; or is a call of `seed`."""
    if name == "seed":
        return all(type(arg) in (int, float, str, bytes, type(None)) for arg in args)
    most = _MOST_BITS if name == "getrandbits" else 2**_MOST_BITS
    return all(type(arg) is float or (type(arg) is int and abs(arg) <= most) for arg in args)


def _number(domain: SymbolicDomain, draws: Draws, index: int, drawn: torch.Tensor) -> Any:
    state = domain.state
    source = ItemSource(DrawsSource(draws), index)
    with state.fake_mode, torch.no_grad():
        fake = torch.empty((), dtype=drawn.dtype)
    value = TensorValue(state.graph.input(source, fake, drawn), fake)
    state.by_fake[id(fake)] = value
    state.shape_env.settings = replace(state.shape_env.settings, allow_scalar_outputs=True)
    return state.operator("item", [value], {}, kind="call_method")


def _method_rule(method: Callable[..., Any]) -> Rule:
    """A method that is written in Python, as `random.randint`: its first argument is the generator."""
    of_module = _rule(method)

    def called(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Value:
        receiver = domain.state.realize(args[0]) if args else None
        if not isinstance(receiver, ObjectValue) or receiver.object is not _GENERATOR:
            raise GraphBreak("call_of_native_code", what=f"random.Random.{method.__name__}")
        if receiver.source is not None:
            domain.state.guard(GuardKind.ID, receiver.source, _GENERATOR)
        return of_module(domain, frame, args[1:], kwargs)

    return called


for _function in vars(random).values():
    if getattr(_function, "__self__", None) is _GENERATOR:
        _is_python = isinstance(_function, MethodType)
        _target, _make = (_function.__func__, _method_rule) if _is_python else (_function, _rule)
        RANDOM_RULES[id(_target)] = _make(_target)
