"""Nested compile regions that a trace keeps, as nodes of `invoke_subgraph`: all calls that compute the same have one graph.

Counterpart: torch/_higher_order_ops/invoke_subgraph.py invoke_subgraph_placeholder
Differs: there, each call is captured and then traced; here it is traced.
"""

from __future__ import annotations

import contextlib
import contextvars
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from refimpl._torch import SYMBOLIC_TYPES, pytree

_OPERATOR: Any = torch.ops.higher_order.invoke_subgraph
_KEEPS: contextvars.ContextVar[bool] = contextvars.ContextVar("refimpl_keeps_regions", default=False)


@contextlib.contextmanager
def regions_kept() -> Iterator[None]:
    """A block in which traces keep nested compile regions. Elsewhere they are parts of what calls them."""
    token = _KEEPS.set(True)
    try:
        yield
    finally:
        _KEEPS.reset(token)


def are_kept() -> bool:
    """Whether a region that is called now is kept."""
    return _KEEPS.get()


class KeptRegion:
    """A call of a region as a function of its tensors and symbolic numbers, which returns a tuple of such."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.function = function
        self._leaves, self._spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self._places = [place for place, leaf in enumerate(self._leaves) if _is_operand(leaf)]
        self._results: list[Any] = []
        self._result_spec: pytree.TreeSpec | None = None

    @property
    def code(self) -> Any:
        """What all calls of the region have in common."""
        return getattr(getattr(self.function, "__func__", self.function), "__code__", self.function)

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        leaves = [*self._leaves]
        for place, operand in zip(self._places, operands, strict=True):
            leaves[place] = operand
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        self._results, self._result_spec = pytree.tree_flatten(self.function(*args, **kwargs))
        return tuple(filter(_is_operand, self._results))

    def called(self) -> Any:
        """The result of the region, whose operator the running trace records."""
        operands = [self._leaves[place] for place in self._places]
        made = iter(_OPERATOR(self, "subgraph", *operands))
        assert self._result_spec is not None, "the trace has called the function"
        return pytree.tree_unflatten([next(made) if _is_operand(x) else x for x in self._results], self._result_spec)


def _is_operand(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, torch.SymInt))


# --------------------------------------------------------------------------------------------------------- equal graphs


def content(body: fx.GraphModule, key: str) -> Iterator[Any]:
    """What a graph computes, from inputs of which shapes, dtypes and strides: equal for graphs that may replace each other.

    key: where the metadata of a node has its example. Graphs with unbacked symbols differ, because each call makes its own.
    """
    numbers: dict[fx.Node, str] = {}
    for node in body.graph.nodes:
        numbers[node] = f"%{len(numbers)}"
        yield node.op
        if node.op == "placeholder":
            yield _metadata(node.meta.get(key))
        elif node.op == "get_attr":
            found = operator.attrgetter(node.target)(body)
            yield tuple(content(found, key)) if isinstance(found, fx.GraphModule) else id(found)
        else:
            yield node.target if node.op == "call_method" else id(node.target)
            yield _metadata(node.meta.get(key))  # autocast and grad mode are seen in results alone
            yield repr(map_arg((node.args, node.kwargs), lambda used: _Named(numbers[used])))


class _Named(str):
    """A node's number; its repr is no literal that the program could have."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _metadata(example: Any) -> Any:
    if isinstance(example, (tuple, list)):
        return tuple(map(_metadata, example))
    if not isinstance(example, torch.Tensor):
        return str(example) if isinstance(example, SYMBOLIC_TYPES) else type(example)
    strides = str(example.stride()) if example.layout is torch.strided else None
    kind = (type(example), example.dtype, example.device, example.layout, example.is_conj(), example.is_neg())
    return (*kind, str(tuple(example.shape)), strides, example.requires_grad)
