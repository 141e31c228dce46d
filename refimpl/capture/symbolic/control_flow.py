"""`torch.cond`, `map`, `while_loop` and `scan`: nodes of torch's operators, with graphs of the functions they are given.

Counterpart: torch/_dynamo/variables/higher_order_ops.py CondHigherOrderVariable, MapHigherOrderVariable,
WhileLoopHigherOrderVariable, ScanHigherOrderVariable
Differs: what the operators do not take is a graph break, after which eager's own call says what it says; functions whose results
have other shapes are one of these, and so is an int that a loop carries. `associative_scan` is not known: without a GPU it is
`torch.vmap` of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from refimpl._torch import HigherOrderOperator, storage_key
from refimpl._torch import hop_map as map_function
from refimpl._torch import hop_scan as scan_function
from refimpl._torch import hop_while_loop as while_loop_function
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.symbolic import polyfills
from refimpl.capture.symbolic.builtin_calls import Rule
from refimpl.capture.symbolic.graph_functions import differentiable_scan
from refimpl.capture.symbolic.raising import unsupported
from refimpl.capture.symbolic.subgraphs import SubGraph, one_instruction, run_body
from refimpl.capture.symbolic.trees import Tree, flatten, unflatten
from refimpl.capture.symbolic.values import (
    ConstantValue,
    NumberValue,
    SequenceValue,
    TensorValue,
    Value,
)

_HIGHER_ORDER: Any = torch.ops.higher_order
_COND: HigherOrderOperator = _HIGHER_ORDER.cond
_MAP: HigherOrderOperator = _HIGHER_ORDER.map_impl
_WHILE_LOOP: HigherOrderOperator = _HIGHER_ORDER.while_loop
_SCAN: HigherOrderOperator = _HIGHER_ORDER.scan


class _Body:
    """A function that is given to an operator, run on values: its graph, and what it gives as a tree of tensors."""

    def __init__(
        self, domain: Any, what: str, function: Any, args: Sequence[Value], graph: SubGraph | None = None
    ) -> None:
        self._state = domain.state
        self.graph = SubGraph(domain.state.graph) if graph is None else graph
        self.what = what
        given = [function, SequenceValue(tuple, [*args])]
        result = run_body(domain, self.graph, polyfills.called, given, what=what)
        self.leaves, self.tree = flatten(result, domain.state.see)

    def tensors(self, leaves: Sequence[Any] | None = None) -> list[torch.Tensor]:
        """The fakes of these leaves, of all if none are given. Breaks where one is no tensor, or one that was there before."""
        leaves = self.leaves if leaves is None else leaves
        for leaf in leaves:
            if not isinstance(leaf, TensorValue):
                unsupported(f"a result of a function given to {self.what}", leaf)
            if any(isinstance(size, torch.SymInt) and not size.node.has_hint() for size in leaf.fake.shape):
                unsupported(f"{self.what} of a function whose result has a size that depends on data", leaf)
            self.graph.local(leaf.node)  # an input now, if it is one
        fakes = [leaf.fake for leaf in leaves if isinstance(leaf, TensorValue)]
        self._check_aliases(fakes)
        return fakes

    def _check_aliases(self, fakes: list[torch.Tensor]) -> None:
        inputs = [node.meta.get("example_value") for node in self.graph.graph.nodes if node.op == "placeholder"]
        taken = {storage_key(fake) for fake in inputs if isinstance(fake, torch.Tensor)}
        for fake in fakes:
            if storage_key(fake) in taken:
                what = f"{self.what}, whose function gives a view of another tensor of its,"
                raise GraphBreak("op_raises_on_fake", what=what, error="RuntimeError")
            taken.add(storage_key(fake))

    def module(self, leaves: Sequence[Any] | None = None, *, gives_one: bool = False) -> fx.GraphModule:
        """The graph, which gives these leaves, or all, as a tuple."""
        self.graph.hand_on()
        nodes = [self.graph.local(leaf.node) for leaf in (self.leaves if leaves is None else leaves)]
        return self.graph.module(nodes[0] if gives_one else nodes)


# ------------------------------------------------------------------------------------------------------------------- cond


def _cond(domain: Any, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`torch.cond(pred, true_fn, false_fn, operands=())`."""
    given = _bound(
        "torch.cond", ("pred", "true_fn", "false_fn", "operands"), args, kwargs, operands=SequenceValue(tuple, [])
    )
    pred, true_fn, false_fn, operands = map(domain.state.see, given)
    if isinstance(pred, NumberValue):
        pred = domain.state.specialised(pred)
    if isinstance(pred, ConstantValue):
        return domain.call(frame, true_fn if domain.truth(pred) else false_fn, domain.elements(operands), {})
    if not isinstance(pred, TensorValue) or pred.fake.numel() != 1:
        raise GraphBreak("op_raises_on_fake", what="torch.cond", error="RuntimeError")
    with one_instruction(domain):
        ways = [_Body(domain, "torch.cond", function, domain.elements(operands)) for function in (true_fn, false_fn)]
        tree = _one_tree("torch.cond", [way.tree for way in ways])
        constants = _constants(ways)
        tensors = [[leaf for leaf, known in zip(way.leaves, constants, strict=True) if known is None] for way in ways]
        fakes = [way.tensors(leaves) for way, leaves in zip(ways, tensors, strict=True)]
        _check_metadata("torch.cond", *fakes)
        nodes = _share(way.graph for way in ways)
        around = domain.state.graph
        names = ("cond_true", "cond_false")
        bodies = [around.attach(name, way.module(part)) for name, way, part in zip(names, ways, tensors, strict=True)]
        results = _results(domain, fakes[0], nodes)
        made = iter(_node(domain, _COND, (around.local(pred.node), *bodies, tuple(nodes)), results))
        leaves = (next(made) if known is None else known for known in constants)
        return unflatten(leaves, tree, domain.put)


