"""Finds how a program has mutated its inputs: written data, changed geometry, or replaced memory.

Counterpart: torch/_functorch/_aot_autograd/collect_metadata_analysis.py (mutations), schemas.py InputAliasInfo
Differs: after the program has run on fake tensors, their version, grad_fn, geometry and storage are compared with those before.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import storage_key
from refimpl.aot.analysis.input_plan import base_of, overlaps_itself
from refimpl.aot.analysis.metadata import Geometry, InputMutation

_RESIZES = (torch.ops.aten.resize_.default, torch.ops.aten.resize_as_.default)


@dataclass(frozen=True, slots=True)
class Start:
    """The state of an input before the program runs, for comparison with its state afterwards."""

    grad_fn: Any  # for a view, that of its base: autograd regenerates the view's own after every write
    version: int
    geometry: Geometry | None
    storage: int | None
    requires_grad: bool
    overlaps_itself: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Start:
        geometry = Geometry.of(tensor)
        return cls(
            base_of(tensor).grad_fn,
            version_of(tensor),
            geometry,
            None if geometry is None else storage_key(tensor),
            tensor.requires_grad,
            geometry is not None and overlaps_itself(tensor),
        )

    def is_elsewhere(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has another storage now."""
        return Geometry.of(tensor) is not None and storage_key(tensor) != self.storage


def mutation_of(
    tensor: torch.Tensor, start: Start, graph: torch.fx.Graph, *, is_written: bool, position: int, is_put: bool = False
) -> InputMutation | None:
    """The mutation of an input; None if it is unchanged.

    position: of the input's new value among the forward outputs. is_put: the program called `set_` on the input, or assigned its
    `.data`; the new memory may be another part of the same storage.
    """
    geometry = Geometry.of(tensor)
    sets_storage = is_put or start.is_elsewhere(tensor)
    changes_geometry = sets_storage or not is_same(geometry, start.geometry)
    detaches = start.requires_grad and not tensor.requires_grad
    if not is_written and not changes_geometry and not detaches:
        return None
    return InputMutation(
        writes_data=is_written,
        is_visible_to_autograd=base_of(tensor).grad_fn is not start.grad_fn
        or (changes_geometry and tensor._base is not None and tensor.requires_grad),
        overlaps_itself=start.overlaps_itself,
        bumps_version=tensor.is_inference() or tensor._version != start.version,
        geometry=geometry if changes_geometry else None,
        resizes=changes_geometry and any(node.target in _RESIZES for node in graph.nodes),
        sets_storage=sets_storage,
        requires_grad=tensor.requires_grad,
        detaches=detaches,
        position=position,
    )


def geometry_change_of(tensor: torch.Tensor, start: Start, position: int, *, is_put: bool) -> InputMutation | None:
    """The change of geometry or memory of an argument that is a view of an input; None if there is none.

    Written data is recorded with the input that it views.
    """
    geometry = Geometry.of(tensor)
    sets_storage = is_put or start.is_elsewhere(tensor)
    if not sets_storage and is_same(geometry, start.geometry):
        return None
    return InputMutation(
        writes_data=False,
        is_visible_to_autograd=not sets_storage,
        overlaps_itself=False,
        bumps_version=True,
        geometry=geometry,
        resizes=False,
        sets_storage=sets_storage,
        requires_grad=tensor.requires_grad,
        position=position,
    )


def view_of_left_places(tensor: torch.Tensor, start: Start) -> torch.Tensor | None:
    """A view with the geometry that an input had before, if its new geometry may not cover all of those elements; else None.

    The program may have written to an element that the input no longer covers, as in `x.mul_(2); x.as_strided_((1,), (1,))`.
    """
    new, old = Geometry.of(tensor), start.geometry
    if new is None or old is None or storage_key(tensor) != start.storage or is_same(new, old):
        return None
    if _places(new) == _places(old) or _starts_with(new, old):
        return None
    return torch.as_strided(base_of(tensor), old.size, old.stride, old.offset)


