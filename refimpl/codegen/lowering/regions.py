"""Finds attention that a graph holds in pieces: products of matrices with what is computed between them element by element.

A region is a set of nodes that one kernel, or a few, can compute without the scores in memory. It is found by what depends on
what, and not by the names of operators in between: tiles are whatever is computed element by element from a product of matrices,
with as many elements; views of them in the same order included. Whether each tile is read at the place where it was made is
proved when the region is lowered.

* forward: a product, tiles, a softmax over the last dimension, conversions, at most one factor from outside (what dropout keeps),
  and one product of the weights. The greatest score of a row and the sum of its exponentials may be used elsewhere: the gradients
  are computed from them.
* gradients: two products of one size (scores once more, and the gradient of the weights), tiles, sums of rows of them, and
  products of tiles.

Counterpart: torch/_inductor/fx_passes/fuse_attention.py
Differs: there are no patterns to match text by, and no operator in the place of what is found: what is between the products is
computed as it is written.
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

_PRODUCTS = frozenset([aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default])
_PLAIN_PRODUCTS = frozenset([aten.mm.default, aten.bmm.default])
COPIES = frozenset(
    [
        aten.view.default,
        aten.reshape.default,
        aten._unsafe_view.default,
        aten.expand.default,
        aten.clone.default,
        aten.detach.default,
        aten.alias.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.squeeze.default,
        aten.unsqueeze.default,
        aten.transpose.int,
        aten.permute.default,
        aten.t.default,
    ]
)
"""Views that keep all elements or repeat some, and copies: their input can be read in their place. Alias annotations do not
tell them from views that change values or leave some out (`_conj`, `view.dtype`, `as_strided`), and copies have none."""
_CONVERSIONS = COPIES | {aten._to_copy.default, torch.ops.prims.convert_element_type.default}
_OF_TILES = _CONVERSIONS | pointwise.RULES.keys()
_SUMS = frozenset([aten.sum.dim_IntList])
_MOVES = frozenset(
    [
        aten.view.default,
        aten.reshape.default,
        aten._unsafe_view.default,
        aten.transpose.int,
        aten.permute.default,
        aten.t.default,
    ]
)

Kind = Literal["forward", "gradients"]


@dataclass(frozen=True)
class Softmax:
    """Of the scores, over their last dimension: greatest scores, exponentials, their sums, and weights."""

    scores: torch.fx.Node
    greatest: torch.fx.Node
    total: torch.fx.Node
    weights: torch.fx.Node


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes in the graph's order, all of which are computed by kernels of tiles.

    products: what tiles are made from; results: products of tiles; sums: of rows of tiles. Nothing else of it is used outside,
    but for a softmax's greatest scores and totals.
    """

    kind: Kind
    nodes: tuple[torch.fx.Node, ...]
    products: tuple[torch.fx.Node, ...]
    results: tuple[torch.fx.Node, ...]
    sums: tuple[torch.fx.Node, ...] = ()
    softmax: Softmax | None = None
    tails: Mapping[torch.fx.Node, tuple[torch.fx.Node, ...]] = field(default_factory=dict)
    """Views of results, each the only one that uses what it is of, up to a copy: this is what is stored."""

    @property
    def inputs(self) -> list[torch.fx.Node]:
        """What it reads from outside."""
        inside = set(self.nodes)
        found = (source for node in self.nodes for source in node.all_input_nodes if source not in inside)
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Regions:
    """Of a graph. `left`: why what looked like one is none, by reason."""

    found: tuple[Region, ...] = ()
    left: tuple[str, ...] = ()

    def counts(self) -> Counter[str]:
        """Of both."""
        return Counter([*(region.kind for region in self.found), *(f"left: {reason}" for reason in self.left)])


class NotARegion(Exception):
    """What looked like a region is none, and why."""


def find_regions(graph: torch.fx.Graph) -> Regions:
    """Those that do not overlap and can be computed at one point of the graph each."""
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
    """What becomes of a result up to a copy in another order; nothing if it is not copied."""
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
    """No node."""
    return False


