"""Finds attention written in several operators: matrix products with elementwise functions in between.

A region is a set of nodes that one or more kernels can compute without scores in memory. Dependences define it, not operator
names: a tile is any elementwise function of a matrix product, with equally many elements, views of it in the same order included.
Lowering the region proves that each tile is loaded at the index where it was computed.

* forward: a product, tiles, a softmax over the last dimension, conversions, at most one factor from outside (a dropout mask), and
one product of the weights. The row maximum and the row sum of exponentials may have other users, because the backward reads them.
* gradients: two products of equal size (scores again, and the gradient of the weights), tiles, row sums of tiles, and products of
tiles.

Counterpart: torch/_inductor/fx_passes/fuse_attention.py
Differs: matches no patterns and inserts no operators: the functions between the products are computed as written.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import sympy
import torch

from refimpl._torch import pytree
from refimpl.codegen.indices import is_provably_equal, product, to_index
from refimpl.codegen.lowering import pointwise
from refimpl.codegen.lowering.state import is_apart

aten = torch.ops.aten

_PLAIN_PRODUCTS = frozenset([aten.mm.default, aten.bmm.default])
_PRODUCTS = _PLAIN_PRODUCTS | {aten.addmm.default, aten.baddbmm.default}
_MOVES = frozenset(
    [
        aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.transpose.int, aten.permute.default,
        aten.t.default,
    ]
)  # fmt: skip
COPIES = _MOVES | {
    aten.expand.default, aten.clone.default, aten.detach.default, aten.alias.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.squeeze.default, aten.unsqueeze.default,
}  # fmt: skip
"""Views that keep or expand all elements, and copies: users may load from their input instead. Alias annotations do not tell
these views from others that change values or omit some (`_conj`, `view.dtype`, `as_strided`), and copies have none."""
_CONVERSIONS = COPIES | {aten._to_copy.default, torch.ops.prims.convert_element_type.default}
_OF_TILES = _CONVERSIONS | pointwise.RULES.keys()
_SUMS = frozenset([aten.sum.dim_IntList])

Kind = Literal["forward", "gradients"]


@dataclass(frozen=True)
class Softmax:
    """A softmax of the scores over their last dimension: row maximum, exponentials, their row sum, and weights."""

    scores: torch.fx.Node
    greatest: torch.fx.Node
    total: torch.fx.Node
    weights: torch.fx.Node


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes in the graph's order that tiled kernels compute.

    products: products of which tiles are functions; results: products of tiles; sums: row sums of tiles. Only these, and a
    softmax's row maximum and total, have users outside.
    """

    kind: Kind
    nodes: tuple[torch.fx.Node, ...]
    products: tuple[torch.fx.Node, ...]
    results: tuple[torch.fx.Node, ...]
    sums: tuple[torch.fx.Node, ...] = ()
    softmax: Softmax | None = None
    tails: Mapping[torch.fx.Node, tuple[torch.fx.Node, ...]] = field(default_factory=dict)
    """Views of results up to a copy, if each view is the only user of its input. The copy is stored in place of the result."""

    @property
    def inputs(self) -> list[torch.fx.Node]:
        """Nodes outside of the region that it reads."""
        inside = set(self.nodes)
        found = (source for node in self.nodes for source in node.all_input_nodes if source not in inside)
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Regions:
    """The regions of a graph. `left`: reasons why candidates were rejected."""

    found: tuple[Region, ...] = ()
    left: tuple[str, ...] = ()

    def counts(self) -> Counter[str]:
        """Counts of regions by kind, and of rejections by reason."""
        return Counter([*(region.kind for region in self.found), *(f"left: {reason}" for reason in self.left)])


class NotARegion(Exception):
    """Why a candidate is not a region."""


