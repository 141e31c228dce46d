"""Calls of nested compile regions: nodes of `invoke_subgraph`, with one graph for all calls that compute the same.

Counterpart: torch/_dynamo/variables/higher_order_ops.py InvokeSubgraphHigherOrderVariable, are_same_graph_modules;
torch/_higher_order_ops/passes/inline_invoke_subgraph.py
Differs: two calls share a graph if the text of their graphs, the objects in it and the metadata of their inputs are equal. A call
is captured to find out, unless it is known to read what an earlier one has read (region_reuse).
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.node import map_arg

from refimpl._torch import (
    LazyGraphModule,
    call_of_region,
    is_exporting,
    mark_of_region,
    regions_told_apart,
    storage_key,
)
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.config import config
from refimpl.capture.higher_order.operators import call_operator
from refimpl.capture.higher_order.region_reuse import noted, region_inputs, repeated
from refimpl.capture.higher_order.subgraphs import SubGraph, computed_in, one_instruction, run_body
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.rules.rule_table import Rule
from refimpl.capture.state.graph import SegmentGraph
from refimpl.capture.state.snapshot import reachable
from refimpl.capture.values import (
    LazyValue,
    NumberValue,
    ObjectValue,
    PartialValue,
    SequenceValue,
    TensorValue,
    Value,
    polyfills,
)
from refimpl.trace.higher_order.compile_regions import content

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_OPERATOR: Any = torch.ops.higher_order.invoke_subgraph
_WHAT = "a nested compile region"
_MOST_GRAPHS = "__marked_compile_region_max_reuse_entries__"  # the attribute of a marked function, as torch names it


def _region(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call of the region's function; see nested_compile_region. A break says that it is one of the operator."""
    try:
        return _called(domain, *args, named=kwargs)
    except GraphBreak as reason:
        raises_by_itself = reason.kind.name == "op_raises_on_fake" and reason.is_of_body
        if reason.operator is None and not raises_by_itself:
            reason.operator = "torch.ops.higher_order.invoke_subgraph"
        raise


def _called(domain: SymbolicDomain, function: Any, *given: Any, named: dict[str, Any]) -> Any:
    outer = domain.state.graph
    with one_instruction(domain):
        inputs = region_inputs(domain, function, given, named)
        marked = _marked(domain, function)
        earlier = outer.region_calls.setdefault(_code_of(marked), [])
        found = None if inputs is None else repeated(domain, _OPERATOR, earlier, inputs)
        if found is not None:
            return found
        graph = SubGraph(outer)
        result, made = capture_region(domain, graph, function, given, named)
        body = graph.module([leaf.node for leaf in made])
        graph.hand_on()
        fakes = tuple(leaf.fake if isinstance(leaf, TensorValue) else leaf.number for leaf in made)
        name = _attached(outer, body, marked)
        node_args = (outer.attribute(name), name, *graph.lifted)
        node = outer.call("call_function", _OPERATOR, node_args, {}, fakes)
        for index, (leaf, fake) in enumerate(zip(made, fakes, strict=True)):
            leaf.node = outer.part(node, index, fake)
        call = None if inputs is None else noted(domain, inputs, graph, name, result, made)
        if call is not None:
            earlier.append(call)
    return result


def capture_region(
    domain: SymbolicDomain, graph: SubGraph, function: Any, given: Sequence[Any], named: dict[str, Any]
) -> tuple[Value, list[Any]]:
    """Runs a region's function into a graph. Returns its result and what the graph has to return."""
    values = [function, SequenceValue(tuple, [*given]), domain.named(named)]
    result = run_body(domain, graph, polyfills.called_named, values, what=_WHAT, allows_effects=True)
    made = computed_in(domain, graph, [result, *values])
    if _passes_on(domain, graph, result):
        raise GraphBreak("aliases_of_region", what=_WHAT)
    _check_memory(graph, made)
    return result, made


