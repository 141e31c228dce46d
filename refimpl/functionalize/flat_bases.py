"""Flat bases: inputs that share memory, and tensors viewed beyond their own elements, become views of a 1-D tensor.

Counterpart: merge_view_inputs (synthetic bases) in torch/_functorch/_aot_autograd/runtime_wrappers.py
Differs: a rewrite of the graph before functionalization: the flat base is an ordinary placeholder, its members ordinary
`as_strided` views, so that later code needs no rule for groups. The base covers the used part of the storage; upstream's is a
tensor that some input happens to be a view of. Only groups in which a write reaches another member are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from refimpl.functionalize.aliases import AS_STRIDED, AliasMap
from refimpl.functionalize.emitter import VALUE_META_KEYS, fake_mode_of
from refimpl.functionalize.errors import CannotFunctionalize, SymbolicMemory
from refimpl.functionalize.geometry import do_overlap, extent_of, has_symbols, is_dense, may_overlap_itself
from refimpl.trace.metadata import describe
from refimpl.trace.recording_mode import paused_recordings

Node = torch.fx.Node
_aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasGroup:
    """Placeholders that one flat placeholder replaces.

    `members` are positions among the given placeholders, `position` is that of the flat one among the new. The flat tensor has
    the `numel` elements of `dtype` from `offset` on of the storage. `value` is the node of its value at the end of the graph.
    """

    members: tuple[int, ...]
    position: int
    dtype: torch.dtype
    offset: Any
    numel: Any
    value: Node | None = None
    enlarges: bool = False  # the program enlarges the storage, which may be too small at the call

    def base(self, inputs: Sequence[Any]) -> torch.Tensor:
        """The flat tensor for a call with `inputs`: a view of the members' storage, or a copy if the storage is too small."""
        first = self.storage(inputs)
        if not self.enlarges:
            return first.as_strided((self.numel,), (1,), self.offset)
        room = first.untyped_storage().nbytes() // first.element_size() - self.offset
        present = first.as_strided((max(0, min(room, self.numel)),), (1,), self.offset)
        return present if room >= self.numel else torch.cat([present, present.new_empty(self.numel - present.numel())])

    def storage(self, inputs: Sequence[Any]) -> torch.Tensor:
        """A detached tensor of at most one element at the beginning of the members' storage."""
        member: torch.Tensor = inputs[self.members[0]].detach()
        is_as_stored = member.dtype == self.dtype and not member.is_conj() and not member.is_neg()
        count = min(1, member.untyped_storage().nbytes())  # the storage may be empty until the program enlarges it
        return member.as_strided((count,), (1,), 0) if is_as_stored else _storage_as(member, self.dtype, count)

    def with_value(self, value: Node) -> AliasGroup:
        """This group with the node of its value."""
        return replace(self, value=value)


