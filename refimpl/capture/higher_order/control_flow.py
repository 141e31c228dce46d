"""`torch.cond`, `map`, `while_loop` and `scan`: nodes of torch's operators, with graphs of the functions they take.

Counterpart: torch/_dynamo/variables/higher_order_ops.py CondHigherOrderVariable, MapHigherOrderVariable,
WhileLoopHigherOrderVariable, ScanHigherOrderVariable
Differs: a call that the operator does not accept breaks the graph, and eager raises its own error. Without a GPU
`associative_scan` is no node: its Python code is interpreted, which calls the function by `torch.vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from refimpl._torch import (
    BRANCHES_MAY_WRITE,
    HigherOrderOperator,
    is_inside_function_transform,
    is_mapped,
    mapped_levels,
    transform_kinds,
)
from refimpl._torch import hop_map as map_function
from refimpl._torch import hop_scan as scan_function
from refimpl._torch import hop_while_loop as while_loop_function
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.higher_order.bodies import (
    Body,
    Tree,
    check_same,
    flatten,
    has_unknown_size,
    is_int,
    merged,
    results,
    unflatten,
    unknown_int,
)
from refimpl.capture.higher_order.graph_functions import differentiable_scan, mapped_cond, stepwise_scan
from refimpl.capture.higher_order.subgraphs import SubGraph, one_instruction
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.rules.rule_table import Rule
from refimpl.capture.values import (
    ConstantValue,
    NumberValue,
    ObjectValue,
    PartialValue,
    SequenceValue,
    TensorValue,
    Value,
    polyfills,
)
from refimpl.capture.values.value import unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_HIGHER_ORDER: Any = torch.ops.higher_order
_COND: HigherOrderOperator = _HIGHER_ORDER.cond
_MAP: HigherOrderOperator = _HIGHER_ORDER.map_impl
_WHILE_LOOP: HigherOrderOperator = _HIGHER_ORDER.while_loop
_SCAN: HigherOrderOperator = _HIGHER_ORDER.scan


# ------------------------------------------------------------------------------------------------------------------- cond


def _cond(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`torch.cond(pred, true_fn, false_fn, operands=())`."""
    given = _bound(
        "torch.cond", ("pred", "true_fn", "false_fn", "operands"), args, kwargs, operands=SequenceValue(tuple, [])
    )
    pred, true_fn, false_fn, operands = map(domain.state.realize, given)
    is_condition = isinstance(pred, NumberValue) and isinstance(pred.number, torch.SymBool)
    if isinstance(pred, NumberValue) and not is_condition:
        pred = domain.state.specialised(pred)
    if isinstance(pred, ConstantValue) and not isinstance(pred.value, (bool, int, float)):
        raise GraphBreak("op_raises_on_fake", what="torch.cond", error="RuntimeError")
    if isinstance(pred, ConstantValue):
        return domain.call(frame, true_fn if domain.truth(pred) else false_fn, domain.elements(operands), {})
    if not is_condition and (not isinstance(pred, TensorValue) or pred.fake.numel() != 1):
        raise GraphBreak("op_raises_on_fake", what="torch.cond", error="RuntimeError")
    with one_instruction(domain):
        given = domain.elements(operands)
        is_free = _may_write()  # a branch may also return its operands then
        ways = [
            Body(domain, "torch.cond", function, given, may_not_run=True, allows_writes=is_free)
            for function in (true_fn, false_fn)
        ]
        tree = _one_tree("torch.cond", [way.tree for way in ways])
        for way in ways:
            way.check(may_have_ints=True, checks_inputs=True, allows_aliases=is_free)
        if transform_kinds():
            return unflatten(iter(_cond_within_vmap(domain, pred, ways)), tree, domain.put)
        either = [_either(domain, *pair) for pair in zip(*(way.leaves for way in ways), strict=True)]
        is_known = [isinstance(leaf, ConstantValue) for leaf in either]
        outputs = [[leaf for leaf, known in zip(way.leaves, is_known, strict=True) if not known] for way in ways]
        nodes = _share(way.graph for way in ways)
        around = domain.state.graph
        names = ("cond_true", "cond_false")
        bodies = [around.attach(name, way.module(part)) for name, way, part in zip(names, ways, outputs, strict=True)]
        found = results(domain, [leaf for leaf, known in zip(either, is_known, strict=True) if not known], nodes)
        if any(isinstance(one, torch.Tensor) and one.requires_grad and has_unknown_size(one) for one in found):
            # torch computes wrong gradients here
            unsupported("a gradient of torch.cond, whose functions give other shapes,", pred)
        made = iter(_node(domain, _COND, (around.local(domain.state.argument_of(pred)), *bodies, tuple(nodes)), found))
        return unflatten(
            (leaf if known else next(made) for leaf, known in zip(either, is_known, strict=True)), tree, domain.put
        )


