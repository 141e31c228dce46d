"""Calls of leaf functions, which are neither captured nor traced: a node that calls the function when the graph runs.

Counterpart: torch/_dynamo/variables/torch.py TorchInGraphFunctionVariable._call_leaf_function
Differs: a function whose results are not all tensors breaks the graph, since the graph would keep the numbers of its fake.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import leaf_functions, pytree
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.config import config
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import AttributeSource
from refimpl.capture.higher_order.bodies import flatten, packed, tree_of, unflatten
from refimpl.capture.values import ConstantValue, DictValue, ObjectValue, SequenceValue, TensorValue, Value
from refimpl.capture.values.classes import is_a
from refimpl.trace.higher_order.leaf_functions import writes_to_shared_memory

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_REAL, _FAKE = "_torchdynamo_leaf_real_fn", "_torchdynamo_leaf_fake_fn"
_WRITTEN = "_torchdynamo_leaf_mutates_args"
_HOOK, _FAKE_HOOK = "_torchdynamo_leaf_hook_fn", "_torchdynamo_leaf_hook_fake_fn"


class AttributeOfGraph(Value):
    """An object that becomes an attribute of the graph module, as an argument of a node."""

    __slots__ = ("name", "object")

    def __init__(self, name: str, object_: Any) -> None:
        super().__init__()
        self.name = name
        self.object = object_

    def as_fake(self, state: Any, what: str) -> Any:
        return self.object

    def as_argument(self, state: Any) -> Any:
        return state.graph.attach_object(self.name, self.object)


def is_leaf_function(function: Any) -> bool:
    """Whether `torch._dynamo.decorators.leaf_function` made the function."""
    return leaf_functions is not None and is_a(function, FunctionType) and _REAL in function.__dict__


def call_leaf_function(
    domain: SymbolicDomain, function: ObjectValue, args: Sequence[Any], kwargs: dict[str, Any]
) -> Value:
    """A call of a leaf function: a node of `invoke_leaf_function`, and the containers of its results."""
    target: Any = function.object
    name = target.__name__
    state = domain.state
    if function.source is not None:
        state.guard(GuardKind.ID, function.source, target)
    known = target.__dict__
    if known[_FAKE] is None:
        raise GraphBreak("op_without_fake_kernel", what=name)
    named = DictValue({})
    for key, value in kwargs.items():
        domain.put(named, ConstantValue(key), value)
    leaves, tree = flatten(SequenceValue(tuple, [SequenceValue(tuple, [*args]), named]), state.realize)
    operands: list[Any] = []
    forms = [_form_of(domain, leaf, operands) for leaf in leaves]
    spec = pytree.tree_structure(packed(iter(forms), tree))
    written = _written_places(known[_REAL], known[_WRITTEN], len(operands), spec)
    if written and writes_to_shared_memory(written, [operand.as_fake(state, name) for operand in operands]):
        raise GraphBreak("read_after_write", what=name)
    results: list[pytree.TreeSpec | None] = [None]
    real, fake = map(
        leaf_functions._LeafCallable,
        leaf_functions.make_leaf_function_wrappers(_checked(known[_REAL], known[_FAKE]), known[_FAKE], results),
    )
    if known[_HOOK] is not None:
        real._leaf_hook_real_fn, real._leaf_hook_fake_fn = known[_HOOK], known[_FAKE_HOOK]
    state.graph.has_effects = True
    attributes = [AttributeOfGraph(*one) for one in (("real_fn", real), ("fake_fn", fake), ("input_spec", spec))]
    places = ",".join(map(str, written))
    found = state.operator(leaf_functions.invoke_leaf_function, [*attributes, ConstantValue(places), *operands], {})
    state.note_writes([operands[place] for place in written])
    parts = domain.elements(found)
    for part in parts:
        if not isinstance(part, TensorValue) and not (isinstance(part, ConstantValue) and part.value is None):
            raise GraphBreak("op_returns", what=name, result=part.kind)
    assert results[0] is not None
    shape = pytree.tree_unflatten([_Leaf() for _ in parts], results[0])
    return unflatten(iter(parts), tree_of(shape, _Leaf), domain.put)


class _Leaf:
    """Stands for a result."""


def _form_of(domain: SymbolicDomain, leaf: Any, operands: list[Any]) -> Any:
    """The leaf as torch's kernels expect it, with its tensors, numbers and constants added to `operands`."""
    value = domain.state.realize(leaf)
    if not isinstance(value, ObjectValue) or not isinstance(value.object, torch.nn.Module):
        operands.append(value)
        return None
    module = value.object
    if value.source is None:
        raise GraphBreak("not_a_graph_argument", what=f"{value.kind} that was made in the graph")
    domain.state.guard(GuardKind.ID, value.source, module)
    (number,) = leaf_functions.store_makefx_modules([module])
    operands.append(ConstantValue(number))
    tensors: list[dict[str, None]] = []
    for found in (module.named_parameters(), module.named_buffers()):
        names = [name for name, _ in found]
        for name in names:
            source: Any = value.source
            held: Any = module
            for part in name.split("."):
                source, held = AttributeSource(source, part), getattr(held, part)
            operands.append(domain.state.wrap(held, source))
        tensors.append(dict.fromkeys(names))
    return leaf_functions.LeafModuleState(number, *tensors)


