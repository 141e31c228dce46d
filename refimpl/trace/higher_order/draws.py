"""Random numbers that a function of an operator draws: the backward, which runs the function again, gets the same ones.

The operator returns the numbers as further results. An example is the mask of a dropout in a branch of torch.cond. Both runs
decompose composite operators alike, with gradients or without, so that they call the same operators.

A torch.cond or map within such a function returns its numbers to it, and gets them as operands when it runs again; a scan is
traced step by step. A loop within it would return as many numbers as it has rounds, which is not known: it is refused.

Counterpart: none; torch's backward of these operators draws other numbers than the forward did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from refimpl._torch import (
    DispatchMode,
    HigherOrderOperator,
    OpOverload,
    dispatch_keys,
    has_composite_kernel,
    pytree,
    with_dispatch_keys,
    written_arguments,
)
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.composite_kernels import composite_kernels, run_composite
from refimpl.trace.higher_order.calls import NUMBERS, Subgraph, numbers_of

Function = Callable[..., Any]
_RANDOM = torch.Tag.nondeterministic_seeded
_GIVES_NUMBERS = (
    "cond",
    "map_impl",
    "scan",
)  # they run their functions as often as sizes say, so numbers can be results


def draws_numbers(subgraph: Subgraph) -> bool:
    """Whether the function draws random numbers. Raises UnsupportedByRefimpl if an operator in it draws a number of them that
    is not known.
    """
    return _draws(subgraph.graph_module)


def _draws(graph_module: torch.fx.GraphModule) -> bool:
    found = [_draws_at(node, graph_module) for node in graph_module.graph.nodes]
    return any(found)


def _draws_at(node: torch.fx.Node, root: torch.fx.GraphModule) -> bool:
    if not isinstance(node.target, HigherOrderOperator):
        return _is_random(node.target)
    functions = [getattr(root, str(each.target), None) for each in node.all_input_nodes if each.op == "get_attr"]
    found = [_draws(function) for function in functions if isinstance(function, torch.fx.GraphModule)]
    if any(found) and node.target.name() not in _GIVES_NUMBERS:
        raise UnsupportedByRefimpl(
            seen=f"a random operator in a function of {node.target}, within a function of another operator, where gradients "
            "pass through both",
            supported="random operators in functions of torch.cond, map and scan",
            do="draw the numbers outside, and pass them as an operand",
        )
    return any(found)


def _is_random(target: Any) -> bool:
    return isinstance(target, OpOverload) and _RANDOM in target.tags


class Drawing:
    """The function, which returns its results as a flat tuple, and then all numbers that it draws.

    examples: those numbers of the last run; none before the first.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._keys = dispatch_keys()  # a rule runs below autograd, where calls of operators by themselves are not seen
        self.examples: list[torch.Tensor] = []

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        drawn = _DrawnState()
        with with_dispatch_keys(self._keys), composite_kernels(copies=True), drawn, numbers_of(drawn):
            results = pytree.tree_leaves(self._function(*operands))
        self.examples = drawn.numbers
        return (*results, *drawn.numbers)


def replaying(function: Function, place: slice, count: int) -> Function:
    """The function, which gets `count` numbers after its operands. Those at `place` are what it draws."""

    def replayed(*operands: Any) -> Any:
        numbers = operands[len(operands) - count :]
        given = _GivenState(numbers[place])
        with composite_kernels(copies=True), given, numbers_of(given):
            return function(*operands[: len(operands) - count])

    return function if count == 0 else replayed


def keep_numbers(numbers: Sequence[torch.Tensor]) -> None:
    """Let the running function, if its numbers are kept, return also these, which an operator in it drew."""
    state = NUMBERS.get()
    if isinstance(state, _DrawnState):
        state.numbers += numbers


def numbers_again(count: int) -> list[torch.Tensor] | None:
    """The next random numbers that the forward drew, while the backward runs the function again; None otherwise."""
    state = NUMBERS.get()
    return [state.next() for _ in range(count)] if isinstance(state, _GivenState) else None


def are_numbers_kept() -> bool:
    """Whether the running function returns or is given the numbers that it draws."""
    return NUMBERS.get() is not None


class _DrawnState(DispatchMode):
    """Keeps copies of the numbers that operators draw. Mutable."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if NUMBERS.get() is not self:
            return func(*args, **kwargs)
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

    def next(self) -> torch.Tensor:
        return next(self._numbers)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if NUMBERS.get() is not self or not _is_random(func):
            return func(*args, **kwargs)
        if has_composite_kernel(func):
            with self:
                return run_composite(func, args, kwargs)
        written = _written(func, args, kwargs)
        for tensor in written:
            tensor.copy_(self.next())
        if written:
            return written[0] if len(written) == 1 else tuple(written)
        # Copies, because a function may return the number itself, and an operator's function should not return its operand.
        given = [self.next().clone() for _ in func._schema.returns]
        return given[0] if len(given) == 1 else tuple(given)


def _written(func: OpOverload, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that the call writes to."""
    places = written_arguments(func)
    given = [args[position] if position < len(args) else kwargs.get(name) for position, name in places]
    return [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]