def _places(geometry: Geometry) -> Any:
    """A key that is equal for geometries that differ only in the order of dimensions and in dimensions of size 1."""
    dims = [(size, stride) for size, stride in zip(geometry.size, geometry.stride, strict=True) if not _is_one(size)]
    return sorted(map(str, dims)), str(geometry.offset)


def _starts_with(new: Geometry, old: Geometry) -> bool:
    """Whether both are contiguous and start at the same offset, and the new one has at least as many elements."""
    return all(_count(g) is not None for g in (new, old)) and _count(new) >= _count(old) and new.offset == old.offset  # type: ignore[operator]


def _count(geometry: Geometry) -> int | None:
    """The number of elements of a contiguous geometry of integers; None for any other."""
    count = 1
    for size, stride in zip(reversed(geometry.size), reversed(geometry.stride), strict=True):
        if type(size) is not int or (size != 1 and stride != count):
            return None
        count *= size
    return count


def _is_one(size: Any) -> bool:
    return type(size) is int and size == 1


def version_of(tensor: torch.Tensor) -> int:
    """The version of a tensor; 0 for an inference tensor, which has none and is never saved for backward."""
    return 0 if tensor.is_inference() else tensor._version


def is_same(a: Geometry | None, b: Geometry | None) -> bool:
    if a is None or b is None:
        return a is b
    numbers = zip((*a.size, *a.stride, a.offset), (*b.size, *b.stride, b.offset), strict=False)
    return len(a.size) == len(b.size) and all(_same_number(x, y) for x, y in numbers)


def _same_number(x: Any, y: Any) -> bool:
    if type(x) is int and type(y) is int:
        return x == y
    return x is y or getattr(getattr(x, "node", None), "expr", x) == getattr(getattr(y, "node", None), "expr", y)


_aten = torch.ops.aten
_CUDNN = _aten.cudnn_batch_norm.default
_CUDNN_BACKWARD = _aten.cudnn_batch_norm_backward.default
_RESERVE = 3  # the index of the result that cuDNN saves for its own backward (the reserve)


# Batch normalization updates its running statistics, which its schema declares read-only. cuDNN's op has no overload whose schema
# declares the write. It also saves a tensor whose size its fake kernel does not know. So native_batch_norm replaces it in the
# graph; the results differ only in rounding.


def name_writes(graph: torch.fx.Graph) -> None:
    """Replaces batch normalization in training by the overload whose schema declares the write to the running statistics.

    Counterpart: native_batch_norm_decomposition in torch/_decomp/decompositions.py, which runs in place of the op's autograd
    Differs: nodes are replaced after the program has run, so that autograd sees the same ops as in eager.
    """
    for node in graph.find_nodes(op="call_function", target=_CUDNN, sort=False):
        _make_plain(node)
    for node in graph.find_nodes(op="call_function", target=_aten.native_batch_norm.default, sort=False):
        has_statistics = node.args[3] is not None and node.args[4] is not None
        is_training = node.args[5]
        if has_statistics and is_training:
            node.target = _aten._native_batch_norm_legit.default


def make_gradients_plain(graph: torch.fx.Graph) -> None:
    """Replaces the backward of cuDNN's batch normalization by that of native_batch_norm, whose forward `name_writes` inserted."""
    for node in graph.find_nodes(op="call_function", target=_CUDNN_BACKWARD, sort=False):
        x, grad, weight, mean, var, saved_mean, saved_rstd, eps, _ = node.args
        node.target = _aten.native_batch_norm_backward.default
        node.args = (grad, x, weight, mean, var, saved_mean, saved_rstd, True, eps, [True, True, True])


def _make_plain(node: torch.fx.Node) -> None:
    """Replaces cuDNN's op by native_batch_norm: it has the same arguments, and the same results without the reserve."""
    node.target = _aten.native_batch_norm.default
    if isinstance(node.meta.get("val"), tuple):
        node.meta["val"] = node.meta["val"][:_RESERVE]
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == _RESERVE:
            user.target = _aten.new_zeros.default
            user.args, user.kwargs = (node.args[0], [0]), {"dtype": torch.uint8}