def find_regions(graph: torch.fx.Graph) -> Regions:
    """Finds regions that do not overlap, each of which can be computed at one point of the graph."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    found: list[Region] = []
    left: list[str] = []
    taken: set[torch.fx.Node] = set()
    candidates = (*_candidates(graph, order, find_forward), *_candidates(graph, order, find_gradients))
    for candidate in candidates:
        made = candidate if isinstance(candidate, str) else _with_tails(candidate, order)
        if isinstance(made, str):
            left.append(made)
        elif taken.isdisjoint(made.nodes):
            if is_in_order(graph, [*found, made]):
                found.append(made)
                taken.update(made.nodes)
            else:
                left.append("no point of the graph where all of it can be computed")
    return Regions(tuple(found), tuple(left))


def _candidates(
    graph: torch.fx.Graph, order: dict[torch.fx.Node, int], find: Callable[..., Region | None]
) -> Iterator[Region | str]:
    for node in graph.nodes:
        try:
            made = find(node, order)
        except NotARegion as reason:
            yield str(reason)
        else:
            if made is not None:
                yield made


def _with_tails(region: Region, order: dict[torch.fx.Node, int]) -> Region:
    tails = {result: _tail(result) for result in region.results}
    nodes = sorted([*region.nodes, *(node for tail in tails.values() for node in tail)], key=order.__getitem__)
    return replace(region, nodes=tuple(nodes), tails=tails)


def _tail(result: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """The views of a result up to a copy in another order. Empty if it is not copied."""
    tail: list[torch.fx.Node] = []
    node = result
    while len(node.users) == 1:
        (node,) = node.users
        tail.append(node)
        if node.target is aten.clone.default:
            return tuple(tail)
        if node.target not in _MOVES:
            break
    return ()


def never(node: torch.fx.Node) -> bool:
    """False for every node."""
    return False


def find_forward(
    node: torch.fx.Node, order: dict[torch.fx.Node, int], is_ignored: Callable[[torch.fx.Node], bool] = never
) -> Region | None:
    """The region whose softmax this node completes. None if it completes no softmax of a product. Raises NotARegion if the rest
    is not a region. `is_ignored`: users that do not count."""
    softmax = softmax_of(node)
    if softmax is None:
        return None
    tiles, products = _above(softmax.scores)
    if not products:
        return None
    if len(products) > 1:
        raise NotARegion("scores of several products")
    weights, factors, results = _below(node, is_ignored)
    if not results:
        if _is_in_a_product(node, is_ignored):
            raise NotARegion("weights that are computed with")
        return None
    if not _is_last(softmax):
        raise NotARegion("a softmax over another dimension than the last")
    (result, *others) = results
    if not result.users:
        return None
    if others or result.target not in _PLAIN_PRODUCTS or result.args[0] not in weights or result.args[1] in weights:
        raise NotARegion("weights in several products, or on the right of one")
    exponentials = _source(node, 0)
    inside = {*tiles, *weights, *products, result, exponentials, _source(exponentials, 0)}
    inside |= {softmax.greatest, softmax.total}
    may_leave = {result, softmax.greatest, softmax.total}
    if len(factors) > 1 or not inside.isdisjoint(factors):
        raise NotARegion("weights that are computed with")
    if not all(_is_held(factor, weights) for factor in factors):
        raise NotARegion("weights whose product with a factor may be beyond the dtype it is converted to")
    _check_inside(inside - may_leave, inside, is_ignored)
    return Region(
        kind="forward",
        nodes=tuple(sorted(inside, key=order.__getitem__)),
        products=products,
        results=(result,),
        softmax=softmax,
    )


def softmax_of(node: torch.fx.Node) -> Softmax | None:
    """The softmax that a node completes: exp(scores - maximum) / sum."""
    if node.target is not aten.div.Tensor:
        return None
    exponentials, total = _arguments(node)[:2]
    if not _is_call(exponentials, aten.exp.default) or not _is_call(total, aten.sum.dim_IntList):
        return None
    difference = _arguments(exponentials)[0]
    if total.args[0] is not exponentials or not _is_call(difference, aten.sub.Tensor) or difference.kwargs:
        return None
    scores, greatest = _arguments(difference)
    if not _is_call(greatest, aten.amax.default) or greatest.args[0] is not scores or not _is_node(scores):
        return None
    if _dims(total) != _dims(greatest):
        return None
    return Softmax(scores, greatest, total, node)


def _dims(node: torch.fx.Node) -> tuple[Any, ...]:
    """Reduced dimensions that are kept with size 1. Empty if they are not kept, or if all dimensions are reduced."""
    _, dims, keeps, *_ = (*_arguments(node), (), False)
    rank = max(_fake(node.args[0]).dim(), 1)
    return tuple(dim % rank for dim in dims or ()) if keeps is True and node.kwargs.get("dtype") is None else ()


def _is_last(softmax: Softmax) -> bool:
    return _dims(softmax.total) == (_fake(softmax.scores).dim() - 1,)


def _above(node: torch.fx.Node) -> tuple[set[torch.fx.Node], tuple[torch.fx.Node, ...]]:
    """The tiles that a tile depends on, itself included, and the products at their ends."""
    size = size_of(node)
    seen: dict[torch.fx.Node, None] = {}
    stack = [node]
    while stack:
        one = stack.pop()
        if one in seen:
            continue
        seen[one] = None
        if one.target in _OF_TILES:
            stack.extend(source for source in one.all_input_nodes if has_size(source, size))
    products = tuple(one for one in reversed(seen) if one.target in _PRODUCTS)
    tiles: set[torch.fx.Node] = set(products)
    grows = True
    while grows:
        more = {one for one in seen if one not in tiles and one.target in _OF_TILES}
        more = {one for one in more if not tiles.isdisjoint(one.all_input_nodes)}
        tiles |= more
        grows = bool(more)
    return tiles, products


def _below(
    node: torch.fx.Node, is_ignored: Callable[[torch.fx.Node], bool]
) -> tuple[set[torch.fx.Node], list[torch.fx.Node], list[torch.fx.Node]]:
    """A tile with its conversions and its elementwise products; the factors of these; and the matrix products of all of them."""
    size = size_of(node)
    tiles: set[torch.fx.Node] = {node}
    factors: list[torch.fx.Node] = []
    results: dict[torch.fx.Node, None] = {}
    stack = [node]
    while stack:
        tile = stack.pop()
        for user in tile.users:
            if is_ignored(user) or user in tiles:
                continue
            if user.target in _PRODUCTS:
                results[user] = None
                continue
            others = [source for source in user.all_input_nodes if source is not tile]
            is_scaled = user.target is aten.mul.Tensor and len(others) == 1 and _is_node(others[0])
            if has_size(user, size) and (is_scaled or user.target in _CONVERSIONS):
                tiles.add(user)
                stack.append(user)
                factors += others if is_scaled else []
    return tiles, factors, list(results)


def _is_held(factor: torch.fx.Node, tiles: set[torch.fx.Node]) -> bool:
    """Whether a factor is finite in each floating dtype that its products with tiles are converted to."""
    scaled = [user for user in factor.users if user in tiles]
    dtypes = {_fake(tile).dtype for user in scaled for tile in conversions_of(user)}
    return all(_largest(factor) <= torch.finfo(dtype).max for dtype in dtypes if dtype.is_floating_point)


def _largest(value: Any) -> float:
    """An upper bound of the finite magnitudes in a tensor, as far as conversions and constant factors show one."""
    if not _is_node(value):
        return math.inf
    dtype, found = _fake(value).dtype, math.inf
    if dtype == torch.bool:
        return 1.0
    if value.target in _CONVERSIONS:
        found = _largest(value.args[0])
    elif value.target is aten.mul.Tensor and isinstance(value.args[1], (int, float)):
        found = _largest(value.args[0]) * abs(value.args[1])
    return min(found, torch.finfo(dtype).max) if dtype.is_floating_point else found


def conversions_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """A tile, its conversions, and theirs."""
    found = {node: None}
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if user not in found and user.target in _CONVERSIONS and has_size(user, size_of(node)):
                found[user] = None
                stack.append(user)
    return list(found)


def _is_in_a_product(node: torch.fx.Node, is_ignored: Callable[[torch.fx.Node], bool]) -> bool:
    """Whether any function of a tile with equally many elements is an operand of a matrix product."""
    size = size_of(node)
    seen = {node}
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if user in seen or is_ignored(user):
                continue
            if user.target in _PRODUCTS:
                return True
            seen.add(user)
            if isinstance(user.meta.get("val"), (tuple, list)) or has_size(user, size):
                stack.append(user)
    return False


def _check_inside(
    nodes: Iterable[torch.fx.Node], inside: set[torch.fx.Node], is_ignored: Callable[[torch.fx.Node], bool]
) -> None:
    for node in nodes:
        if any(user not in inside and not (is_ignored(user) or reads_no_values(user)) for user in node.users):
            raise NotARegion("scores or weights are used elsewhere")


def find_gradients(
    node: torch.fx.Node, order: dict[torch.fx.Node, int], is_ignored: Callable[[torch.fx.Node], bool] = never
) -> Region | None:
    """The region with a row sum of tiles that depend on two products, as the gradient of a softmax has."""
    if node.target not in _SUMS or not _is_node(node.args[0]) or _dims(node) != (_fake(node.args[0]).dim() - 1,):
        return None
    above, products = _above(_source(node, 0))
    if len(products) < 2 or not any(tile.target is aten.exp.default for tile in above):
        return None
    if len(products) > 2:
        raise NotARegion("gradients of several products")
    size = size_of(node.args[0])
    sums, results = {node}, dict[torch.fx.Node, None]()
    tiles, stack = set(products), [*products, node]
    while stack:
        for user in stack.pop().users:
            if user in tiles or is_ignored(user):
                continue
            if user.target in _OF_TILES and has_size(user, size):
                tiles.add(user)
                stack.append(user)
            elif user.target in _PLAIN_PRODUCTS and user not in products:
                results[user] = None
    inside = {*tiles, *sums, *results}
    _check_inside(inside - results.keys(), inside, is_ignored)
    if not results:
        return None
    if any(len(tiles.intersection(result.all_input_nodes)) > 1 for result in results):
        raise NotARegion("a product of two tiles")
    return Region(
        kind="gradients",
        nodes=tuple(sorted(inside, key=order.__getitem__)),
        products=tuple(sorted(products, key=order.__getitem__)),
        results=tuple(sorted(results, key=order.__getitem__)),
        sums=tuple(sums),
    )


# ---- the graph with each region as one step


def in_order(graph: torch.fx.Graph, regions: Iterable[Region]) -> list[torch.fx.Node | Region]:
    """Nodes outside of regions, and regions, each after its inputs, otherwise in the graph's order. Mutating calls keep their
    position among all others, and random numbers are drawn in the graph's order.

    Nodes and regions on a cycle (a region that reads a function of its own result) are missing.
    """
    order = {node: at for at, node in enumerate(graph.nodes)}
    whole: dict[torch.fx.Node, Region] = {node: region for region in regions for node in region.nodes}
    items: dict[torch.fx.Node | Region, int] = {}
    for node, at in order.items():
        items[whole.get(node) or node] = at  # for a region, the position of its last node
    waits: dict[torch.fx.Node | Region, set[torch.fx.Node | Region]] = {}
    readers: dict[torch.fx.Node | Region, list[torch.fx.Node | Region]] = {item: [] for item in items}
    for item in items:
        sources = item.inputs if isinstance(item, Region) else () if reads_no_values(item) else item.all_input_nodes
        waits[item] = {whole.get(source) or source for source in sources}
    for before, after in _in_turn(order, whole):
        waits[after].add(before)
    for item, sources in waits.items():
        for source in sources:
            readers[source].append(item)
    numbered = {at: item for item, at in items.items()}
    ready = [items[item] for item in items if not waits[item]]
    heapq.heapify(ready)
    ordered: list[torch.fx.Node | Region] = []
    while ready:
        item = numbered[heapq.heappop(ready)]
        ordered.append(item)
        for reader in readers[item]:
            waits[reader].discard(item)
            if not waits[reader]:
                heapq.heappush(ready, items[reader])
    return ordered


def _in_turn(
    order: Iterable[torch.fx.Node], whole: Mapping[torch.fx.Node, Region]
) -> Iterator[tuple[torch.fx.Node | Region, torch.fx.Node | Region]]:
    """Pairs whose order must stay: a mutating call with the calls before and after it, and random draws."""
    since: list[torch.fx.Node | Region] = []
    wrote: torch.fx.Node | None = None
    drew: torch.fx.Node | None = None
    for node in order:
        if node.op in ("placeholder", "get_attr"):
            continue
        item = whole.get(node) or node
        if wrote is not None:
            yield wrote, item
        if draws(node):
            if drew is not None:
                yield drew, item
            drew = node
        if _writes(node):
            yield from ((before, node) for before in since)
            since, wrote = [], node
        else:
            since.append(item)


def _writes(node: torch.fx.Node) -> bool:
    """Whether it is a call that may not be reordered with others."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(node.meta.get("val")))
    return schema.is_mutable