def _passes_on(domain: SymbolicDomain, graph: SubGraph, result: Any) -> bool:
    """Whether a tensor of the result is one that was there before."""
    for thing in reachable([result]):
        if isinstance(thing, LazyValue) and isinstance(thing.object, torch.Tensor):
            return True
        if isinstance(thing, TensorValue) and thing.node.graph is not graph.graph:
            return True
    return False


def _check_memory(graph: SubGraph, made: Sequence[TensorValue | NumberValue]) -> None:
    """Breaks the graph if two inputs share memory, or a result does with an input or another result.

    The operator's graph is compiled on its own, so nothing outside of it would know.
    """
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    inputs = [fake for node in placeholders if _is_dense(fake := node.meta.get("example_value"))]
    given = [storage_key(fake) for fake in inputs]
    computed = [storage_key(leaf.fake) for leaf in made if isinstance(leaf, TensorValue) and _is_dense(leaf.fake)]
    if len({*given, *computed}) < len(given) + len(computed):
        raise GraphBreak("aliases_of_region", what=_WHAT)


def _is_dense(fake: Any) -> bool:
    return isinstance(fake, torch.Tensor) and fake.layout is torch.strided


def _marked(domain: SymbolicDomain, function: Any) -> Any:
    """The value of what was marked as a region, without the methods and partial functions around it."""
    known = domain.state.realize(function)
    while hasattr(known, "function"):
        known = domain.state.realize(known.function)
    return known


def _code_of(marked: Any) -> Any:
    """What calls of the same region have in common: the code, since each layer of a model has a bound method of its own."""
    found = getattr(marked, "object", marked)
    if isinstance(found, torch.nn.Module):
        found = type(found).forward
    return getattr(found, "__code__", getattr(marked, "code", None))


# ------------------------------------------------------------------------------------------------------- one graph for all


def _attached(outer: SegmentGraph, body: fx.GraphModule, marked: Any) -> str:
    """The name of the region's graph in `outer`: of an equal graph that the segment has already, or a new one.

    Breaks the graph if the region then has more graphs than its `max_reuse_entries` admit.
    """
    code = _code_of(marked)
    whole = outer
    while isinstance(whole, SubGraph):
        whole = whole.around
    key = (code, *content(body, "example_value"))
    known = whole.regions.get(key)
    if known is None:
        most = getattr(getattr(marked, "object", None), _MOST_GRAPHS, None)
        if most is not None and not is_exporting() and sum(other[0] is code for other in whole.regions) >= most:
            raise GraphBreak("too_many_graphs_of_region", what=most)
        name = f"subgraph_{len(whole.regions)}"
        while hasattr(whole.attributes, name):
            name = f"{name}_"
        known = whole.regions[key] = name, body
    name, body = known
    if not hasattr(outer.attributes, name):
        outer.attributes.add_module(name, body)
    return name


# ------------------------------------------------------------------------------------------------------ regions of one call


def inline_regions(module: fx.GraphModule) -> None:
    """Put the graphs of regions that are called once in place of their calls: nothing is gained by a graph of its own. In place.

    All regions are put in place with the setting `inline_invoke_subgraph`, none with neither setting.
    """
    if not (config.inline_invoke_subgraph or config.inline_single_use_invoke_subgraph):
        return
    counts: dict[int, int] = {}
    for graph_module in [each for each in module.modules() if isinstance(each, fx.GraphModule)]:
        for node in _calls(graph_module):
            body = id(getattr(graph_module, node.args[0].target))
            counts[body] = counts.get(body, 0) + 1
    _inline(module, lambda body: config.inline_invoke_subgraph or counts[id(body)] == 1, set())


def runnable(module: fx.GraphModule, compiled: Any) -> Any:
    """What the backend gave; for the graph module itself one without regions, whose operator has gradients in traces only."""
    if compiled is not module and getattr(compiled, "__self__", None) is not module:
        return compiled
    if not any(_calls(each) for each in module.modules() if isinstance(each, fx.GraphModule)):
        return compiled
    whole = _copied(module)
    _inline(whole, lambda _: True, set())
    return whole