def _constants(ways: Sequence[_Body]) -> list[Value | None]:
    """Of each leaf of the results what it is, where all functions give the same constant."""
    found: list[Value | None] = []
    for leaves in zip(*(way.leaves for way in ways), strict=True):
        first = leaves[0]
        is_constant = isinstance(first, ConstantValue) and type(first.value) is int
        if is_constant and not all(isinstance(leaf, ConstantValue) and leaf.value == first.value for leaf in leaves):
            unsupported(f"{ways[0].what} of functions that give different numbers", first)
        found.append(first if is_constant else None)
    return found


# -------------------------------------------------------------------------------------------------------------------- map


def _map(domain: Any, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`map(f, xs, *args)`."""
    if len(args) < 2 or kwargs:
        raise GraphBreak("op_raises_on_fake", what="map", error="TypeError")
    xs, tree = flatten(args[1], domain.state.see)
    count = _leading_size("map", xs)
    with one_instruction(domain):
        graph = SubGraph(domain.state.graph)
        slices = [_argument(domain, graph, x, _slice_of(domain, x)) for x in xs]
        body = _Body(domain, "map", args[0], [unflatten(iter(slices), tree, domain.put), *args[2:]], graph)
        fakes = body.tensors()
        nodes = graph.lifted
        around = domain.state.graph
        attribute = around.attach("map_body", body.module())
        given = [around.local(x.node) for x in xs]
        results = _results(domain, fakes, [*given, *nodes], count)
        made = _node(domain, _MAP, (attribute, given, nodes), results)
        return unflatten(iter(made), body.tree, domain.put)


# ------------------------------------------------------------------------------------------------------------------ loops


def _while_loop(domain: Any, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`while_loop(cond_fn, body_fn, carried_inputs)`."""
    cond_fn, body_fn, carried = _bound("while_loop", ("cond_fn", "body_fn", "carried_inputs"), args, kwargs)
    leaves, tree = flatten(carried, domain.state.see)
    if not isinstance(domain.state.see(carried), SequenceValue):
        raise GraphBreak("op_raises_on_fake", what="while_loop", error="RuntimeError")
    with one_instruction(domain):
        around = domain.state.graph
        graphs = [SubGraph(around), SubGraph(around)]
        bodies = []
        for graph, function in zip(graphs, (cond_fn, body_fn), strict=True):
            values = [_argument(domain, graph, leaf, _copy_of(domain, leaf)) for leaf in leaves]
            given = unflatten(iter(values), tree, domain.put)
            bodies.append(_Body(domain, "while_loop", function, domain.elements(given), graph))
        cond, body = bodies
        (pred,) = cond.tensors() if not cond.tree else (None,)
        if pred is None or pred.dtype is not torch.bool or pred.dim():
            raise GraphBreak("op_raises_on_fake", what="while_loop", error="RuntimeError")
        _one_tree("while_loop", [_as_tuple(tree), _as_tuple(body.tree)])
        _check_metadata("while_loop", [leaf.fake for leaf in leaves], body.tensors())
        nodes = _share(graphs)
        given = [around.local(leaf.node) for leaf in leaves]
        attributes = [
            around.attach("while_loop_cond", cond.module(gives_one=True)),
            around.attach("while_loop_body", body.module()),
        ]
        results = _results(domain, [leaf.fake for leaf in leaves], [*given, *nodes])
        made = _node(domain, _WHILE_LOOP, (*attributes, tuple(given), tuple(nodes)), results)
        return unflatten(iter(made), _as_tuple(tree), domain.put)


def _scan(domain: Any, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`scan(combine_fn, init, xs, *, dim=0, reverse=False)`."""
    known = {name: kwargs[name] for name in kwargs if name not in ("dim", "reverse")}
    combine_fn, init, xs = _bound("scan", ("combine_fn", "init", "xs"), args, known)
    dim = domain.constant_of(kwargs.get("dim", ConstantValue(0)), "scan")
    is_reversed = domain.constant_of(kwargs.get("reverse", ConstantValue(False)), "scan")
    carried, carried_tree = flatten(init, domain.state.see)
    elements, tree = flatten(xs, domain.state.see)
    if not carried or not elements or type(dim) is not int or type(is_reversed) is not bool:
        unsupported("scan", domain.state.see(xs))
    with one_instruction(domain):
        dim += elements[0].fake.dim() if dim < 0 and isinstance(elements[0], TensorValue) else 0
        elements = [_to_front(domain, element, dim, is_reversed) for element in elements]
        count = _leading_size("scan", elements)
        around = domain.state.graph
        graph = SubGraph(around)
        values = [_argument(domain, graph, leaf, _copy_of(domain, leaf)) for leaf in carried]
        slices = [_argument(domain, graph, x, _slice_of(domain, x)) for x in elements]
        given = [unflatten(iter(values), carried_tree, domain.put), unflatten(iter(slices), tree, domain.put)]
        body = _Body(domain, "scan", combine_fn, given, graph)
        if not body.tree or body.tree[0] is not tuple or body.tree[1] != 2:
            raise GraphBreak("op_raises_on_fake", what="scan", error="RuntimeError")
        next_tree, out_tree = body.tree[2]
        _one_tree("scan", [carried_tree, next_tree])
        fakes = body.tensors()
        _check_metadata("scan", [leaf.fake for leaf in carried], fakes[: len(carried)])
        nodes = graph.lifted
        attribute = around.attach("scan_combine", body.module())
        first, second = ([around.local(leaf.node) for leaf in leaves] for leaves in (carried, elements))
        operands = [*first, *second, *nodes]
        results = _results(domain, [leaf.fake for leaf in carried], operands)
        results += _results(domain, fakes[len(carried) :], operands, count)
        operator = differentiable_scan if any(result.requires_grad for result in results) else _SCAN
        made = _node(domain, operator, (attribute, first, second, tuple(nodes)), results)
        outs = [_from_front(domain, out, dim, is_reversed) for out in made[len(carried) :]]
        parts = [unflatten(iter(made), carried_tree, domain.put), unflatten(iter(outs), out_tree, domain.put)]
        return SequenceValue(tuple, parts)


def _to_front(domain: Any, x: Any, dim: int, is_reversed: bool) -> Any:
    if not isinstance(x, TensorValue) or not 0 <= dim < x.fake.dim():
        raise GraphBreak("op_raises_on_fake", what="scan", error="RuntimeError")
    if dim:
        x = domain.state.operator(torch.movedim, [x, ConstantValue(dim), ConstantValue(0)], {})
    return domain.state.operator(torch.flip, [x, _dims(0)], {}) if is_reversed else x


def _from_front(domain: Any, out: Any, dim: int, is_reversed: bool) -> Value:
    if is_reversed:
        out = domain.state.operator(torch.flip, [out, _dims(0)], {})
    if dim and dim < out.fake.dim():
        return domain.state.operator(torch.movedim, [out, ConstantValue(0), ConstantValue(dim)], {})
    return out


def _dims(dim: int) -> Value:
    return SequenceValue(list, [ConstantValue(dim)])


def _as_tuple(tree: Tree) -> Tree:
    """What is given as a list comes out as a tuple."""
    return (tuple, *tree[1:]) if tree and tree[0] is list else tree


# ---------------------------------------------------------------------------------------------------------- what they share


def _bound(what: str, names: Sequence[str], args: list[Any], kwargs: dict[str, Any], **defaults: Any) -> list[Any]:
    """The arguments by the names of the parameters."""
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    if len(args) > len(names) or len(named) != len(args) + len(kwargs) or not named.keys() <= {*names}:
        raise GraphBreak("op_raises_on_fake", what=what, error="TypeError")
    named = {**defaults, **named}
    if len(named) < len(names):
        raise GraphBreak("op_raises_on_fake", what=what, error="TypeError")
    return [named[name] for name in names]


def _one_tree(what: str, trees: Sequence[Tree]) -> Tree:
    if any(tree != trees[0] for tree in trees):
        raise GraphBreak(
            "op_raises_on_fake", what=f"{what}, which is given containers that differ,", error="RuntimeError"
        )
    return trees[0]


def _check_metadata(what: str, first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> None:
    """Breaks where tensors that stand for one another differ in more than data."""
    for one, other in zip(first, second, strict=True):
        if (one.dtype, one.device, one.layout) != (other.dtype, other.device, other.layout):
            seen = f"{one.dtype} on {one.device} and {other.dtype} on {other.device}"
            raise GraphBreak("op_raises_on_fake", what=f"{what}, of {seen},", error="RuntimeError")
        if one.dim() != other.dim() or any(a != b for a, b in zip(one.shape, other.shape, strict=True)):
            seen = f"{tuple(one.shape)} and {tuple(other.shape)}"
            raise GraphBreak("unsupported_operation", what=f"{what} of results of the shapes {seen}", kind="tensor")
        if any(a != b for a, b in zip(one.stride(), other.stride(), strict=True)):
            seen = f"{one.stride()} and {other.stride()}"
            raise GraphBreak("unsupported_operation", what=f"{what} of results of the strides {seen}", kind="tensor")


def _share(graphs: Any) -> list[fx.Node]:
    """Gives all of these graphs the same lifted inputs."""
    graphs = [*graphs]
    nodes = [*dict.fromkeys(node for graph in graphs for node in graph.lifted)]
    for graph in graphs:
        graph.arrange(nodes)
    return nodes


def _leading_size(what: str, xs: Sequence[Any]) -> Any:
    for x in xs:
        if not isinstance(x, TensorValue) or not x.fake.dim() or x.fake.layout is not torch.strided:
            raise GraphBreak("op_raises_on_fake", what=what, error="RuntimeError")
    sizes = [x.fake.shape[0] for x in xs]
    if not sizes or any(size != sizes[0] for size in sizes) or sizes[0] == 0:
        raise GraphBreak("op_raises_on_fake", what=what, error="RuntimeError")
    return sizes[0]


def _argument(domain: Any, graph: SubGraph, outer: Any, fake: torch.Tensor) -> TensorValue:
    """A value that the operator gives to the function."""
    value = TensorValue(graph.argument(outer.node.name, fake), fake)
    domain.state.by_fake[id(fake)] = value
    return value


def _slice_of(domain: Any, x: TensorValue) -> torch.Tensor:
    with domain.state.fake_mode:
        return x.fake.select(0, 0)


def _copy_of(domain: Any, leaf: Any) -> torch.Tensor:
    """Another tensor like it, for each turn gets another one."""
    if not isinstance(leaf, TensorValue) or leaf.fake.layout is not torch.strided:
        unsupported("a loop that carries it", leaf)
    with domain.state.fake_mode:
        return leaf.fake.clone()


def _results(
    domain: Any, templates: Sequence[torch.Tensor], operands: Sequence[fx.Node], count: Any = None
) -> list[Any]:
    """Fakes of what an operator gives: like these, or of `count` of them stacked. They have gradients if any operand has."""

    def make() -> tuple[torch.Tensor, ...]:
        return tuple(
            torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
            if count is None
            else torch.empty((count, *fake.shape), dtype=fake.dtype, device=fake.device)
            for fake in templates
        )

    fakes = [node.meta.get("example_value") for node in operands]
    with domain.state.fake_mode:
        return [*_Differentiated.apply(make, *(fake for fake in fakes if isinstance(fake, torch.Tensor)))]


class _Differentiated(torch.autograd.Function):
    """Makes fakes that depend on others, as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, make: Callable[[], tuple[torch.Tensor, ...]], *operands: torch.Tensor) -> Any:
        return make()


def _node(domain: Any, operator: Any, args: tuple[Any, ...], results: list[Any]) -> list[Value]:
    """A node, and the values of its parts."""
    node = domain.state.graph.call("call_function", operator, args, {}, tuple(results))
    return [domain.state.part_of(node, index, part) for index, part in enumerate(results)]


CONTROL_FLOW_RULES: dict[int, Rule] = {
    id(torch.cond): _cond,
    id(_COND): _cond,
    id(map_function): _map,
    id(while_loop_function): _while_loop,
    id(scan_function): _scan,
}