def _written_places(function: Any, expressions: Any, count: int, spec: Any) -> list[int]:
    if not expressions:
        return []
    places = leaf_functions._resolve_mutated_flat_indices(function, expressions, count, spec)
    return [int(place) for place in places.split(",")]


# ------------------------------------------------------------------------------------------- checks that settings ask for


def _checked(real: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """The real function with the checks that settings ask for when a call of it is captured."""
    validates, checks_gradients = config.leaf_function_validate_outputs, config.leaf_function_check_escaped_gradients
    if not validates and not checks_gradients:
        return real

    @functools.wraps(real)
    def checked(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        if validates:
            with torch.no_grad():
                _validate(fake(*args, **kwargs), result)
        if checks_gradients:
            _check_gradients(result, [*_tensors_in((args, kwargs))])
        return result

    return checked


def _validate(fake: Any, real: Any) -> None:
    """Raises RuntimeError if the fake has another structure, or a tensor of another shape or dtype, than the result."""
    (fakes, fake_tree), (reals, real_tree) = pytree.tree_flatten(fake), pytree.tree_flatten(real)
    seen: tuple[str, Any, Any] | None = None
    if fake_tree != real_tree:
        seen = "Output structure mismatch", fake_tree, real_tree
    else:
        for place, (one, other) in enumerate(zip(fakes, reals, strict=True)):
            if isinstance(one, torch.Tensor) is not isinstance(other, torch.Tensor):
                seen = f"Output type mismatch at position {place}", type(one).__name__, type(other).__name__
            elif isinstance(one, torch.Tensor) and one.shape != other.shape:
                seen = f"Shape mismatch at output position {place}", [*one.shape], [*other.shape]
            elif isinstance(one, torch.Tensor) and one.dtype != other.dtype:
                seen = f"Dtype mismatch at output position {place}", one.dtype, other.dtype
    if seen is not None:
        raise RuntimeError(
            f"{seen[0]} in @leaf_function: the fake gives {seen[1]}, the function {seen[2]}\n  expected: the same of both"
        )


def _tensors_in(values: Any) -> Iterator[torch.Tensor]:
    for leaf in pytree.tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif isinstance(leaf, torch.nn.Module):
            yield from leaf.parameters()
            yield from leaf.buffers()


def _check_gradients(result: Any, given: Sequence[torch.Tensor]) -> None:
    """Raises RuntimeError if the result's history reaches a leaf that is no argument: no gradient flows back to it."""
    edges = (torch.autograd.graph.get_gradient_edge(tensor) for tensor in given if tensor.requires_grad)
    seen = {edge.node for edge in edges}
    waiting = [tensor.grad_fn for tensor in _tensors_in(result) if tensor.grad_fn is not None]
    escaped: list[str] = []
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            escaped.append(f"{[*variable.shape]} of {variable.dtype}")
        waiting += [inner for inner, _ in node.next_functions if inner is not None]
    if escaped:
        raise RuntimeError(
            f"@leaf_function detected {len(escaped)} tensor(s) with requires_grad=True that are not passed as explicit "
            f"inputs: {', '.join(escaped)}\n  expected: every tensor that needs a gradient as an argument"
        )