def around_backend(module: fx.GraphModule) -> contextlib.AbstractContextManager[Any]:
    """A block in which a backend gets the graph: torch's own ones need to be told where regions of this graph begin."""
    has_regions = any(_calls(each) for each in module.modules() if isinstance(each, fx.GraphModule))
    return regions_told_apart() if has_regions else contextlib.nullcontext()


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph and of the graphs in it, with the same parameters and objects."""
    made = LazyGraphModule(module, fx.Graph())
    for name, child in module.named_children():
        setattr(made, name, _copied(child) if isinstance(child, fx.GraphModule) else child)
    for node in module.graph.find_nodes(op="get_attr"):
        if not hasattr(made, str(node.target)):
            setattr(made, str(node.target), operator.attrgetter(str(node.target))(module))
    made.meta.update(module.meta)
    new: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        new[node] = made.graph.node_copy(node, new.__getitem__)
    made.recompile()
    return made


def _calls(module: fx.GraphModule) -> list[Any]:
    return module.graph.find_nodes(op="call_function", target=_OPERATOR)


def _inline(module: fx.GraphModule, is_wanted: Callable[[Any], bool], done: set[int]) -> None:
    if id(module) in done:
        return
    done.add(id(module))
    for child in list(module.children()):
        if isinstance(child, fx.GraphModule):
            _inline(child, is_wanted, done)
    changed = False
    for node in _calls(module):
        body = getattr(module, node.args[0].target)
        if is_wanted(body):
            _put_in_place(module, node, body)
            changed = True
    if changed:
        module.recompile()


def _put_in_place(module: fx.GraphModule, node: fx.Node, body: fx.GraphModule) -> None:
    graph, attribute = module.graph, node.args[0]
    placeholders = [each for each in body.graph.nodes if each.op == "placeholder"]
    new: dict[fx.Node, Any] = dict(zip(placeholders, node.args[2:], strict=True))
    outputs: Any = ()
    with graph.inserting_before(node):
        for each in body.graph.nodes:
            if each.op == "get_attr":
                new[each] = _moved(module, body, each)
            elif each.op == "output":
                outputs = map_arg(each.args[0], new.__getitem__)
            elif each.op != "placeholder":
                new[each] = graph.node_copy(each, new.__getitem__)
    for part in list(node.users):
        index: Any = part.args[1]
        part.replace_all_uses_with(outputs[index])
        graph.erase_node(part)
    graph.erase_node(node)
    assert isinstance(attribute, fx.Node)
    if not attribute.users:
        graph.erase_node(attribute)
        if not any(each.op == "get_attr" and each.target == attribute.target for each in graph.nodes):
            delattr(module, str(attribute.target))


def _moved(module: fx.GraphModule, body: fx.GraphModule, node: fx.Node) -> fx.Node:
    """The attribute of the region's graph as one of `module`."""
    found = getattr(body, str(node.target))
    name = str(node.target)
    while getattr(module, name, found) is not found:
        name = f"{name}_"
    setattr(module, name, found)
    made = module.graph.get_attr(name)
    made.meta = dict(node.meta)
    return made


def _mark(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A function is marked as a region within what is captured. The options decide nothing here."""
    given = [*args, *(value for name, value in kwargs.items() if name in ("fn", "func"))]
    if not given or domain.is_none(given[0]):
        return ObjectValue(mark_of_region)
    return PartialValue(ObjectValue(call_of_region), given[:1], {})


def _direct(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The operator is called by the program itself. Only a graph that was captured before has a name for its region."""
    function = domain.state.realize(args[0]) if args else None
    if isinstance(function, ObjectValue) and isinstance(function.object, fx.GraphModule):
        return call_operator(domain, frame, ObjectValue(_OPERATOR), args, kwargs)
    raise GraphBreak("direct_call_of_region")


REGION_RULES: dict[int, Rule] = {
    id(call_of_region): _region,
    id(mark_of_region): _mark,
    id(_OPERATOR): _direct,
}
