"""Functions given to a higher-order operator, with their graphs and results; and fakes of the operator's results.

Counterpart: torch/_dynamo/variables/higher_order_ops.py speculate_subgraph_with_auto_output_flattening;
torch/_higher_order_ops/cond.py _merge_output
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from refimpl._torch import storage_key, without_wrappers
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.higher_order.subgraphs import SubGraph, run_body
from refimpl.capture.values import ConstantValue, DictValue, NumberValue, SequenceValue, TensorValue, Value, polyfills
from refimpl.capture.values.classes import is_named_tuple
from refimpl.capture.values.value import unsupported
from refimpl.trace.layouts import is_same_shape

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain


class Body:
    """A function given to an operator, run on values: its graph, and its result as leaves and a tree."""

    def __init__(
        self,
        domain: SymbolicDomain,
        what: str,
        function: Any,
        args: Sequence[Value],
        graph: SubGraph | None = None,
        *,
        may_not_run: bool = False,
        allows_writes: bool = False,
    ) -> None:
        self._state = domain.state
        self.graph = SubGraph(domain.state.graph) if graph is None else graph
        self.what = what
        given = [function, SequenceValue(tuple, [*args])]
        region = domain.state.shape_env.facts_of_region() if may_not_run else contextlib.nullcontext()
        with region:  # what a branch of torch.cond asserts of numbers from data is not known to hold after it
            result = run_body(domain, self.graph, polyfills.called, given, what=what, allows_writes=allows_writes)
        self.leaves, self.tree = flatten(result, domain.state.realize)

    def check(self, *, may_have_ints: bool = False, checks_inputs: bool = False, allows_aliases: bool = False) -> None:
        """Breaks the graph if a leaf is no tensor, or shares memory with an input or another leaf.

        checks_inputs: also if two inputs share memory. allows_aliases: only if a leaf is no tensor.
        """
        nodes = []
        for leaf in self.leaves:
            is_tensor = isinstance(leaf, TensorValue) and leaf.fake.layout is torch.strided
            if not is_tensor and not (may_have_ints and is_int(leaf)):
                unsupported(f"a result of a function given to {self.what}", leaf)
            if is_tensor:
                # This makes the node an input of this graph, if it is from the outer graph.
                nodes.append(self.graph.local(leaf.node))
            elif isinstance(argument := self._state.argument_of(leaf), fx.Node):
                self.graph.local(argument)  # a size of the outer graph too
        if allows_aliases:
            return
        inputs = [node.meta.get("example_value") for node in self.graph.graph.nodes if node.op == "placeholder"]
        memories = [
            _memory_of(fake) for fake in inputs if isinstance(fake, torch.Tensor) and fake.layout is torch.strided
        ]
        taken = {*memories}
        if checks_inputs and len(taken) < len(memories):
            raise GraphBreak("operator_aliases", what=self.what, which="two inputs")
        for node in nodes:
            memory = _memory_of(node.meta["example_value"])
            if memory in taken:
                raise GraphBreak("operator_aliases", what=self.what, which="a result and an input, or two results,")
            taken.add(memory)

    def fakes(self) -> list[torch.Tensor]:
        """The fakes of the leaves, which have to be tensors. Breaks the graph if a size depends on data."""
        self.check()
        for leaf in self.leaves:
            if has_unknown_size(leaf.fake):
                unsupported(f"{self.what} of a function whose result has a size that depends on data", leaf)
        return [leaf.fake for leaf in self.leaves]

    def module(self, leaves: Sequence[Any] | None = None, *, gives_one: bool = False) -> fx.GraphModule:
        """The graph as a module that returns these leaves (default: all) as a tuple, or only the first one."""
        self.graph.hand_on()
        outputs = [self._state.argument_of(leaf) for leaf in (self.leaves if leaves is None else leaves)]
        return self.graph.module(outputs[0] if gives_one else outputs)


def _memory_of(fake: torch.Tensor) -> int:
    return storage_key(without_wrappers(fake))


def has_unknown_size(fake: torch.Tensor) -> bool:
    """Whether a size is an unbacked symbol."""
    return any(isinstance(size, torch.SymInt) and not size.node.has_hint() for size in fake.shape)


def is_int(value: Any) -> bool:
    """Whether the value is an int, constant or symbolic."""
    if isinstance(value, NumberValue):
        return isinstance(value.number, torch.SymInt)
    return isinstance(value, ConstantValue) and type(value.value) is int


def unknown_int(domain: SymbolicDomain, *values: Any) -> torch.SymInt:
    """An unbacked int; within the range of these values, if there are any."""
    shape_env = domain.state.shape_env
    with shape_env.ignore_fresh_unbacked_symbols():  # a node of the graph returns it
        made = shape_env.create_unbacked_symint()
    if values:
        bounds = [_bounds(shape_env, value) for value in values]
        shape_env.constrain_symbol_range(made.node.expr, min(low for low, _ in bounds), max(high for _, high in bounds))
    return made


def _bounds(shape_env: Any, number: Any) -> tuple[Any, Any]:
    if type(number) is int:
        return number, number
    found = shape_env.bound_sympy(number.node.expr)
    return found.lower, found.upper


def check_same(what: str, one: torch.Tensor, other: torch.Tensor) -> None:
    """Breaks the graph if two results, either of which the operator may return, differ in more than their data."""
    _check_kind(what, one, other)
    if not is_same_shape(one.shape, other.shape):
        _differ(what, "shapes", tuple(one.shape), tuple(other.shape))
    if not is_same_shape(one.stride(), other.stride()):
        _differ(what, "strides", one.stride(), other.stride())


def merged(domain: SymbolicDomain, what: str, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A fake for either of two results: a size that differs becomes unbacked. Breaks the graph if more differs."""
    _check_kind(what, one, other)
    if one.dim() != other.dim():
        _differ(what, "shapes", tuple(one.shape), tuple(other.shape))
    if is_same_shape(one.shape, other.shape):
        check_same(what, one, other)
        return one
    if not one.is_contiguous() or not other.is_contiguous():
        _differ(what, "strides", one.stride(), other.stride())
    pairs = zip(one.shape, other.shape, strict=True)
    sizes = [a if is_same_shape([a], [b]) else unknown_int(domain, a, b) for a, b in pairs]
    with domain.state.fake_mode, torch.no_grad():
        return torch.empty(sizes, dtype=one.dtype, device=one.device)