def find_forward(
    node: torch.fx.Node, order: dict[torch.fx.Node, int], is_ignored: Callable[[torch.fx.Node], bool] = never
) -> Region | None:
    """The region whose softmax a node completes. None if it completes none, or one of something else than a product; NotARegion
    where it is one of a product, and no region. `is_ignored`: users that do not count."""
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
    """That which a node completes: what is written as the exponential of scores less their greatest, divided by its sum."""
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
    """The dimensions that stay with size 1; none where they do not stay, or all do."""
    _, dims, keeps, *_ = (*_arguments(node), (), False)
    rank = max(_fake(node.args[0]).dim(), 1)
    return tuple(dim % rank for dim in dims or ()) if keeps is True and node.kwargs.get("dtype") is None else ()


def _is_last(softmax: Softmax) -> bool:
    return _dims(softmax.total) == (_fake(softmax.scores).dim() - 1,)


def _above(node: torch.fx.Node) -> tuple[set[torch.fx.Node], tuple[torch.fx.Node, ...]]:
    """Tiles that a tile is computed from, itself included, and the products that these are computed from."""
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
    """A tile, conversions of it, and what it is multiplied by element by element; the factors; the products that all these are
    in."""
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
    """Whether a factor of tiles is a number in each floating point dtype that its products with them are converted to."""
    scaled = [user for user in factor.users if user in tiles]
    dtypes = {_fake(tile).dtype for user in scaled for tile in conversions_of(user)}
    return all(_largest(factor) <= torch.finfo(dtype).max for dtype in dtypes if dtype.is_floating_point)


def _largest(value: Any) -> float:
    """No number in a tensor is larger in magnitude, infinity left out: as far as conversions and products with numbers tell."""
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
    """A tile, and what is a conversion of it or of these."""
    found = {node: None}
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if user not in found and user.target in _CONVERSIONS and has_size(user, size_of(node)):
                found[user] = None
                stack.append(user)
    return list(found)


def _is_in_a_product(node: torch.fx.Node, is_ignored: Callable[[torch.fx.Node], bool]) -> bool:
    """Whether something with as many elements, however computed from a tile, is multiplied as a matrix."""
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
    """The region with a sum of rows of tiles that are computed from two products, as gradients of a softmax are."""
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


# ---- the graph with regions as one step each


def in_order(graph: torch.fx.Graph, regions: Iterable[Region]) -> list[torch.fx.Node | Region]:
    """Nodes outside of regions and regions, each after what it reads; as the graph has them where that leaves a choice. What
    writes into memory has the same before and after it as in the graph; random numbers are drawn in the graph's order.

    What is on a circle, as a region is that reads something computed from its own results, is missing.
    """
    order = {node: at for at, node in enumerate(graph.nodes)}
    whole: dict[torch.fx.Node, Region] = {node: region for region in regions for node in region.nodes}
    items: dict[torch.fx.Node | Region, int] = {}
    for node, at in order.items():
        items[whole.get(node) or node] = at  # of a region, that of its last node
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
    """Pairs of which the first must come first: what is before and after a call that writes, and that call; draws."""
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
    """Whether it is a call that may not move among others."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(node.meta.get("val")))
    return schema.is_mutable


def draws(node: torch.fx.Node) -> bool:
    """Random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def drawn_for(regions: Iterable[Region]) -> set[torch.fx.Node]:
    """Random numbers that factors of regions are computed from element by element: better in memory than these."""
    stack = [source for region in regions for source in region.inputs]
    seen: set[torch.fx.Node] = set()
    while stack:
        node = stack.pop()
        if node not in seen and not draws(node) and node.target in _OF_TILES:
            stack += (source for source in node.all_input_nodes if has_size(source, size_of(node)))
        seen.add(node)
    return {node for node in seen if draws(node)}


def reads_no_values(node: torch.fx.Node) -> bool:
    """Whether it is a call that asks a tensor for its shape and strides alone, and becomes no operator's call."""
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
    """How many elements a tensor has."""
    return product(to_index(size) for size in _fake(node).shape)


def has_size(node: torch.fx.Node, size: sympy.Expr) -> bool:
    """Whether it is a tensor with as many elements."""
    return _is_node(node) and is_provably_equal(size_of(node), size)