def draws(node: torch.fx.Node) -> bool:
    """Whether the operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def drawn_for(regions: Iterable[Region]) -> set[torch.fx.Node]:
    """Random draws that factors of regions are elementwise functions of. They are stored in memory, since they are smaller than
    the factors."""
    stack = [source for region in regions for source in region.inputs]
    seen: set[torch.fx.Node] = set()
    while stack:
        node = stack.pop()
        if node not in seen and not draws(node) and node.target in _OF_TILES:
            stack += (source for source in node.all_input_nodes if has_size(source, size_of(node)))
        seen.add(node)
    return {node for node in seen if draws(node)}


def reads_no_values(node: torch.fx.Node) -> bool:
    """Whether a call reads only the shape and strides of its input, and is not called at run time."""
    if node.target is not aten.empty_like.default or not _is_node(node) or not _is_node(node.args[0]):
        return False
    source = _fake(node.args[0])
    return source.layout == torch.strided and source.device.type != "meta" and is_apart(_fake(node))


def is_in_order(graph: torch.fx.Graph, regions: list[Region]) -> bool:
    """Whether each region can be computed at one point."""
    ordered = in_order(graph, regions)
    return len(ordered) == len(graph.nodes) - sum(len(region.nodes) - 1 for region in regions)


# ---- nodes


def _is_node(value: Any) -> bool:
    return isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _is_call(value: Any, target: Any) -> bool:
    return _is_node(value) and value.target is target


def _arguments(node: torch.fx.Node) -> tuple[Any, ...]:
    return node.args


def _source(node: torch.fx.Node, at: int) -> torch.fx.Node:
    source = node.args[at]
    assert isinstance(source, torch.fx.Node)
    return source


def _fake(node: Any) -> torch.Tensor:
    return node.meta["val"]


def size_of(node: Any) -> sympy.Expr:
    """The number of elements of a tensor."""
    return product(to_index(size) for size in _fake(node).shape)


def has_size(node: torch.fx.Node, size: sympy.Expr) -> bool:
    """Whether it is a tensor with that many elements."""
    return _is_node(node) and is_provably_equal(size_of(node), size)
