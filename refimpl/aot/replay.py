"""Views made again from the tensor they view, by the ops that the program made them with.

Counterpart: torch/_functorch/_aot_autograd/functional_utils.py gen_alias_from_base
Differs: the ops are those of the traced graph; upstream asks autograd for a function, or falls back to as_strided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import set_grad_enabled
from refimpl.aot.analysis import ForwardOutput, ReplayStep
from refimpl.functionalize.aliases import VIEWED, ViewStep


def replay_steps(steps: Sequence[ViewStep], number: Callable[[torch.fx.Node], int]) -> tuple[ReplayStep, ...]:
    """`number` gives the position among the forward outputs of a node that stands for a symbolic number."""
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
    return ReplayStep(
        target=step.target,
        arguments=arguments,
        keywords=keywords,
        element=step.output_index,
        has_gradient=bool(step.node.meta.get("grad_mode", True)),
    )


def replay(base: torch.Tensor, steps: Sequence[ReplayStep], numbers: Sequence[Any]) -> torch.Tensor:
    """The view of `base`. `numbers` are the forward outputs, of which steps take symbolic numbers."""
    value: Any = base
    for step in steps:
        arguments = [_filled(a, value, numbers) for a in step.arguments]
        keywords = {name: _filled(a, value, numbers) for name, a in step.keywords}
        was_enabled = torch.is_grad_enabled()
        if was_enabled and not step.has_gradient:
            set_grad_enabled(False)
            try:
                value = step.target(*arguments, **keywords)
            finally:
                set_grad_enabled(True)
        else:
            value = step.target(*arguments, **keywords)
        if step.element is not None:
            value = value[step.element]
    return value


def _filled(argument: Any, viewed: Any, numbers: Sequence[Any]) -> Any:
    if argument is VIEWED:
        return viewed
    if isinstance(argument, ForwardOutput):
        return numbers[argument.position]
    if isinstance(argument, tuple):
        return [_filled(item, viewed, numbers) for item in argument]
    return argument


def has_custom_function(grad_fn: Any, count: int) -> bool:
    """Whether a user's autograd.Function is among the last `count` steps of a tensor's history."""
    for _ in range(count):
        if grad_fn is None:
            return False
        if isinstance(grad_fn, torch.autograd.function.BackwardCFunction):
            return True
        grad_fn = grad_fn.next_functions[0][0] if grad_fn.next_functions else None
    return False
