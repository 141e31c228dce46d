"""The backward graph for some of the tangents: as in eager, it does not run what depends on missing tangents alone.

Counterpart: none; torch's aot_autograd replaces missing tangents by zeros
Differs: zeros give other results: nan where a derivative is infinite, or what a custom backward adds to them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES, pytree
from refimpl.aot.joint.backward import is_tangent
from refimpl.aot.joint.decomposed_calls import (
    Decomposed,
    Operand,
)
from refimpl.errors import NotTracked
from refimpl.functionalize.emitter import EmitterState, fake_mode_of, map_nodes
from refimpl.functionalize.geometry import (
    extent_of,
    has_symbols,
    is_same_geometry,
    is_same_shape,
)
from refimpl.functionalize.graph_pass import only_metadata
from refimpl.functionalize.views import RESHAPES, ViewWriter
from refimpl.symbolic.errors import NewGuard
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.symbolic.sym_node import SymNode
from refimpl.trace.metadata import notes_of

_aten = torch.ops.aten
# Besides pointwise operators: kernels that accept inputs of any layout, and views of any layout.
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
    _aten.new_zeros.default,
    _aten.sum.default,
    _aten.sum.dim_IntList,
    _aten.mm.default,
    _aten.bmm.default,
    _aten.cat.default,
}
# The same, in every overload; the strides of their results follow those of their inputs.
_PACKETS_OF_ANY_LAYOUT = frozenset({
    # pointwise without the tag
    _aten.elu_backward, _aten.hardshrink_backward, _aten.hardsigmoid_backward, _aten.hardswish_backward,
    _aten.hardtanh_backward, _aten.leaky_relu_backward, _aten.log_sigmoid_backward, _aten.mish_backward,
    _aten.rrelu_with_noise_backward, _aten.softplus_backward, _aten.softshrink_backward, _aten._prelu_kernel_backward,
    # permutations of elements, and writes to some elements
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
    # Fourier transforms, and views as another dtype
    _aten._fft_c2c, _aten._fft_c2r, _aten._fft_r2c, _aten._conj, _aten.view_as_real,
})  # fmt: skip


def tangents_behind(graph: torch.fx.Graph) -> dict[torch.fx.Node, frozenset[int]]:
    """For every node of a backward graph, the positions of the tangents it depends on.

    Numbers depend on none: if a tangent is missing, its sizes are still known.
    """
    behind: dict[torch.fx.Node, frozenset[int]] = {}
    count = 0
    for node in graph.nodes:
        if is_tangent(node):
            behind[node] = frozenset([count])
            count += 1
        elif _is_number(node):
            behind[node] = frozenset()
        else:
            behind[node] = frozenset().union(*(behind[read] for read in node.all_input_nodes))
    return behind


def is_divisible(backward: torch.fx.GraphModule) -> bool:
    """Whether all symbolic sizes are refimpl's. In another tool's shape env a part could add guards that nobody checks."""
    return all(isinstance(node.meta["val"].node, SymNode) for node in backward.graph.nodes if _is_number(node))


def _is_number(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), SYMBOLIC_TYPES)


def _summand_left(node: torch.fx.Node, absent: Collection[torch.fx.Node]) -> torch.fx.Node | None:
    """The other summand of an `add` of which one is absent, if it has the sum's dtype and shape; else None."""
    if node.target is not _aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return None
    left = [arg for arg in node.args if arg not in absent]
    if len(left) != 1 or not isinstance(left[0], torch.fx.Node):
        return None
    summand, total = left[0].meta.get("val"), node.meta.get("val")
    if not isinstance(summand, torch.Tensor) or not isinstance(total, torch.Tensor):
        return None
    return left[0] if summand.dtype == total.dtype and is_same_shape(summand.shape, total.shape) else None


def without_tangents(backward: torch.fx.GraphModule, missing: Collection[int]) -> torch.fx.GraphModule | None:
    """A copy of the backward graph without the tangents at `missing`; gradients that depend on these alone are None.

    Where a node also reads other values, an `add` is replaced by its other summand, and any other operator reads zeros. The nodes
    after it get the strides that follow from that summand. Returns None if the graph is not divisible, or only for some sizes.
    """
    if not is_divisible(backward):
        return None
    fake_mode = fake_mode_of(backward.graph)
    try:
        with only_metadata(fake_mode), without_new_guards(backward):
            return _Pruning(backward, missing, EmitterState(fake_mode)).module()
    except (NewGuard, NotTracked):
        return None


@contextlib.contextmanager
def without_new_guards(graph_module: torch.fx.GraphModule) -> Iterator[None]:
    """Within, a new guard on the graph's symbols raises NewGuard. After the first call it would come too late to be checked.

    Symbols of another tool's shape env are not watched.
    """
    fake_mode = fake_mode_of(graph_module.graph)
    shape_env = None if fake_mode is None else fake_mode.shape_env
    with shape_env.error_on_new_guards() if isinstance(shape_env, ShapeEnv) else contextlib.nullcontext():
        yield


