"""The inputs of a graph: which arguments have a placeholder of their own, and how the program mutates what it is given.

Arguments may be duplicates of others or views of a shared base (`plan_for`). A mutation writes data, changes the geometry, or
replaces the memory (`mutation_of`).

Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py AOTDedupeWrapper, AOTSyntheticBaseWrapper;
input_output_analysis.py compute_overlapping_inputs; collect_metadata_analysis.py (mutations); schemas.py InputAliasInfo
Differs: after the program has run on fake tensors, their version, grad_fn, geometry and storage are compared with those before.
Also, arguments without a common autograd base keep their placeholders; the functionalization pass handles memory they share
(its alias groups). Most programs have a trivial plan. Another one is made if a trace shows a write to memory that two arguments
share.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import is_traceable_wrapper_subclass, storage_key
from refimpl.aot.analysis.metadata import Geometry, InputMutation


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One placeholder: an argument, or the autograd base of several."""

    members: tuple[int, ...]  # positions of the arguments; the first is the placeholder's own unless it is a base
    is_base: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """An argument as its slot's value (no geometry), or as a view of it with a geometry, a dtype, and lazy conjugation."""

    slot: int
    geometry: Geometry | None = None
    dtype: torch.dtype | None = None
    is_conj: bool = False
    is_neg: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPlan:
    """`arguments[i]` says how the i-th argument is made of the slots."""

    slots: tuple[Slot, ...]
    arguments: tuple[Derived, ...]

    @property
    def is_trivial(self) -> bool:
        """Whether every argument is a slot of its own."""
        return len(self.slots) == len(self.arguments) and not any(slot.is_base for slot in self.slots)

    def slot_values(self, args: Sequence[Any]) -> list[Any]:
        """The values of the slots for the arguments of a call."""
        if self.is_trivial:
            return list(args)
        return [base_of(args[slot.members[0]]) if slot.is_base else args[slot.members[0]] for slot in self.slots]


def trivial_plan(count: int) -> InputPlan:
    """The plan in which every argument has a slot of its own."""
    return InputPlan(
        slots=tuple(Slot(members=(i,)) for i in range(count)), arguments=tuple(Derived(slot=i) for i in range(count))
    )


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's `_base`, or the tensor itself if it is no view."""
    return tensor if tensor._base is None else tensor._base


