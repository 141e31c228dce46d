"""The backward for the incoming gradients that arrive: what would be computed of the others alone is not, as in eager mode.

Counterpart: none; torch's aot_autograd puts zeros in their place
Differs: a zero is not nothing. It is nan where a derivative is infinite, and a backward of the user's may add to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from refimpl.aot.decomposed_layouts import IS_LAID_OUT_ALONE, LAID_OUT_BY, LAYS_OUT
from refimpl.aot.partition.joint import GIVEN_WITH, IS_GIVEN_FOR_SURE, SYM_TYPES, is_tangent
from refimpl.functionalize.emitter import EmitterState, fake_mode_of, map_nodes
from refimpl.functionalize.geometry import (
    extent_of,
    has_symbols,
    is_row_major,
    is_same_layout,
    is_same_places,
    is_same_shape,
)
from refimpl.functionalize.graph_pass import only_metadata
from refimpl.functionalize.views import RESHAPES, ViewWriter
from refimpl.trace.decompositions.layouts import suggested_format

_aten = torch.ops.aten
# Beside pointwise operators: kernels that ask for no layout, and views that there are of any.
_OF_ANY_LAYOUT = RESHAPES | {
    _aten.expand.default,
    _aten.permute.default,
    _aten.transpose.int,
    _aten.t.default,
    _aten.squeeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.unsqueeze.default,
    _aten.select.int,
    _aten.slice.Tensor,
    _aten.alias.default,
    _aten.detach.default,
    _aten.clone.default,
    _aten._to_copy.default,
    _aten.zeros_like.default,
    _aten.ones_like.default,
    _aten.full_like.default,
    _aten.sum.default,
    _aten.sum.dim_IntList,
    _aten.mm.default,
    _aten.bmm.default,
    _aten.cat.default,
}
# The same, in every overload; what they give is laid out by what they read.
_PACKETS_OF_ANY_LAYOUT = frozenset({
    # pointwise, which no tag says
    _aten.elu_backward, _aten.hardshrink_backward, _aten.hardsigmoid_backward, _aten.hardswish_backward,
    _aten.hardtanh_backward, _aten.leaky_relu_backward, _aten.log_sigmoid_backward, _aten.mish_backward,
    _aten.rrelu_with_noise_backward, _aten.softplus_backward, _aten.softshrink_backward, _aten._prelu_kernel_backward,
    # elements in other places, and writes of some elements
    _aten.channel_shuffle, _aten.constant_pad_nd, _aten.diagonal, _aten.flip, _aten.pixel_shuffle, _aten.pixel_unshuffle,
    _aten.roll, _aten.rot90, _aten.copy, _aten.diagonal_scatter, _aten.index, _aten.index_add, _aten.index_copy, _aten.index_fill,
    _aten.index_put, _aten.put,
    _aten.scatter, _aten.scatter_add, _aten.select_scatter, _aten.slice_scatter, _aten.tril, _aten.triu,
    # resampling
    _aten.upsample_nearest1d_backward, _aten.upsample_nearest2d_backward, _aten.upsample_nearest3d_backward,
    _aten._upsample_nearest_exact1d_backward, _aten._upsample_nearest_exact2d_backward,
    _aten._upsample_nearest_exact3d_backward, _aten.upsample_linear1d_backward, _aten.upsample_bilinear2d_backward,
    _aten.upsample_trilinear3d_backward, _aten.upsample_bicubic2d_backward, _aten._upsample_bilinear2d_aa_backward,
    _aten._upsample_bicubic2d_aa_backward,
    # sums of waves, and numbers read as others
    _aten._fft_c2c, _aten._fft_c2r, _aten._fft_r2c, _aten._conj, _aten.view_as_real,
})  # fmt: skip
# They make zeros of zeros, in the layout that they make of what they read.
_ZEROS_OF_ZEROS = frozenset({
    _aten.expand.default, _aten.permute.default, _aten.transpose.int, _aten.t.default, _aten.squeeze.default,
    _aten.squeeze.dim, _aten.squeeze.dims, _aten.unsqueeze.default, _aten.select.int, _aten.slice.Tensor,
    _aten.alias.default, _aten.detach.default, _aten.sum.default, _aten.sum.dim_IntList,
})  # fmt: skip


def tangents_behind(graph: torch.fx.Graph) -> dict[torch.fx.Node, frozenset[int]]:
    """Of every node of a backward graph, the positions of the incoming gradients that it is computed from."""
    behind: dict[torch.fx.Node, frozenset[int]] = {}
    count = 0
    for node in graph.nodes:
        if is_tangent(node):
            behind[node] = frozenset([count])
            count += 1
        else:
            behind[node] = frozenset().union(*(behind[read] for read in node.all_input_nodes))
    return behind


def is_divisible(backward: torch.fx.GraphModule) -> bool:
    """Not where numbers that sizes are made of are in the graph, which only a compile before the first call may learn of; nor
    where zeros may be read of a symbolic size that no zeros have which are there."""
    if any(isinstance(node.meta.get("val"), SYM_TYPES) for node in backward.graph.nodes):
        return False
    symbolic = [node for node in backward.graph.nodes if node.op == "call_function" and _has_symbols(node)]
    if not symbolic:
        return True
    behind = tangents_behind(backward.graph)
    sources = _zeros_by_others(backward.graph, behind)
    return all(node in sources or not _meets_others(node, behind) for node in symbolic if behind[node])


def _has_symbols(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and has_symbols(value)


def _meets_others(node: torch.fx.Node, behind: Mapping[torch.fx.Node, frozenset[int]]) -> bool:
    """Whether a call reads it beside what is computed of other incoming gradients, and would be called without it."""
    return any(
        user.op != "output" and not behind[user] <= behind[node] and _summand_left(user, {node}) is None
        for user in node.users
    )


def _summand_left(node: torch.fx.Node, absent: Collection[torch.fx.Node]) -> torch.fx.Node | None:
    """The one summand of a sum that is not absent, where it is like the sum."""
    if node.target is not _aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return None
    left = [arg for arg in node.args if arg not in absent]
    if len(left) != 1 or not isinstance(left[0], torch.fx.Node):
        return None
    summand, total = left[0].meta.get("val"), node.meta.get("val")
    if not isinstance(summand, torch.Tensor) or not isinstance(total, torch.Tensor):
        return None
    return left[0] if summand.dtype == total.dtype and is_same_shape(summand.shape, total.shape) else None


def _zeros_by_others(
    graph: torch.fx.Graph, behind: Mapping[torch.fx.Node, frozenset[int]]
) -> dict[torch.fx.Node, torch.fx.Node]:
    """Of nodes whose sizes are symbols, the argument that zeros like them are made of. Incoming gradients are there, as zeros."""
    sources: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not behind[node] or not _has_symbols(node):
            continue
        of_tangents = [read for read in node.all_input_nodes if behind[read] and _is_strided(read)]
        there = [r for r in of_tangents if r.op == "placeholder" or r in sources or not _has_symbols(r)]
        if node.target in _ZEROS_OF_ZEROS:
            fitting = there if node.all_input_nodes == [node.args[0]] else []
        else:
            fitting = [read for read in there if _is_copy_like(read.meta["val"], node.meta["val"])]
        if fitting:
            sources[node] = fitting[0]
    return sources


def _is_strided(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _is_copy_like(given: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether a copy may have the layout that is wanted."""
    if given.device != wanted.device or not is_same_shape(given.shape, wanted.shape):
        return False
    return is_same_layout(given, wanted) or is_row_major(wanted)