def _cond_within_vmap(domain: SymbolicDomain, pred: Any, ways: Sequence[Body]) -> list[Value]:
    """The results of torch.cond in a function that vmap maps. The predicate may be another for each slice."""
    state, around = domain.state, domain.state.graph
    if {*transform_kinds()} != {"Vmap"} or not isinstance(pred, TensorValue):
        unsupported("torch.cond within torch.func.grad or jvp", pred)
    fakes = [way.fakes() for way in ways]
    for one, other in zip(*fakes, strict=True):
        check_same("torch.cond", one, other)
    nodes = _share(way.graph for way in ways)
    names = ("cond_true", "cond_false")
    bodies = [around.attach(name, way.module()) for name, way in zip(names, ways, strict=True)]
    with state.fake_mode:
        found = [torch.where(pred.fake.reshape(()), one, other) for one, other in zip(*fakes, strict=True)]
    operator = mapped_cond if is_mapped(pred.fake) else _COND
    return _node(domain, operator, (around.local(pred.node), *bodies, tuple(nodes)), found)


def _either(domain: SymbolicDomain, one: Any, other: Any) -> Any:
    """A leaf of the result of either branch: the same int, an unbacked int, or a fake tensor."""
    if isinstance(one, TensorValue) and isinstance(other, TensorValue):
        return merged(domain, "torch.cond", one.fake, other.fake)
    if not (is_int(one) and is_int(other)):
        unsupported("torch.cond of functions that give one a tensor, the other a number", one)
    if isinstance(one, ConstantValue) and isinstance(other, ConstantValue) and one.value == other.value:
        return one
    return unknown_int(domain, *(domain.state.fake_of(leaf, "torch.cond") for leaf in (one, other)))


# -------------------------------------------------------------------------------------------------------------------- map