def duplicate_groups(args: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Groups of two or more positions that hold the same tensor object."""
    found: dict[int, list[int]] = {}
    for position, arg in enumerate(args):
        if isinstance(arg, torch.Tensor):
            found.setdefault(id(arg), []).append(position)
    return tuple(tuple(group) for group in found.values() if len(group) > 1)


def storage_groups(args: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Groups of two or more positions of tensors in one storage. For wrapper subclasses, which have none: views of one base."""
    found: dict[int, list[int]] = {}
    for position, arg in enumerate(args):
        if isinstance(arg, torch.Tensor) and Geometry.of(arg) is not None:
            is_wrapper = is_traceable_wrapper_subclass(arg)
            found.setdefault(-id(base_of(arg)) if is_wrapper else storage_key(arg), []).append(position)
    return tuple(tuple(group) for group in found.values() if len(group) > 1)


def alias_groups(args: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Groups of two or more positions of tensors whose memory may overlap. Disjoint parts of one storage are no aliases."""
    groups: list[tuple[int, ...]] = []
    for positions in map(list, storage_groups(args)):
        while len(positions) > 1:
            group, rest = [positions[0]], positions[1:]
            is_growing = True
            while is_growing:  # overlap is not transitive, but a write through one reaches all of the group
                touching = [p for p in rest if any(may_overlap(args[p], args[q]) for q in group)]
                group += touching
                rest = [p for p in rest if p not in touching]
                is_growing = bool(touching)
            if len(group) > 1:
                groups.append(tuple(sorted(group)))
            positions = rest
    return tuple(sorted(groups))


def related_views(args: Sequence[Any], gets_history: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Groups of positions of views of one base, if one of them gets a history: two or more, or one that overlaps itself."""
    by_base: dict[int, list[int]] = {}
    bases = {id(base_of(args[p])) for p in gets_history}
    for position, arg in enumerate(args if bases else ()):
        is_plain = isinstance(arg, torch.Tensor) and Geometry.of(arg) is not None and arg.numel()
        if is_plain and not is_traceable_wrapper_subclass(arg) and id(base_of(arg)) in bases:
            by_base.setdefault(id(base_of(arg)), []).append(position)
    return tuple(
        tuple(group)
        for group in by_base.values()
        if len({id(args[p]) for p in group}) > 1
        or (args[group[0]]._base is not None and overlaps_itself(args[group[0]]))
    )


def plan_for(
    args: Sequence[Any],
    *,
    written: Sequence[int] = (),
    reshaped: Sequence[int] = (),
    gets_history: Sequence[int] = (),
    merges_duplicates: bool = False,
) -> InputPlan:
    """The plan for a program that writes the data of the arguments at `written`, and changes the geometry of those at `reshaped`.

    Duplicates of a mutated argument are merged, or all duplicates with `merges_duplicates`. Overlapping views of a base that
    require a gradient are made from the base.
    gets_history: arguments that get a history by a write. To autograd it is a write to the base, and all views of the base get
    the history, even if they do not overlap.
    """
    duplicates = duplicate_groups(args)
    aliases = alias_groups(args) if written else ()
    related = related_views(args, gets_history)
    if not duplicates and not aliases and not related:
        return trivial_plan(len(args))
    duplicate_of: dict[int, int] = {}
    for group in duplicates:
        if merges_duplicates or {*written, *reshaped} & set(group):
            duplicate_of.update(dict.fromkeys(group[1:], group[0]))
    member_of = _members_of_bases(args, aliases, related, duplicate_of, set(written))
    return _plan_of(args, duplicate_of, member_of)


def _members_of_bases(
    args: Sequence[Any],
    aliases: Sequence[Sequence[int]],
    related: Sequence[Sequence[int]],
    duplicate_of: Mapping[int, int],
    changed: Set[int],
) -> dict[int, tuple[int, ...]]:
    """For every argument that is made from its base, all arguments made from that base.

    aliases, related: as `alias_groups` and `related_views` give them; changed: arguments whose data is written.
    """
    member_of: dict[int, tuple[int, ...]] = {}
    for group in aliases:
        distinct = [p for p in group if p not in duplicate_of]
        by_base: dict[int, list[int]] = {}
        for p in distinct:
            by_base.setdefault(id(base_of(args[p])), []).append(p)
        for members in by_base.values():
            has_gradient = any(args[p].requires_grad for p in members)
            if len(members) > 1 and changed & set(group) and has_gradient and _can_be_viewed(args, members):
                member_of.update(dict.fromkeys(members, tuple(members)))
    for group in related:
        distinct = tuple(p for p in group if p not in duplicate_of)
        if _can_be_viewed(args, distinct):
            member_of.update(dict.fromkeys(distinct, distinct))
    return member_of


def _plan_of(
    args: Sequence[Any], duplicate_of: Mapping[int, int], member_of: Mapping[int, tuple[int, ...]]
) -> InputPlan:
    slots: list[Slot] = []
    slot_of: dict[tuple[int, ...], int] = {}
    arguments: list[Derived] = []
    for position in range(len(args)):
        original = duplicate_of.get(position, position)
        members = member_of.get(original)
        key = members or (original,)
        if key not in slot_of:
            slot_of[key] = len(slots)
            slots.append(Slot(members=key, is_base=members is not None))
        viewed = args[original]
        if members is not None and viewed is not base_of(viewed):
            arguments.append(
                Derived(
                    slot=slot_of[key],
                    geometry=Geometry.of(viewed),
                    dtype=viewed.dtype,
                    is_conj=viewed.is_conj(),
                    is_neg=viewed.is_neg(),
                )
            )
        else:
            arguments.append(Derived(slot=slot_of[key]))
    return InputPlan(slots=tuple(slots), arguments=tuple(arguments))


def view_of_base(base: torch.Tensor, derived: Derived) -> torch.Tensor:
    """The argument, as a view of its base."""
    geometry = derived.geometry
    if geometry is None:
        return base
    if derived.dtype is not None and derived.dtype is not base.dtype:
        base = _reinterpreted(base, derived.dtype)
    view = torch.as_strided(base, geometry.size, geometry.stride, geometry.offset)
    if derived.is_conj:
        view = view.conj()
    return torch.ops.aten._neg_view.default(view) if derived.is_neg else view


def _reinterpreted(base: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if base.is_complex() and dtype == base.dtype.to_real():
        return torch.view_as_real(base)
    if dtype.is_complex and not base.is_complex():
        return torch.view_as_complex(base)
    return base.view(dtype)


def _can_be_viewed(args: Sequence[Any], members: Sequence[int]) -> bool:
    """Whether the members can be made from their base by geometry: not if it is lazily conjugated or negated."""
    base = base_of(args[members[0]])
    return not base.is_conj() and not base.is_neg()


_MOST_ADDRESSES = 65_536  # larger tensors are taken to overlap if their extents do


def may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two strided tensors of one storage may share a byte. False only if they certainly do not.

    Counterpart: torch/_functorch/_aot_autograd/input_output_analysis.py _tensors_definitely_do_not_overlap
    Differs: small tensors are compared address by address; upstream knows a few patterns.
    """
    numbers = [*a.shape, *a.stride(), a.storage_offset(), *b.shape, *b.stride(), b.storage_offset()]
    if any(type(n) is not int for n in numbers):
        return True
    if a.numel() == 0 or b.numel() == 0:
        return False
    a_first, a_last = _extent(a)
    b_first, b_last = _extent(b)
    if a_last <= b_first or b_last <= a_first:
        return False
    if a.numel() + b.numel() > _MOST_ADDRESSES:
        return True
    return not _addresses(a).isdisjoint(_addresses(b))


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements share memory. With symbolic sizes only expanded dimensions are recognised."""
    geometry = list(zip(tensor.shape, tensor.stride(), strict=True))
    if any(type(s) is int and s == 0 and (type(n) is not int or n > 1) for n, s in geometry):
        return True
    if any(type(x) is not int for pair in geometry for x in pair):
        return False
    # In order of strides, no dimension overlaps the extent of those with smaller strides.
    last = 0
    for n, s in sorted(((n, s) for n, s in geometry if n > 1), key=lambda pair: pair[1]):
        if s <= last:
            return (
                tensor.numel() <= _MOST_ADDRESSES and len(_addresses(tensor)) < tensor.numel() * tensor.element_size()
            )
        last += (n - 1) * s
    return False


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte, and the byte after the last."""
    first = int(tensor.storage_offset())
    last = first + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return first * tensor.element_size(), (last + 1) * tensor.element_size()


def _addresses(tensor: torch.Tensor) -> set[int]:
    width = tensor.element_size()
    steps = [range(0, n * s, s) if s else (0,) for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    first = int(tensor.storage_offset())
    starts = {(first + sum(index)) * width for index in itertools.product(*steps)}
    return starts if width == 1 else {start + byte for start in starts for byte in range(width)}


# Mutations.

_RESIZES = (torch.ops.aten.resize_.default, torch.ops.aten.resize_as_.default)


@dataclass(frozen=True, slots=True)
class Start:
    """The state of an input before the program runs, for comparison with its state afterwards."""

    grad_fn: Any  # for a view, that of its base: autograd regenerates the view's own after every write
    version: int
    geometry: Geometry | None
    storage: int | None
    num_bytes: Any  # of the storage
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
            None if geometry is None else tensor.untyped_storage().nbytes(),
            tensor.requires_grad,
            geometry is not None and overlaps_itself(tensor),
        )

    def has_less_memory(self, tensor: torch.Tensor) -> bool:
        """Whether its storage is the same and has become smaller. Symbolic sizes are not compared."""
        if type(self.num_bytes) is not int or Geometry.of(tensor) is None or self.is_elsewhere(tensor):
            return False
        now = tensor.untyped_storage().nbytes()
        return type(now) is int and now < self.num_bytes

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
