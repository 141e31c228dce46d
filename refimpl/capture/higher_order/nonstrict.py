"""Functions that capture runs and does not interpret (`nonstrict_trace`), and functions of NumPy for tensors (`wrap_numpy`).

Counterpart: torch/_dynamo/decorators.py nonstrict_trace; torch/_higher_order_ops/flat_apply.py; torch/_dynamo/external_utils.py
wrap_numpy
Differs: the node calls a function of the leaves of the arguments, which builds the arguments again; objects of classes that are
registered as pytrees break the graph.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from refimpl._torch import SYMBOLIC_TYPES, FakeTensorMode, pytree
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.higher_order.bodies import Tree, flatten, packed, unflatten
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.values import (
    ArrayValue,
    ConstantValue,
    DictValue,
    LocalFunctionValue,
    ObjectValue,
    SequenceValue,
    TensorValue,
    Value,
)
from refimpl.capture.values.array import array_of_tensor, tensor_of_array
from refimpl.capture.values.classes import is_a
from refimpl.errors import BadParameter

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_RUN_AS_IT_IS = "_refimpl_run_as_it_is"  # attribute of a function that nonstrict_trace returned: the function inside


def nonstrict_trace(traceable_fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that capture does not interpret: it is run on fake tensors, and a call of it is one node of the graph.

    Its arguments and results are tensors, constants, lists, tuples and dicts of them. It must be pure: other values that it reads
    are constants, and no guard holds them. Raises BadParameter for what is no function.
    """
    if not callable(traceable_fn) or isinstance(traceable_fn, type):
        raise BadParameter(seen=f"nonstrict_trace of {traceable_fn!r}", expected="a function")

    @functools.wraps(traceable_fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        return traceable_fn(*args, **kwargs)

    run.__dict__[_RUN_AS_IT_IS] = traceable_fn
    return run


def is_run_as_it_is(function: Any) -> bool:
    """Whether `nonstrict_trace` returned the function."""
    return is_a(function, FunctionType) and _RUN_AS_IT_IS in function.__dict__


def call_as_it_is(domain: SymbolicDomain, function: ObjectValue, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    """A call of a function that `nonstrict_trace` returned: a node, and the containers of its result."""
    target: Any = function.object
    if function.source is not None:
        domain.state.guard(GuardKind.ID, function.source, target)
    named = DictValue({})
    for name, value in kwargs.items():
        domain.put(named, ConstantValue(name), value)
    leaves, tree = flatten(SequenceValue(tuple, [SequenceValue(tuple, [*args]), named]), domain.state.realize)
    of_leaves, seen = _of_leaves(target.__dict__[_RUN_AS_IT_IS], tree)
    with _constants_allowed(domain.state.fake_mode):
        results = domain.state.operator(of_leaves, leaves, {})
    found, result_tree = seen[0]
    seen[0] = ([], result_tree)  # the graph keeps no fake tensors alive
    values = iter(domain.elements(results) if any(map(_is_computed, found)) else [])
    parts = [next(values) if _is_computed(leaf) else domain.value_of(leaf, of_leaves.__name__) for leaf in found]
    return unflatten(iter(parts), result_tree, domain.put)


def _is_computed(leaf: Any) -> bool:
    """Whether the graph computes this part of a result; others are constants."""
    return isinstance(leaf, (torch.Tensor, *SYMBOLIC_TYPES))


def _of_leaves(function: Callable[..., Any], tree: Tree) -> tuple[Callable[..., Any], list[tuple[list[Any], Tree]]]:
    """The function of the leaves of its arguments, which returns the tensors and symbolic numbers of its result; and a list that
    is given the leaves and the tree of its first result.
    """
    seen: list[tuple[list[Any], Tree]] = []
    computed: list[int] = []

    def of_leaves(*leaves: Any) -> Any:
        args, kwargs = packed(iter(leaves), tree)
        found, result_tree = _unpacked(function(*args, **kwargs))
        if not seen:  # the call on fake tensors; in later ones a symbolic number is a plain one
            seen.append((found, result_tree))
            computed.extend(index for index, leaf in enumerate(found) if _is_computed(leaf))
        return tuple(found[index] for index in computed) if computed else None

    name = getattr(function, "__name__", type(function).__name__)
    of_leaves.__name__ = of_leaves.__qualname__ = name if name.isidentifier() else "nonstrict"
    return of_leaves, seen


def _unpacked(result: Any) -> tuple[list[Any], Tree]:
    """The leaves of plain containers, and their tree."""
    if type(result) in (tuple, list) or hasattr(type(result), "_fields"):
        note, parts = len(result), [*result]
    elif type(result) is dict:
        note, parts = tuple(result), [*result.values()]
    else:
        return [result], ()
    found = [_unpacked(part) for part in parts]
    return [leaf for leaves, _ in found for leaf in leaves], (type(result), note, tuple(tree for _, tree in found))


@contextlib.contextmanager
def _constants_allowed(mode: FakeTensorMode) -> Iterator[None]:
    """Within the block a fake operator may have a real tensor as an operand: one that the function reads from elsewhere."""
    before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        yield
    finally:
        mode.allow_non_fake_inputs = before


def _mark_inside(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """`nonstrict_trace(function)` in captured code, of a function that was defined outside of it."""
    function = domain.state.realize(args[0]) if len(args) == 1 and not kwargs else None
    if isinstance(function, LocalFunctionValue):
        function = ObjectValue(domain.state.real_of(function), function.source)
    if not isinstance(function, ObjectValue):
        raise GraphBreak("unsupported_operation", what="nonstrict_trace", kind="a function that was made here")
    if function.source is not None:
        domain.state.guard(GuardKind.ID, function.source, function.object)
    return ObjectValue(nonstrict_trace(function.object))


# ----------------------------------------------------------------------------------------------------------------- numpy


def wrap_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors that calls a function of NumPy arrays.

    Captured, it has gradients, its tensors may be on any device, and a number of NumPy that it returns becomes a tensor.
    """

    @functools.wraps(fn)
    def wrap(*args: Any, **kwargs: Any) -> Any:
        return as_tensors(fn(*as_arrays(args), **as_arrays(kwargs)))

    return wrap


def as_arrays(values: Any) -> Any:
    """The containers with arrays in place of tensors."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.numpy(), values)


def as_tensors(values: Any) -> Any:
    """The containers with tensors in place of arrays."""
    return pytree.tree_map_only(np.ndarray, torch.as_tensor, values)


def _as_arrays(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Value:
    def array_of(leaf: Any) -> Value:
        return array_of_tensor(leaf, is_wrapped=True) if isinstance(leaf, TensorValue) else leaf

    return _mapped(domain, array_of, args)


def _as_tensors(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Value:
    def tensor_of(leaf: Any) -> Value:
        if isinstance(leaf, ArrayValue):  # a number of numpy becomes a tensor too, so that it may have a gradient
            return tensor_of_array(domain, ArrayValue(leaf.node, leaf.fake))
        return leaf

    return _mapped(domain, tensor_of, args)


def _mapped(domain: SymbolicDomain, function: Callable[[Any], Value], args: list[Any]) -> Value:
    leaves, tree = flatten(args[0], domain.state.realize)
    return unflatten(iter([function(leaf) for leaf in leaves]), tree, domain.put)


NONSTRICT_RULES = {id(nonstrict_trace): _mark_inside, id(as_arrays): _as_arrays, id(as_tensors): _as_tensors}