def without_tangents(backward: torch.fx.GraphModule, missing: Collection[int]) -> torch.fx.GraphModule | None:
    """A copy of the backward graph that reads none of the tangents at `missing`; gradients of those alone are None.

    Where what is computed of them meets what is not, a sum has one summand less, and any other operator reads zeros.
    What follows has the strides that the summand gives it. None where it is not divisible.
    """
    if not is_divisible(backward):
        return None
    fake_mode = fake_mode_of(backward.graph)
    with only_metadata(fake_mode):
        return _Pruning(backward, missing, EmitterState(fake_mode)).module()


class _Pruning:
    def __init__(self, given: torch.fx.GraphModule, missing: Collection[int], emit: EmitterState) -> None:
        self.given = given
        self.emit = emit
        self.views = ViewWriter(emit, keeps_views=True, is_exact=True)
        self.new: dict[torch.fx.Node, torch.fx.Node] = {}
        self.sources = _zeros_by_others(given.graph, tangents_behind(given.graph))
        tangents = [node for node in given.graph.nodes if is_tangent(node)]
        self.absent = {tangents[position] for position in missing}
        noted = [(node, node.meta[GIVEN_WITH]) for node in given.graph.nodes if GIVEN_WITH in node.meta]
        self.not_given = {node for node, positions in noted if positions <= set(missing)}
        given_for_sure = [node for node, _ in noted if node.meta[IS_GIVEN_FOR_SURE]]
        self.reached = {*tangents, *given_for_sure} - self.absent - self.not_given
        self.gradients = {number: node for node in given.graph.nodes for number in node.meta.get(LAYS_OUT, ())}

    def module(self) -> torch.fx.GraphModule:
        for node in self.given.graph.nodes:
            if node.op == "output":
                self.emit.graph.output([self._returned(value) for value in node.args[0]])
                continue
            absent = [read for read in node.all_input_nodes if read in self.absent]
            is_reached = any(read in self.reached for read in node.all_input_nodes)
            if absent and not is_reached:
                self.absent.add(node)
                continue
            if is_reached:
                self.reached.add(node)
            self.emit.origin = node
            summand = _summand_left(node, self.absent | self.not_given)
            self.new[node] = self._copied(node) if summand is None else self.new[summand]
        self.emit.graph.eliminate_dead_code()
        return torch.fx.GraphModule(self.given, self.emit.graph)

    def _returned(self, value: Any) -> Any:
        return None if value is None or value in self.absent else self.new[value]

    def _copied(self, node: torch.fx.Node) -> torch.fx.Node:
        """A kernel that may ask for the layout which the trace had gets that layout."""
        read = self._read if _takes_any_layout(node.target) else self._read_as_traced
        args, kwargs = map_nodes(node.args, read), map_nodes(node.kwargs, read)
        if node.target in RESHAPES and not self._is_traced(node.args[0]):
            return self.views.reshape(args[0], args[1], target=node.target)
        return self._laid_out(node, self.emit.copy(node, args, kwargs))

    def _laid_out(self, node: torch.fx.Node, new: torch.fx.Node) -> torch.fx.Node:
        """What a decomposed kernel gives, as it lays that out for the gradient that it reads now."""
        if node.meta.get(IS_LAID_OUT_ALONE) and not is_same_places(node.meta["val"], new.meta["val"]):
            return self.views.with_layout(new, node.meta["val"])
        gradient = self.gradients.get(node.meta.get(LAID_OUT_BY))
        if gradient is None or gradient in self.absent or self._is_traced(gradient):
            return new
        is_copy = new.target is _aten.clone.default
        memory_format = suggested_format(self._read(gradient).meta["val"])
        return self.emit.call(_aten.clone.default, new.args[0] if is_copy else new, memory_format=memory_format)

    def _is_traced(self, node: Any) -> bool:
        """Whether the new value has the layout of the given one."""
        given, new = node.meta.get("val"), self._read(node).meta.get("val")
        if not isinstance(given, torch.Tensor) or not isinstance(new, torch.Tensor):
            return True
        return is_same_places(given, new)

    def _read_as_traced(self, node: torch.fx.Node) -> torch.fx.Node:
        new = self._read(node)
        return new if self._is_traced(node) else self.views.with_layout(new, node.meta["val"])

    def _read(self, node: torch.fx.Node) -> torch.fx.Node:
        """The new node; zeros, made where they are first read, for one that is computed of what does not arrive."""
        chain = [node]
        while chain[-1] not in self.new and chain[-1] in self.sources:
            chain.append(self.sources[chain[-1]])
        for step in reversed(chain):
            if step not in self.new:
                self.new[step] = self._zeros_of_another(step) if step in self.sources else self._zeros(step.meta["val"])
        return self.new[node]

    def _zeros(self, like: torch.Tensor) -> torch.fx.Node:
        extent = extent_of(like)[1] - like.storage_offset()
        flat = self.emit.call(_aten.zeros.default, [extent], dtype=like.dtype, device=like.device)
        return self.emit.call(_aten.as_strided.default, flat, list(like.shape), list(like.stride()))

    def _zeros_of_another(self, node: torch.fx.Node) -> torch.fx.Node:
        source, like = self.sources[node], node.meta["val"]
        zeros = self.new[source]
        if node.target in _ZEROS_OF_ZEROS:
            return self.emit.copy(node, map_nodes(node.args, lambda _: zeros), dict(node.kwargs))
        if is_same_layout(source.meta["val"], like):
            return zeros
        return self.emit.call(_aten._to_copy.default, zeros, dtype=like.dtype, memory_format=torch.contiguous_format)


def _takes_any_layout(target: Any) -> bool:
    is_listed = target in _OF_ANY_LAYOUT or getattr(target, "overloadpacket", None) in _PACKETS_OF_ANY_LAYOUT
    return is_listed or torch.Tag.pointwise in getattr(target, "tags", ())
