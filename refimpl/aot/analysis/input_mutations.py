"""How a program has changed its inputs: which it wrote to, gave another geometry, or put into other memory.

Counterpart: torch/_functorch/_aot_autograd/collect_metadata_analysis.py (mutations), schemas.py InputAliasInfo
Differs: read off fake tensors that the program has written to, by their versions, histories and places in memory.
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
    """What a tensor was before the program ran."""

    grad_fn: Any  # of a view that of its base, since autograd makes that of a view again after every write
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
        """Whether the tensor is in another storage now."""
        return Geometry.of(tensor) is not None and storage_key(tensor) != self.storage


def mutation_of(
    tensor: torch.Tensor, start: Start, graph: torch.fx.Graph, *, is_written: bool, position: int, is_put: bool = False
) -> InputMutation | None:
    """How an input was changed; None if it was not. `position` is that of its new value among the forward outputs.

    is_put: the program has put it elsewhere, perhaps in the same storage.
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
    """Of an argument that is a view of an input: data is written through the input."""
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
    """The memory that an input had, as a view of it, where its new geometry leaves some of that out; else None."""
    new, old = Geometry.of(tensor), start.geometry
    if new is None or old is None or storage_key(tensor) != start.storage or is_same(new, old):
        return None
    if _places(new) == _places(old) or _starts_with(new, old):
        return None
    return torch.as_strided(base_of(tensor), old.size, old.stride, old.offset)


def _places(geometry: Geometry) -> Any:
    """Equal for geometries that differ in the order of dimensions, and in those of one element."""
    dims = [(size, stride) for size, stride in zip(geometry.size, geometry.stride, strict=True) if not _is_one(size)]
    return sorted(map(str, dims)), str(geometry.offset)


def _starts_with(new: Geometry, old: Geometry) -> bool:
    """Whether both are contiguous, and the new one is no smaller."""
    return all(_count(g) is not None for g in (new, old)) and _count(new) >= _count(old) and new.offset == old.offset  # type: ignore[operator]


def _count(geometry: Geometry) -> int | None:
    count = 1
    for size, stride in zip(reversed(geometry.size), reversed(geometry.stride), strict=True):
        if type(size) is not int or (size != 1 and stride != count):
            return None
        count *= size
    return count


def _is_one(size: Any) -> bool:
    return type(size) is int and size == 1


def version_of(tensor: torch.Tensor) -> int:
    """Inference tensors have none, and need none: nothing is saved for a backward."""
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
_RESERVE = 3  # the place among its results of what cuDNN saves for itself


# Batch normalization writes to arguments that its schema calls read-only. cuDNN's has no overload that says so, and saves a
# tensor whose size its fake kernel does not know: PyTorch's own operator stands for it, whose results differ in rounding only.


def name_writes(graph: torch.fx.Graph) -> None:
    """Make batch normalization in training the overload whose schema says that it updates the running statistics.

    Counterpart: native_batch_norm_decomposition in torch/_decomp/decompositions.py, which runs in autograd's place
    Differs: the graph is corrected after the program has run, so that autograd is eager's own.
    """
    for node in graph.find_nodes(op="call_function", target=_CUDNN, sort=False):
        _make_plain(node)
    for node in graph.find_nodes(op="call_function", target=_aten.native_batch_norm.default, sort=False):
        has_statistics = node.args[3] is not None and node.args[4] is not None
        is_training = node.args[5]
        if has_statistics and is_training:
            node.target = _aten._native_batch_norm_legit.default


def make_gradients_plain(graph: torch.fx.Graph) -> None:
    """Make the backward of cuDNN's batch normalization that of PyTorch's operator, which `name_writes` has put in its place."""
    for node in graph.find_nodes(op="call_function", target=_CUDNN_BACKWARD, sort=False):
        x, grad, weight, mean, var, saved_mean, saved_rstd, eps, _ = node.args
        node.target = _aten.native_batch_norm_backward.default
        node.args = (grad, x, weight, mean, var, saved_mean, saved_rstd, True, eps, [True, True, True])


def _make_plain(node: torch.fx.Node) -> None:
    """PyTorch's operator takes what cuDNN's does, and gives all but the last of its results."""
    node.target = _aten.native_batch_norm.default
    if isinstance(node.meta.get("val"), tuple):
        node.meta["val"] = node.meta["val"][:_RESERVE]
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == _RESERVE:
            user.target = _aten.new_zeros.default
            user.args, user.kwargs = (node.args[0], [0]), {"dtype": torch.uint8}