def _storage_as(member: torch.Tensor, dtype: torch.dtype, count: int) -> torch.Tensor:
    whole = torch.empty((0,), dtype=dtype, device=member.device)
    return whole.set_(member.untyped_storage(), 0, (count,), (1,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flattened:
    """The graph to functionalize: the given one, if no input had to be replaced."""

    graph: torch.fx.Graph
    aliases: AliasMap
    written: tuple[int, ...]
    groups: tuple[tuple[AliasGroup, Node], ...]


def flattened(graph: torch.fx.Graph, alias_groups: Sequence[Sequence[int]]) -> Flattened:
    """Give flat bases to the inputs and intermediates that need one, in a copy of the graph."""
    aliases = AliasMap(graph, enlarges=True)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    written = {i for i, node in enumerate(placeholders) if aliases.writes_to(node)}
    components: list[tuple[int, ...]] = []
    grouped: set[int] = set()
    for group in alias_groups:
        strided = [i for i in group if _is_strided(placeholders[i])]
        # A program that enlarges the storage writes all of it.
        is_enlarged = any(placeholders[i] in aliases.enlarged for i in strided)
        for component in [tuple(strided)] if is_enlarged else _connected(strided, placeholders, aliases):
            grouped.update(component)
            if (len(component) > 1 and written.intersection(component)) or any(
                _needs_flat(placeholders[i], aliases) for i in component
            ):
                components.append(component)
    components.extend((i,) for i, node in enumerate(placeholders) if i not in grouped and _needs_flat(node, aliases))
    used = dict.fromkeys([*aliases.written_bases(), *aliases.enlarged])
    inner = [node for node in used if node.op != "placeholder" and _needs_flat(node, aliases)]
    for component in components:
        reached = {
            i
            for i in component
            if any(_do_regions_overlap(placeholders[i], placeholders[j], aliases) for j in written & {*component})
        }
        written |= reached
    positions = tuple(sorted(written))
    if not components and not inner:
        return Flattened(graph=graph, aliases=aliases, written=positions, groups=())
    rewriting = _Rewriting(graph, aliases, placeholders)
    groups = rewriting.replace_placeholders(sorted(components))
    rewriting.copy_the_rest(frozenset(inner))
    flat = AliasMap(rewriting.graph, enlarges=True)
    return Flattened(graph=rewriting.graph, aliases=flat, written=positions, groups=groups)


# ------------------------------------------------------------------------------------------------------------ what to flatten


def _is_strided(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested


def _region(node: Node, aliases: AliasMap) -> list[torch.Tensor]:
    """The used parts of the storage: the tensor itself, and its `as_strided` views."""
    return [node.meta["val"], *(view.meta["val"] for view in aliases.as_strided_views_of(node))]


def _needs_flat(node: Node, aliases: AliasMap) -> bool:
    """Whether the memory is written, and views reach beyond the tensor's elements or its elements overlap."""
    if node in aliases.enlarged:
        return True
    if not aliases.writes_to(node) or not _is_strided(node):
        return False
    base = node.meta["val"]
    if node.op == "placeholder" and not has_symbols(base) and may_overlap_itself(base):
        return True
    for view in aliases.as_strided_views_of(node):
        step = aliases.step_of(view)
        assert step is not None
        source = step.source.meta["val"]
        if not is_dense(source) or _bytes_of(source) != _bytes_of(base):
            return True
        (first, last), (used_first, used_last) = extent_of(source), extent_of(view.meta["val"])
        if bool(used_first < first) or bool(used_last > last):
            return True
    return False


def _bytes_of(value: torch.Tensor) -> Any:
    return value.numel() * value.element_size()


def _do_regions_overlap(a: Node, b: Node, aliases: AliasMap) -> bool:
    return a is b or any(do_overlap(x, y) for x in _region(a, aliases) for y in _region(b, aliases))


def _connected(group: Sequence[int], placeholders: Sequence[Node], aliases: AliasMap) -> list[tuple[int, ...]]:
    """Split the group into parts that do not overlap each other."""
    parts: list[list[int]] = []
    for index in group:
        touching = [
            part
            for part in parts
            if any(_do_regions_overlap(placeholders[index], placeholders[other], aliases) for other in part)
        ]
        merged = [index, *(other for part in touching for other in part)]
        parts = [part for part in parts if part not in touching]
        parts.append(merged)
    return [tuple(sorted(part)) for part in parts]


# ------------------------------------------------------------------------------------------------------------- the rewriting


class _Rewriting:
    """Copies a graph, with flat bases. Offsets remain offsets into the storage, since a flat tensor is a view of it."""

    def __init__(self, given: torch.fx.Graph, aliases: AliasMap, placeholders: Sequence[Node]) -> None:
        self.given = given
        self.aliases = aliases
        self.placeholders = placeholders
        self.graph = torch.fx.Graph()
        self.new: dict[Node, Node] = {}
        self.whole: dict[tuple[Any, ...], Node] = {}
        self.fake_mode = fake_mode_of(given)

    def replace_placeholders(self, components: Sequence[tuple[int, ...]]) -> tuple[tuple[AliasGroup, Node], ...]:
        """Copy the placeholders, with a flat placeholder for each component at the position of its first member."""
        first = {component[0]: component for component in components}
        replaced = {i for component in components for i in component}
        groups: list[tuple[AliasGroup, Node]] = []
        position = 0
        for index, node in enumerate(self.placeholders):
            if index in first:
                groups.append(self._flat_placeholder(node, first[index], position))
            elif index not in replaced:
                self.new[node] = self.graph.node_copy(node)
            else:
                continue
            position += 1
        for group, flat in groups:
            for index in group.members:
                self._member(self.placeholders[index], flat)
            for index in group.members:
                self._add_views_as_dtypes(self.placeholders[index], flat)
        return tuple(groups)

    def copy_the_rest(self, inner: frozenset[Node]) -> None:
        """Copy all other nodes. The result of an `inner` node is copied into a flat tensor."""
        for node in self.given.nodes:
            if node.op == "placeholder":
                continue
            new = self.graph.node_copy(node, self.new.__getitem__)
            self.new[node] = new
            if node in inner:
                self._flatten(node, new)

    def _flat_placeholder(self, node: Node, component: tuple[int, ...], position: int) -> tuple[AliasGroup, Node]:
        regions = [view for i in component for view in _region(self.placeholders[i], self.aliases)]
        if any(map(has_symbols, regions)):
            raise SymbolicMemory(
                node,
                seen="its sizes are symbolic, and its written memory is shared with another input or viewed beyond its elements",
                expected="integer sizes and offsets, because a flat base does not determine the sizes of its views",
                do="trace with integer sizes",
            )
        dtype = min((view.dtype for view in regions), key=lambda d: d.itemsize)
        widest = max(view.dtype.itemsize for view in regions)
        bounds = [tuple(end * view.dtype.itemsize for end in extent_of(view)) for view in regions]
        start: Any = bounds[0][0]
        stop: Any = bounds[0][1]
        for low, high in bounds[1:]:
            start = low if bool(low < start) else start
            stop = high if bool(high > stop) else stop
        start = start // widest * widest
        stop = (stop + widest - 1) // widest * widest
        offset, end = start // dtype.itemsize, stop // dtype.itemsize
        enlarges = any(self.placeholders[i] in self.aliases.enlarged for i in component)
        group = AliasGroup(
            members=component, position=position, dtype=dtype, offset=offset, numel=end - offset, enlarges=enlarges
        )
        flat = self.graph.placeholder(f"{node.name}_base")
        self._describe(flat, node, self._storage(end, dtype, node).as_strided((end - offset,), (1,), offset))
        return group, flat

    def _storage(self, numel: Any, dtype: torch.dtype, like: Node) -> torch.Tensor:
        assert self.fake_mode is not None
        with self.fake_mode, paused_recordings():
            return torch.empty((numel,), dtype=dtype, device=like.meta["val"].device)

    def _member(self, node: Node, flat: Node) -> None:
        """Replace the placeholder by a view of the flat one."""
        value = node.meta["val"]
        source = self._typed(node, flat, value.dtype)
        if value.is_conj():
            source = self._once(node, source, _aten._conj.default)
        if value.is_neg():
            source = self._once(node, source, _aten._neg_view.default)
        self.new[node] = self._view(
            node, AS_STRIDED, source, list(value.shape), list(value.stride()), value.storage_offset()
        )

    def _typed(self, like: Node, flat: Node, dtype: torch.dtype) -> Node:
        """The flat tensor viewed as `dtype`; one node per dtype."""
        return flat if dtype == flat.meta["val"].dtype else self._once(like, flat, _aten.view.dtype, dtype)

    def _once(self, like: Node, source: Node, target: Any, *args: Any) -> Node:
        """A view of the whole flat tensor, made once: the source for `as_strided` of tensors with this dtype or conjugation."""
        key = (source, target, *args)
        if key not in self.whole:
            self.whole[key] = self._view(like, target, source, *args)
        return self.whole[key]

    def _add_views_as_dtypes(self, node: Node, flat: Node) -> None:
        """Make the views of the flat tensor that `as_strided` of other dtypes needs as its source."""
        for view in self.aliases.as_strided_views_of(node):
            step = self.aliases.step_of(view)
            if step is None or step.source is node:
                continue  # its source is the placeholder itself
            if step.source.meta["val"].is_conj() or step.source.meta["val"].is_neg():
                raise CannotFunctionalize(
                    view,
                    seen="it calls as_strided on a conjugated or negated view of written memory",
                    expected="as_strided of a tensor without conjugate or negative bit",
                    do="call resolve_conj() or resolve_neg() first",
                )
            self._typed(node, flat, view.meta["val"].dtype)

    def _flatten(self, node: Node, new: Node) -> None:
        if node.op != "call_function":
            raise CannotFunctionalize(
                node,
                seen="the program writes through as_strided to a tensor attribute that is not dense in memory",
                expected="a tensor attribute that is dense in memory",
                do="make the attribute contiguous, or pass it as an input",
            )
        value = node.meta["val"]
        widest = max(view.element_size() for view in _region(node, self.aliases))
        end: Any = 0
        for view in _region(node, self.aliases):
            last = extent_of(view)[1] * view.element_size()
            end = last if bool(last > end) else end
        end = (end + widest - 1) // widest * widest // value.element_size()
        room = end
        if node in self.aliases.enlarged:
            room = self.aliases.enlarged[node] // value.element_size()
        whole = self.graph.call_function(AS_STRIDED, (new, [room], [1], 0))
        self._describe(whole, node, self._storage(room, value.dtype, node))
        if room == end:
            flat = self.graph.call_function(_aten.clone.default, (whole,))
        else:
            rest = self.graph.call_function(_aten.new_empty.default, (whole, [end - room]))
            self._describe(rest, node, self._storage(end - room, value.dtype, node))
            flat = self.graph.call_function(_aten.cat.default, ([whole, rest],))
        self._describe(flat, node, self._storage(end, value.dtype, node))
        self.new[node] = self._view(
            node, AS_STRIDED, flat, list(value.shape), list(value.stride()), value.storage_offset()
        )
        self._add_views_as_dtypes(node, flat)

    def _view(self, like: Node, target: Any, source: Node, *args: Any) -> Node:
        node = self.graph.call_function(target, (source, *args))
        assert self.fake_mode is not None
        with self.fake_mode, paused_recordings():
            self._describe(node, like, target(source.meta["val"], *args))
        return node

    def _describe(self, node: Node, like: Node, value: torch.Tensor) -> None:
        node.meta.update({key: item for key, item in like.meta.items() if key not in VALUE_META_KEYS})
        describe(node, value, self.fake_mode)