class _Pruning:
    def __init__(self, given: torch.fx.GraphModule, missing: Collection[int], emit: EmitterState) -> None:
        self.given = given
        self.emit = emit
        self.views = ViewWriter(emit, keeps_views=True, is_exact=True)
        self.new: dict[torch.fx.Node, torch.fx.Node] = {}
        tangents = [node for node in given.graph.nodes if is_tangent(node)]
        self.absent = {tangents[position] for position in missing}
        noted = [
            (node, notes.given_with, notes.is_given_for_sure)
            for node in given.graph.nodes
            if (notes := notes_of(node)).given_with is not None
        ]
        self.not_given = {node for node, positions, _ in noted if positions <= set(missing)}
        given_for_sure = [node for node, _, is_sure in noted if is_sure]
        self.reached = {*tangents, *given_for_sure} - self.absent - self.not_given
        self.uses = {number: node for node in given.graph.nodes for number in notes_of(node).operand_numbers}

    def module(self) -> torch.fx.GraphModule:
        for node in self.given.graph.nodes:
            if node.op == "output":
                self.emit.graph.output([self._returned(value) for value in node.args[0]])
                continue
            if _is_number(node):
                self.emit.origin = node
                self.new[node] = self._number(node)
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
        """A copy of the node. Inputs get the strides of the trace unless the kernel is known to accept any layout."""
        read = self._read if _takes_any_layout(node.target) else self._read_as_traced
        args, kwargs = map_nodes(node.args, read), map_nodes(node.kwargs, read)
        copied = _copied_to_be_viewed(node)
        if copied is not None and not self._is_traced(copied):
            return self.views.reshape(self._read(copied), args[1])
        if node.target in RESHAPES and not self._is_traced(node.args[0]):
            return self.views.reshape(args[0], args[1], target=node.target)
        return self._laid_out(node, self.emit.copy(node, args, kwargs))

    def _laid_out(self, node: torch.fx.Node, new: torch.fx.Node) -> torch.fx.Node:
        """The result with the strides that eager's kernel gives it for the inputs that there are now.

        The result of an in-place operator has the strides of its first argument. That of a decomposed kernel has those which the
        whole kernel gives.
        """
        first = node.args[0] if node.args else None  # a placeholder has no arguments, and keeps its strides
        if notes_of(node).has_strides_of_first and isinstance(first, torch.fx.Node):
            written = self._read(first).meta["val"]
            is_whole = is_same_shape(written.shape, new.meta["val"].shape)
            return self.views.with_layout(new, written) if is_whole else new
        call = notes_of(node).decomposed_call
        return new if call is None else self._laid_out_by_operands(call, new)

    def _laid_out_by_operands(self, call: Decomposed, new: torch.fx.Node) -> torch.fx.Node:
        """The node with the strides that the undecomposed kernel gives its result for the operands of this backward."""
        now: dict[int, torch.Tensor] = {}
        for operand in pytree.tree_leaves((call.args, call.kwargs)):
            node = self.uses.get(operand.number) if isinstance(operand, Operand) else None
            if node in self.new and not self._is_traced(node):
                now[operand.number] = self.new[node].meta["val"]
        if not now:
            return new
        args, kwargs = pytree.tree_map_only(Operand, lambda o: now.get(o.number, o.value), (call.args, call.kwargs))
        result = pytree.tree_leaves(self.emit.run(call.func, args, kwargs))[call.index]
        is_result = is_same_shape(new.meta["val"].shape, result.shape)  # another pass may have merged nodes into it
        return self.views.with_layout(new, result) if is_result else new

    def _is_traced(self, node: Any) -> bool:
        """Whether the new value has the size, strides and offset that the node had in the trace."""
        given, new = node.meta.get("val"), self._read(node).meta.get("val")
        if not isinstance(given, torch.Tensor) or not isinstance(new, torch.Tensor):
            return True
        return is_same_geometry(given, new)

    def _read_as_traced(self, node: torch.fx.Node) -> torch.fx.Node:
        new = self._read(node)
        return new if self._is_traced(node) else self.views.with_layout(new, node.meta["val"])

    def _number(self, node: torch.fx.Node) -> Any:
        """A copy of a number's node; if it is the size of a tensor that is not computed, the same number from elsewhere."""
        if all(read in self.new for read in node.all_input_nodes):
            return self.emit.copy(node, *map_nodes((node.args, dict(node.kwargs)), self.new.__getitem__))
        return self.emit.number(node.meta["val"])

    def _read(self, node: torch.fx.Node) -> torch.fx.Node:
        """The new node, or zeros if it depends on missing tangents alone."""
        if node not in self.new:
            self.new[node] = self._zeros(node.meta["val"])
        return self.new[node]

    def _zeros(self, like: torch.Tensor) -> torch.fx.Node:
        if has_symbols(like):
            zeros = self.emit.call(
                _aten.zeros.default, self.emit.number(like.shape), dtype=like.dtype, device=like.device
            )
            return self.views.with_layout(zeros, like)
        extent = extent_of(like)[1] - like.storage_offset()
        flat = self.emit.call(_aten.zeros.default, [extent], dtype=like.dtype, device=like.device)
        return self.emit.call(_aten.as_strided.default, flat, list(like.shape), list(like.stride()))


def _copied_to_be_viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """The tensor that a `reshape` copied because its strides allow no view; None if the node is not such a reshape."""
    if node.target is not _aten._unsafe_view.default or notes_of(node).is_decomposed_gradient:
        return None
    (copy, _) = node.args
    assert isinstance(copy, torch.fx.Node)
    is_copy = copy.target is _aten.clone.default and copy.kwargs == {"memory_format": torch.contiguous_format}
    return copy.all_input_nodes[0] if is_copy else None


def _takes_any_layout(target: Any) -> bool:
    is_listed = target in _OF_ANY_LAYOUT or getattr(target, "overloadpacket", None) in _PACKETS_OF_ANY_LAYOUT
    return is_listed or torch.Tag.pointwise in getattr(target, "tags", ())
