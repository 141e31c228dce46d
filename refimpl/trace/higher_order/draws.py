"""Random numbers that a function of an operator draws: the backward, which runs the function again, gets the same ones.

The operator returns the numbers as further results. An example is the mask of a dropout in a branch of torch.cond. Both runs
decompose composite operators alike, with gradients or without, so that they call the same operators.

Counterpart: none; torch's backward of these operators draws other numbers than the forward did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from refimpl._torch import DispatchMode, OpOverload, has_composite_kernel, pytree, written_arguments
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.composite_kernels import composite_kernels, run_composite
from refimpl.trace.higher_order.calls import Subgraph

Function = Callable[..., Any]
_RANDOM = torch.Tag.nondeterministic_seeded


def draws_numbers(subgraph: Subgraph) -> bool:
    """Whether the function draws random numbers. Raises UnsupportedByRefimpl if a function that it gives to an operator does."""
    outer, *inner = [m for m in subgraph.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    if any(map(_draws, inner)):
        raise UnsupportedByRefimpl(
            seen="a random operator in a function of an operator within another one, where gradients pass through both",
            supported="random operators in a branch or body that is not within another one",
            do="draw the numbers outside, and pass them as an operand",
        )
    return _draws(outer)


def _draws(graph_module: torch.fx.GraphModule) -> bool:
    return any(_is_random(node.target) for node in graph_module.graph.nodes)


def _is_random(target: Any) -> bool:
    return isinstance(target, OpOverload) and _RANDOM in target.tags


class Drawing:
    """The function, which returns its results as a flat tuple, and then all numbers that it draws.

    examples: those numbers of the last run; none before the first.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self.examples: list[torch.Tensor] = []

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        with composite_kernels(copies=True), _DrawnState() as drawn:
            results = pytree.tree_leaves(self._function(*operands))
        self.examples = drawn.numbers
        return (*results, *drawn.numbers)


def replaying(function: Function, place: slice, count: int) -> Function:
    """The function, which gets `count` numbers after its operands. Those at `place` are what it draws."""

    def replayed(*operands: Any) -> Any:
        numbers = operands[len(operands) - count :]
        with composite_kernels(copies=True), _GivenState(numbers[place]):
            return function(*operands[: len(operands) - count])

    return function if count == 0 else replayed


class _DrawnState(DispatchMode):
    """Keeps copies of the numbers that operators draw. Mutable."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_random(func) and has_composite_kernel(func):
            with self:
                return run_composite(func, args, kwargs)
        result = func(*args, **kwargs)
        if _is_random(func):
            drawn = _written(func, args, kwargs) or pytree.tree_leaves(result)
            self.numbers += [tensor.clone() for tensor in drawn]
        return result


class _GivenState(DispatchMode):
    """Gives operators numbers that were drawn before. Mutable."""

    supports_higher_order_operators = True

    def __init__(self, numbers: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._numbers: Iterator[torch.Tensor] = iter(numbers)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _is_random(func):
            return func(*args, **kwargs)
        if has_composite_kernel(func):
            with self:
                return run_composite(func, args, kwargs)
        written = _written(func, args, kwargs)
        for tensor in written:
            tensor.copy_(next(self._numbers))
        if written:
            return written[0] if len(written) == 1 else tuple(written)
        given = [next(self._numbers) for _ in func._schema.returns]
        return given[0] if len(given) == 1 else tuple(given)


def _written(func: OpOverload, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that the call writes to."""
    places = written_arguments(func)
    given = [args[position] if position < len(args) else kwargs.get(name) for position, name in places]
    return [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]