def _map(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`map(f, xs, *args)`."""
    if len(args) < 2 or kwargs:
        raise GraphBreak("op_raises_on_fake", what="map", error="TypeError")
    xs, tree = flatten(args[1], domain.state.realize)
    count = _leading_size("map", xs)
    with one_instruction(domain):
        graph = SubGraph(domain.state.graph)
        slices = [_argument(domain, graph, x, _slice_of(domain, x)) for x in xs]
        body = Body(domain, "map", args[0], [unflatten(iter(slices), tree, domain.put), *args[2:]], graph)
        body.check(checks_inputs=True)
        fakes = body.fakes()
        nodes = graph.lifted
        around = domain.state.graph
        attribute = around.attach("map_body", body.module())
        given = [around.local(x.node) for x in xs]
        made = _node(domain, _MAP, (attribute, given, nodes), results(domain, fakes, [*given, *nodes], count))
        return unflatten(iter(made), body.tree, domain.put)


# ------------------------------------------------------------------------------------------------------------------ loops


def _while_loop(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`while_loop(cond_fn, body_fn, carried_inputs)`."""
    cond_fn, body_fn, carried = _bound("while_loop", ("cond_fn", "body_fn", "carried_inputs"), args, kwargs)
    leaves, tree = flatten(carried, domain.state.realize)
    if not isinstance(domain.state.realize(carried), SequenceValue):
        raise GraphBreak("op_raises_on_fake", what="while_loop", error="RuntimeError")
    with one_instruction(domain):
        around = domain.state.graph

        def run(function: Any, has_gradients: bool) -> tuple[SubGraph, Body]:
            graph = SubGraph(around)
            copies = [_carried(domain, graph, leaf, has_gradients) for leaf in leaves]
            given = domain.elements(unflatten(iter(copies), tree, domain.put))
            is_body = function is body_fn
            return graph, Body(
                domain, "while_loop", function, given, graph, may_not_run=is_body, allows_writes=_may_write()
            )

        (one, cond), (other, body) = run(cond_fn, False), _with_gradients(partial(run, body_fn), leaves)
        graphs = [one, other]
        if not _is_condition(cond):
            raise GraphBreak("op_raises_on_fake", what="while_loop", error="RuntimeError")
        tree = _as_tuple(tree)
        if body.tree or len(leaves) != 1:  # what carries one value may also be given one, which is then the result
            _one_tree("while_loop", [tree, _as_tuple(body.tree)])
        body.check(may_have_ints=True)
        templates = [_either_turn(domain, *pair) for pair in zip(leaves, body.leaves, strict=True)]
        nodes = _share(graphs)
        given = [
            around.local(node) if isinstance(node, fx.Node) else node for node in map(domain.state.argument_of, leaves)
        ]
        found = results(domain, templates, [*given, *nodes])
        if any(map(is_int, leaves)) and any(isinstance(one, torch.Tensor) and one.requires_grad for one in found):
            unsupported("a while_loop with gradients that carries it", ConstantValue(0))
        attributes = [
            around.attach("cond_fn", cond.module(gives_one=True)),
            around.attach("body_fn", body.module()),
        ]
        made = _node(domain, _WHILE_LOOP, (*attributes, tuple(given), tuple(nodes)), found)
        return unflatten(iter(made), tree if body.tree else (), domain.put)


def _may_write() -> bool:
    """Whether the functions of torch.cond and while_loop may write to their operands, as in torch."""
    return BRANCHES_MAY_WRITE and not torch.is_grad_enabled()


def _is_condition(cond: Body) -> bool:
    """Whether the function returns a tensor of one bool, or a comparison of ints."""
    if cond.tree:
        return False
    (leaf,) = cond.leaves
    if isinstance(leaf, TensorValue):
        return leaf.fake.dtype is torch.bool and not leaf.fake.dim()
    return isinstance(leaf, NumberValue) and isinstance(leaf.number, torch.SymBool)


def _with_gradients(run: Callable[[bool], tuple[SubGraph, Body]], leaves: Sequence[Any]) -> tuple[SubGraph, Body]:
    """The body of a loop, with carried tensors that require gradients if those of any round do.

    An autograd.Function, or a question for `requires_grad`, is captured as it is with such tensors.
    """
    if not torch.is_grad_enabled() or any(isinstance(leaf, TensorValue) and leaf.fake.requires_grad for leaf in leaves):
        return run(torch.is_grad_enabled())
    found = run(False)
    returned = [leaf.fake for leaf in found[1].leaves if isinstance(leaf, TensorValue)]
    return run(True) if any(fake.requires_grad for fake in returned) else found


def _carried(domain: SymbolicDomain, graph: SubGraph, leaf: Any, has_gradients: bool) -> Value:
    """The value that the function receives for a carried leaf, in any iteration."""
    if not is_int(leaf):
        return _argument(domain, graph, leaf, _copy_of(domain, leaf, has_gradients))
    number = unknown_int(domain)
    return NumberValue(number, graph.argument("carried", number))


def _either_turn(domain: SymbolicDomain, before: Any, after: Any) -> Any:
    """A leaf of the result of a loop that carries first `before` and then `after`."""
    if is_int(before) and is_int(after):
        return unknown_int(domain)
    if not (isinstance(before, TensorValue) and isinstance(after, TensorValue)):
        unsupported("a while_loop that carries a tensor and a number in one place", before)
    check_same("while_loop", before.fake, after.fake)
    return before.fake


def _scan(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`scan(combine_fn, init, xs, *, dim=0, reverse=False)`."""
    known = {name: kwargs[name] for name in kwargs if name not in ("dim", "reverse")}
    combine_fn, init, xs = _bound("scan", ("combine_fn", "init", "xs"), args, known)
    dim = domain.constant_of(kwargs.get("dim", ConstantValue(0)), "scan")
    is_reversed = domain.constant_of(kwargs.get("reverse", ConstantValue(False)), "scan")
    carried, carried_tree = flatten(init, domain.state.realize)
    elements, tree = flatten(xs, domain.state.realize)
    if not carried or not elements or type(dim) is not int or type(is_reversed) is not bool:
        unsupported("scan", domain.state.realize(xs))
    with one_instruction(domain):
        dim += elements[0].fake.dim() if dim < 0 and isinstance(elements[0], TensorValue) else 0
        elements = [_to_front(domain, element, dim, is_reversed) for element in elements]
        count = _leading_size("scan", elements)
        around = domain.state.graph

        def run(has_gradients: bool) -> tuple[SubGraph, Body]:
            graph = SubGraph(around)
            values = [_argument(domain, graph, leaf, _copy_of(domain, leaf, has_gradients)) for leaf in carried]
            slices = [_argument(domain, graph, x, _slice_of(domain, x)) for x in elements]
            given = [unflatten(iter(values), carried_tree, domain.put), unflatten(iter(slices), tree, domain.put)]
            return graph, Body(domain, "scan", combine_fn, given, graph)

        graph, body = _with_gradients(run, [*carried, *elements])
        if not body.tree or body.tree[0] is not tuple or body.tree[1] != 2:
            raise GraphBreak("op_raises_on_fake", what="scan", error="RuntimeError")
        next_tree, out_tree = body.tree[2]
        fakes = body.fakes()
        if len(fakes) < len(carried) or _count(next_tree) != len(carried):
            raise GraphBreak("op_raises_on_fake", what="scan", error="RuntimeError")
        for leaf, fake in zip(carried, fakes, strict=False):
            check_same("scan", leaf.fake, fake)
        nodes = graph.lifted
        combine = body.module()
        attribute = around.attach("scan_combine_fn", combine)
        first, second = ([around.local(leaf.node) for leaf in leaves] for leaves in (carried, elements))
        operands = [*first, *second, *nodes]
        if transform_kinds():
            operator, found = stepwise_scan, _mapped_results(domain, combine, carried, fakes, [first, second, nodes])
        else:
            found = results(domain, [leaf.fake for leaf in carried], operands)
            found += results(domain, fakes[len(carried) :], operands, count)
            operator = differentiable_scan if any(result.requires_grad for result in found) else _SCAN
        made = _node(domain, operator, (attribute, first, second, tuple(nodes)), found)
        outs = [_from_front(domain, out, dim, is_reversed) for out in made[len(carried) :]]
        parts = [unflatten(iter(made), next_tree, domain.put), unflatten(iter(outs), out_tree, domain.put)]
        return SequenceValue(tuple, parts)


def _mapped_results(
    domain: SymbolicDomain,
    combine: fx.GraphModule,
    carried: list[Any],
    fakes: list[torch.Tensor],
    nodes: list[list[fx.Node]],
) -> list[Any]:
    """Fakes of the results of a scan in a function that vmap maps. fakes: results of one step. nodes: the operands."""
    for leaf, fake in zip(carried, fakes, strict=False):
        if mapped_levels(leaf.fake) != mapped_levels(fake):
            unsupported("scan within vmap, which carries first one tensor for all slices, then one for each,", leaf)
    given = [[node.meta["example_value"] for node in each] for each in nodes]
    with domain.state.fake_mode:
        return [*stepwise_scan(combine, *given)]


def _to_front(domain: SymbolicDomain, x: Any, dim: int, is_reversed: bool) -> Any:
    if not isinstance(x, TensorValue) or not 0 <= dim < x.fake.dim():
        raise GraphBreak("op_raises_on_fake", what="scan", error="RuntimeError")
    if dim:
        x = domain.state.operator(torch.movedim, [x, ConstantValue(dim), ConstantValue(0)], {})
    return domain.state.operator(torch.flip, [x, _dims(0)], {}) if is_reversed else x


def _from_front(domain: SymbolicDomain, out: Any, dim: int, is_reversed: bool) -> Value:
    if is_reversed:
        out = domain.state.operator(torch.flip, [out, _dims(0)], {})
    if dim and dim < out.fake.dim():
        return domain.state.operator(torch.movedim, [out, ConstantValue(0), ConstantValue(dim)], {})
    return out


def _dims(dim: int) -> Value:
    return SequenceValue(list, [ConstantValue(dim)])


def _count(tree: Tree) -> int:
    """The number of leaves."""
    return sum(map(_count, tree[2])) if tree else 1


def _as_tuple(tree: Tree) -> Tree:
    """The tree with tuples in place of lists."""
    return (tuple, *tree[1:]) if tree and tree[0] is list else tree


# ------------------------------------------------------------------------------------------------- operators by themselves


def _flat(polyfill: Any, *first: Any) -> PartialValue:
    """The function in the flat form that torch's operator takes."""
    return PartialValue(ObjectValue(polyfill), [*first], {})


def _map_operator(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`map_impl(f, xs, pos_args)`, with lists."""
    function, xs, rest = _bound("map_impl", ("f", "xs", "pos_args"), args, kwargs)
    return _map(domain, frame, [_flat(polyfills.called_with_both, function), xs, *domain.elements(rest)], {})


def _while_loop_operator(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`while_loop(cond_fn, body_fn, carried_inputs, additional_inputs)`."""
    names = ("cond_fn", "body_fn", "carried_inputs", "additional_inputs")
    cond_fn, body_fn, carried, rest = _bound("while_loop", names, args, kwargs)
    functions = [_flat(polyfills.called_before, function, rest) for function in (cond_fn, body_fn)]
    return _while_loop(domain, frame, [*functions, carried], {})


def _scan_operator(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`scan(combine_fn, init, xs, additional_inputs)`, with lists; returns one tuple."""
    combine_fn, init, xs, rest = _bound("scan", ("combine_fn", "init", "xs", "additional_inputs"), args, kwargs)
    step = _flat(polyfills.combined, combine_fn, ConstantValue(len(domain.elements(init))), rest)
    carried = SequenceValue(list, [*domain.elements(init)])
    parts = domain.elements(_scan(domain, frame, [step, carried, xs], {}))
    return SequenceValue(tuple, [item for part in parts for item in domain.elements(part)])


# ---------------------------------------------------------------------------------------------------------- what they share


def _bound(what: str, names: Sequence[str], args: list[Any], kwargs: dict[str, Any], **defaults: Any) -> list[Any]:
    """The arguments in the order of the parameters' names."""
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


def _argument(domain: SymbolicDomain, graph: SubGraph, outer: Any, fake: torch.Tensor) -> TensorValue:
    """A value for an argument that the operator passes to the function."""
    value = TensorValue(graph.argument(outer.node.name, fake), fake)
    domain.state.by_fake[id(fake)] = value
    return value


def _slice_of(domain: SymbolicDomain, x: TensorValue) -> torch.Tensor:
    with domain.state.fake_mode:
        return x.fake.select(0, 0)


def _copy_of(domain: SymbolicDomain, leaf: Any, has_gradients: bool) -> torch.Tensor:
    """A new fake like this one: the tensor is another one in each iteration. has_gradients: if it can, it requires gradients."""
    if not isinstance(leaf, TensorValue) or leaf.fake.layout is not torch.strided:
        unsupported("a loop that carries it", leaf)
    with domain.state.fake_mode:
        copy: Any = leaf.fake.clone()
    if getattr(copy, "constant", None) is not None:
        copy.constant = None  # `torch.tensor(0)` has a known value in the first round only
    can_have = copy.dtype.is_floating_point or copy.dtype.is_complex
    can_have = (
        can_have and not is_inside_function_transform()
    )  # where requires_grad_() raises, and levels have the gradients
    return copy.requires_grad_() if has_gradients and can_have and not copy.requires_grad else copy


def _node(domain: SymbolicDomain, operator: Any, args: tuple[Any, ...], parts: list[Any]) -> list[Value]:
    """The node, and the values of its outputs."""
    node = domain.state.graph.call("call_function", operator, args, {}, tuple(parts))
    return [domain.state.part_of(node, index, part) for index, part in enumerate(parts)]


def _whole(name: str, rule: Rule) -> Rule:
    """The rule, with breaks that say which operator they are of: where the operator is not captured, eager cannot run it."""

    def ruled(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        try:
            maps_only = {*transform_kinds()} <= {"Vmap"}
            if transform_kinds() and rule is not _cond and not (maps_only and rule in (_scan, _scan_operator)):
                unsupported(f"{name} within a transform of torch.func", ConstantValue(None))
            return rule(domain, frame, args, kwargs)
        except GraphBreak as reason:
            raises_by_itself = reason.kind.name == "op_raises_on_fake" and reason.is_of_body
            if reason.operator is None and not raises_by_itself:
                reason.operator = name
            raise

    return ruled


CONTROL_FLOW_RULES: dict[int, Rule] = {
    id(torch.cond): _whole("torch.cond", _cond),
    id(_COND): _whole("torch.cond", _cond),
    id(_MAP): _whole("torch.ops.higher_order.map_impl", _map_operator),
    id(_WHILE_LOOP): _whole("torch.ops.higher_order.while_loop", _while_loop_operator),
    id(_SCAN): _whole("torch.ops.higher_order.scan", _scan_operator),
    id(differentiable_scan): _whole("torch.ops.higher_order.scan", _scan_operator),
    id(stepwise_scan): _whole("torch.ops.higher_order.scan", _scan_operator),
    id(map_function): _whole("torch.ops.higher_order.map_impl", _map),
    id(while_loop_function): _whole("torch.ops.higher_order.while_loop", _while_loop),
    id(scan_function): _whole("torch.ops.higher_order.scan", _scan),
}
