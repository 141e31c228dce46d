"""Remakes views at run time from their base, by the view ops that the program called.

Counterpart: torch/_functorch/_aot_autograd/functional_utils.py gen_alias_from_base
Differs: the ops are those of the traced graph; upstream gets a function from autograd, or falls back to as_strided.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from refimpl._torch import OpOverload, set_grad_enabled
from refimpl.aot.analysis.metadata import ForwardOutput, ReplayStep
from refimpl.functionalize.aliases import VIEWED, ViewStep
from refimpl.trace.metadata import notes_of

Replay = Callable[[torch.Tensor, Sequence[Any]], torch.Tensor]
SharedReplay = Callable[[torch.Tensor, Sequence[Any]], list[torch.Tensor]]

_aten = torch.ops.aten
_NATIVE_METHOD = type(torch.Tensor.view)


@functools.cache
def _called_for(target: Any) -> Any:
    """The function that remakes the view of an op: the tensor method of that name if it is native: it is three times as fast."""
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return target
    method = getattr(torch.Tensor, target._schema.name.removeprefix("aten::"), None)
    return method if isinstance(method, _NATIVE_METHOD) else target


def replay_steps(steps: Sequence[ViewStep], number: Callable[[torch.fx.Node], int]) -> tuple[ReplayStep, ...]:
    """The steps that remake a view. Call this in the grad mode in which the program is called.

    number: gives the position that the node of a symbolic number has among the forward outputs."""
    return tuple(_replay_step(step, number) for step in steps)


def _replay_step(step: ViewStep, number: Callable[[torch.fx.Node], int]) -> ReplayStep:
    def convert(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return ForwardOutput(number(value))
        if isinstance(value, (tuple, list)):
            return tuple(map(convert, value))
        return value

    arguments = tuple(map(convert, step.args))
    keywords = tuple((name, convert(a)) for name, a in step.kwargs.items())
    has_gradient = notes_of(step.node).is_in_grad_mode
    return ReplayStep(
        target=step.target,
        arguments=arguments,
        keywords=keywords,
        element=step.output_index,
        has_gradient=has_gradient,
        enables_gradients=has_gradient and not torch.is_grad_enabled(),
    )


def whole_view(*, needs_gradient: bool) -> ReplayStep:
    """A step that views a whole tensor. Call this in the grad mode in which the program is called."""
    return ReplayStep(
        target=_aten.alias.default,
        arguments=(VIEWED,),
        keywords=(),
        element=None,
        has_gradient=True,
        enables_gradients=needs_gradient and not torch.is_grad_enabled(),
    )


def replayer(steps: Sequence[ReplayStep]) -> Replay:
    """A function of (base, forward outputs) that returns the view. Symbolic numbers are read from the forward outputs."""
    functions = [_function(step) for step in steps]
    if len(functions) == 1:
        return functions[0]

    def replay(base: torch.Tensor, numbers: Sequence[Any]) -> torch.Tensor:
        for function in functions:
            base = function(base, numbers)
        return base

    return replay


def common_call(a: Sequence[ReplayStep], b: Sequence[ReplayStep]) -> int | None:
    """The index of the step at which two chains of views use different results of one call; None if there is none."""
    for index, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            is_one_call = None not in (one.element, other.element) and replace(one, element=other.element) == other
            return index if is_one_call else None
    return None


def shared_replayer(chains: Sequence[Sequence[ReplayStep]], index: int) -> SharedReplay:
    """Like `replayer`, for chains that are equal up to the step at `index` and then use different results of that step.

    That step is called once."""
    before, call = replayer(chains[0][:index]), _function(replace(chains[0][index], element=None))
    ends = [(chain[index].element, replayer(chain[index + 1 :])) for chain in chains]

    def replay(base: torch.Tensor, numbers: Sequence[Any]) -> list[torch.Tensor]:
        parts: Any = call(before(base, numbers), numbers)
        return [after(parts[element], numbers) for element, after in ends]

    return replay


def _function(step: ReplayStep) -> Replay:
    target, arguments, keywords, element = step.target, step.arguments, step.keywords, step.element
    is_plain = not keywords and arguments[:1] == (VIEWED,) and not _has_numbers(arguments)
    if is_plain and element is None:
        method = _called_for(target)
        rest = [_filled(a, None, ()) for a in arguments[1:]]

        def view(base: torch.Tensor, numbers: Sequence[Any]) -> torch.Tensor:
            return method(base, *rest)

    else:

        def view(base: torch.Tensor, numbers: Sequence[Any]) -> torch.Tensor:
            filled = [_filled(a, base, numbers) for a in arguments]
            value = target(*filled, **{name: _filled(a, base, numbers) for name, a in keywords})
            return value if element is None else value[element]

    if step.enables_gradients:
        return torch.enable_grad()(view)
    return view if step.has_gradient else _without_gradient(view)


def _without_gradient(view: Replay) -> Replay:
    def quiet(base: torch.Tensor, numbers: Sequence[Any]) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return view(base, numbers)
        set_grad_enabled(False)
        try:
            return view(base, numbers)
        finally:
            set_grad_enabled(True)

    return quiet


def _has_numbers(argument: Any) -> bool:
    if isinstance(argument, tuple):
        return any(map(_has_numbers, argument))
    return isinstance(argument, ForwardOutput)


def _filled(argument: Any, viewed: Any, numbers: Sequence[Any]) -> Any:
    if argument is VIEWED:
        return viewed
    if isinstance(argument, ForwardOutput):
        return numbers[argument.position]
    if isinstance(argument, tuple):
        return [_filled(item, viewed, numbers) for item in argument]
    return argument