def _check_kind(what: str, one: torch.Tensor, other: torch.Tensor) -> None:
    if (one.dtype, one.device) != (other.dtype, other.device):
        seen = f"{one.dtype} on {one.device} and {other.dtype} on {other.device}"
        raise GraphBreak("op_raises_on_fake", what=f"{what}, of {seen},", error="RuntimeError")


def _differ(what: str, which: str, one: Any, other: Any) -> None:
    raise GraphBreak("unsupported_operation", what=f"{what} of results of the {which} {one} and {other}", kind="tensor")


def results(domain: SymbolicDomain, templates: Sequence[Any], operands: Sequence[Any], count: Any = None) -> list[Any]:
    """Fakes of an operator's results: like the templates, or `count` of each stacked. They require grad if an operand does.

    templates: fake tensors; an unbacked int stands for itself. operands: nodes and constants.
    """
    is_tensor = [isinstance(template, torch.Tensor) for template in templates]

    def make() -> tuple[torch.Tensor, ...]:
        return tuple(
            torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
            if count is None
            else torch.empty((count, *fake.shape), dtype=fake.dtype, device=fake.device)
            for fake in templates
            if isinstance(fake, torch.Tensor)
        )

    fakes = [node.meta.get("example_value") for node in operands if isinstance(node, fx.Node)]
    with domain.state.fake_mode:
        made = _Differentiated.apply(make, *(fake for fake in fakes if isinstance(fake, torch.Tensor)))
    tensors = iter(made)
    return [next(tensors) if is_one else template for template, is_one in zip(templates, is_tensor, strict=True)]


class _Differentiated(torch.autograd.Function):
    """Makes fakes that autograd sees as computed from other fakes."""

    @staticmethod
    def forward(ctx: Any, make: Callable[[], tuple[torch.Tensor, ...]], *operands: torch.Tensor) -> Any:
        return make()


# ---------------------------------------------------------------------------------------------------- nested containers


Tree = tuple[Any, ...]  # empty for a leaf; else (class, length or keys, trees of the items)


def flatten(value: Any, realize: Callable[[Any], Any]) -> tuple[list[Any], Tree]:
    """The leaves in order, and the tree."""
    value = realize(value)
    match value:
        case SequenceValue() if value.class_ in (tuple, list) or is_named_tuple(value.class_):
            note, parts = len(value.items), value.items
        case DictValue() if value.class_ is dict and all(
            isinstance(key, ConstantValue) for key, _ in value.items.values()
        ):
            note = tuple(getattr(key, "value") for key, _ in value.items.values())
            parts = [part for _, part in value.items.values()]
        case _:
            return [value], ()
    found = [flatten(part, realize) for part in parts]
    return [leaf for leaves, _ in found for leaf in leaves], (value.class_, note, tuple(tree for _, tree in found))


def tree_of(result: Any, leaf: type) -> Tree:
    """The tree of plain containers around instances of a class. Breaks the graph for other containers."""
    if isinstance(result, leaf):
        return ()
    if type(result) in (tuple, list) or hasattr(type(result), "_fields"):
        note, parts = len(result), [*result]
    elif type(result) is dict:
        note, parts = tuple(result), [*result.values()]
    else:
        raise GraphBreak("op_returns", what="a function that is not captured", result=type(result).__name__)
    return type(result), note, tuple(tree_of(part, leaf) for part in parts)


def unflatten(leaves: Iterator[Any], tree: Tree, put: Callable[[DictValue, Any, Value], None]) -> Any:
    """The containers again, with other leaves. put: sets an item of a dict."""
    if not tree:
        return next(leaves)
    class_, note, trees = tree
    parts = [unflatten(leaves, inner, put) for inner in trees]
    if class_ is not dict:
        return SequenceValue(class_, parts)
    made = DictValue({})
    for key, part in zip(note, parts, strict=True):
        put(made, ConstantValue(key), part)
    return made


def packed(leaves: Iterator[Any], tree: Tree) -> Any:
    """Plain containers of a tree's classes around leaves that are no values of capture."""
    if not tree:
        return next(leaves)
    class_, note, trees = tree
    parts = [packed(leaves, inner) for inner in trees]
    if class_ is dict:
        return dict(zip(note, parts, strict=True))
    return class_(*parts) if hasattr(class_, "_fields") else class_(parts)
