"""Conditions under which a call of a compiled program runs in eager mode, each with its reason.

Counterpart: none; torch's graphs run in all of these cases. They give results without tangents, give hooks the gradients of other
uses, or give kernels a null pointer, where eager mode has aten/src/ATen/ZeroTensorFallback.cpp
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from refimpl._torch import (
    FakeTensor,
    creation_meta_named,
    creation_of_view,
    forward_mode_level,
    has_saved_tensors_hooks,
    is_functorch_wrapped_tensor,
    is_inside_function_transform,
    is_traceable_wrapper_subclass,
    storage_key,
)
from refimpl.aot.analysis.inputs import InputPlan
from refimpl.aot.analysis.metadata import Geometry, ProgramAnalysis
from refimpl.aot.analysis.subclasses import dense_parts
from refimpl.aot.runtime.graph_call import FlatCall
from refimpl.errors import UnsupportedByRefimpl


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerCondition:
    """holds: whether the condition is met by a call with these arguments."""

    reason: str
    holds: Callable[[Sequence[Any]], bool]


INSIDE_TRANSFORM = EagerCondition(
    reason="Inside a torch.func transform, tensors wrap others, which graphs cannot do.",
    holds=lambda args: is_inside_function_transform(),
)
FORWARD_MODE = EagerCondition(
    reason="Compiled graphs and kernels do not compute tangents of forward-mode AD.",
    holds=lambda args: forward_mode_level() >= 0,
)
MEMORYLESS_ZEROS = EagerCondition(
    reason="Zeros without memory (torch._efficientzerotensor, gradients of sgn) times infinity are zeros, not nan. Graphs "
    "compute with zeros in memory. Calls with other arguments have another key.",
    holds=lambda args: True,
)
HOOKS_ON_REFUSED = EagerCondition(
    reason="Autograd raised for a gradient because a saved tensor was modified. Hooks on saved tensors turn that check off: the "
    "gradient is computed from what they packed. Graphs save other tensors than the program.",
    holds=lambda args: has_saved_tensors_hooks(),
)
WITHOUT_FORMULA = EagerCondition(
    reason="An operator of the program has no formula for its gradient, as one that torch.library.Library.impl gave a kernel "
    "alone. Autograd differentiates the operators that the kernel calls, which a graph does not show.",
    holds=lambda args: True,
)
HOOKED_INPUTS = EagerCondition(
    reason="The program registers hooks on an argument. They also receive the gradients of uses outside of the program, which no "
    "graph sees.",
    holds=lambda args: True,
)
SHRUNK_STORAGE = EagerCondition(
    reason="The program resizes the storage of an argument, which is no operator. A graph would not do it.",
    holds=lambda args: True,
)
REENTRANT = EagerCondition(
    reason="The backward calls `backward()` for a part of the program (checkpoint with use_reentrant=True), which accumulates "
    "into leaves. It refuses to be traced, which asks for gradients alone.",
    holds=lambda args: True,
)
OWN_LEAF = EagerCondition(
    reason="The gradients of the results end at a leaf that the program makes, as torch.ones(2, requires_grad=True). A graph has "
    "no input for that gradient.",
    holds=lambda args: True,
)
GIVEN_OPERANDS = EagerCondition(
    reason="A function that an operator calls (torch's leaf_function, or a branch of torch.cond) returns an argument of its own, "
    "or a view of it. A functional graph takes it for a new tensor, and loses writes to either of them.",
    holds=lambda args: True,
)
HIDDEN_ALIAS = EagerCondition(
    reason="A result shares the memory of an argument in a way that no list of view operators tells, as a view of an `out=` that "
    "the program enlarges. The graph would give a tensor of its own.",
    holds=lambda args: True,
)
FREED_ARGUMENT = EagerCondition(
    reason="An argument has no memory for its elements: the program is expected to resize its storage, which is no operator.",
    holds=lambda args: True,
)
OTHER_STORAGES = (
    "The program asks for the storage of a tensor. It may branch on the size of the storage, or resize one that has no memory "
    "yet, which is no operator. A graph is for storages of the sizes that it was traced with."
)
RESHAPED_LEAF = EagerCondition(
    reason="The program changes the shape of a leaf in no_grad mode. Its gradient has the new shape, and autograd checks "
    "gradients against the shape at the time of the call.",
    holds=lambda args: True,
)
REPLACED_PART = EagerCondition(
    reason="The program puts another tensor into an argument of a wrapper subclass. A graph writes to those in it.",
    holds=lambda args: True,
)
MOVED_VIEW = (
    "To autograd an argument is a view of a tensor, and it has other memory than that (`view.data = y`). A write to either is a "
    "write to both for autograd alone. A graph has views in the memory of their base only."
)
FORBIDDEN_VIEW = (
    "The program writes to a view for which autograd refuses that: one of several results of an operator (`unbind`), or made in "
    "no_grad mode. A graph has no such views. Eager mode raises autograd's error, at the write or at the next use."
)
WATCHED_VIEW = (
    "A hook or retain_grad waits for the gradient of a view, and the program writes to its memory. Autograd then makes the "
    "view's history again, and the hooks stay with the uses from before. A graph has one place for the gradient of an argument."
)


def eager_conditions(
    args: Sequence[Any], *, plan: InputPlan, analysis: ProgramAnalysis, captured: Sequence[torch.Tensor]
) -> tuple[EagerCondition, ...]:
    """The conditions under which calls of a program run in eager mode. `args` are those that it is compiled for."""
    found = [FORWARD_MODE]
    found += [
        condition
        for condition, is_met in (
            (MEMORYLESS_ZEROS, any(map(is_memoryless, (*args, *captured)))),
            (HOOKS_ON_REFUSED, bool(analysis.refused)),
            (WITHOUT_FORMULA, analysis.lacks_formula),
            (REPLACED_PART, analysis.replaces_parts),
            (REENTRANT, analysis.calls_backward),
            (OWN_LEAF, analysis.makes_leaf),
            (GIVEN_OPERANDS, analysis.calls_give_operands),
            (HOOKED_INPUTS, analysis.hooks_inputs),
            (SHRUNK_STORAGE, analysis.shrinks_storage),
            (HIDDEN_ALIAS, analysis.hides_alias),
            (FREED_ARGUMENT, any(map(_is_freed, args))),
            (RESHAPED_LEAF, _reshapes_leaf(args, analysis)),
        )
        if is_met
    ]
    if analysis.reads_storages:
        found.append(EagerCondition(reason=OTHER_STORAGES, holds=_storages_differ(args, captured)))
    if analysis.mutated_inputs:
        found.append(EagerCondition(reason=MOVED_VIEW, holds=lambda args: any(map(_is_moved_view, args))))
    is_forbidden = _forbidden_view_written(args, plan, analysis)
    if is_forbidden is not None:
        found.append(EagerCondition(reason=FORBIDDEN_VIEW, holds=is_forbidden))
    is_watched = _watched_view_written(args, plan, analysis.mutated_inputs, captured)
    if is_watched is not None:
        found.append(EagerCondition(reason=WATCHED_VIEW, holds=is_watched))
    return tuple(found)


def _is_moved_view(arg: Any) -> bool:
    base = arg._base if isinstance(arg, torch.Tensor) else None
    if base is None or Geometry.of(arg) is None or is_traceable_wrapper_subclass(arg):
        return False
    return storage_key(arg) != storage_key(base)


def eager_where(
    conditions: Sequence[EagerCondition], function: Callable[..., Sequence[Any]], compiled: FlatCall
) -> FlatCall:
    """A function that calls `function` if a condition holds, else `compiled`."""
    first, *others = conditions
    assert first is FORWARD_MODE, f"{first.reason}\n  expected: forward mode, which every call asks for, first"
    tests = [condition.holds for condition in others]

    def call(args: list[Any]) -> list[Any]:
        if forward_mode_level() >= 0:
            return list(function(*args))
        for holds in tests:
            if holds(args):
                return list(function(*args))
        return compiled(args)

    return call


def _watched_view_written(
    args: Sequence[Any], plan: InputPlan, mutated: Sequence[int], captured: Sequence[torch.Tensor]
) -> Callable[[Sequence[Any]], bool] | None:
    """A function that says whether a watched view shares memory that the program writes to; None if that is impossible.

    Views are looked for among arguments and captured tensors. mutated: positions of the slots, then captured tensors, that the
    program writes to.
    """
    written = sorted(
        {position for index in mutated if index < len(plan.slots) for position in plan.slots[index].members}
    )
    written_captured = [captured[index - len(plan.slots)] for index in mutated if index >= len(plan.slots)]
    positions = [position for position, arg in enumerate(args) if _may_be_watched(arg)]
    others = [tensor for tensor in captured if _may_be_watched(tensor)]
    if not mutated or (not positions and not others):
        return None

    def holds(leaves: Sequence[Any]) -> bool:
        watched = [leaf for position in positions if _is_watched(leaf := leaves[position])]
        watched += [tensor for tensor in others if _is_watched(tensor)] if others else ()
        if not watched:
            return False
        places = {_place(tensor) for tensor in (*(leaves[position] for position in written), *written_captured)}
        return not places.isdisjoint(map(_place, watched))

    return holds


def _reshapes_leaf(args: Sequence[Any], analysis: ProgramAnalysis) -> bool:
    """Whether an argument that is a leaf has another shape afterwards. `place` takes care of other memory."""
    slots = [info.mutation for info in analysis.inputs if info.requires_grad and info.is_leaf]
    views = [mutation for i, mutation in analysis.argument_mutations if args[i].requires_grad and args[i].is_leaf]
    return any(m is not None and m.geometry is not None and not m.sets_storage for m in (*slots, *views))


def is_untraceable(leaf: Any) -> bool:
    """Whether it is a tensor that no fake tensor stands for: nested with strides, or of a class that changes what operators do.

    The class of a wrapper subclass, which has `__tensor_flatten__`, is that of its fake tensor too. A call with any other such
    tensor runs in eager mode.
    """
    if not isinstance(leaf, torch.Tensor) or is_traceable_wrapper_subclass(leaf):
        return False
    if leaf.is_nested:
        return True
    kind = type(leaf)
    if kind.__module__.startswith(_FAKES):  # fake tensors, in a trace of something else
        return False
    return any(_attribute_of(kind, name) not in known for name, known in _PLAIN_HOOKS)


def _attribute_of(kind: Any, name: str) -> Any:
    found = getattr(kind, name)
    return getattr(found, "__func__", found)  # of a class method, the function


# What `__torch_function__` and `__torch_dispatch__` of a class are if operators treat its tensors as any other.
_PLAIN_HOOKS = tuple(
    (name, [_attribute_of(kind, name) for kind in (torch.Tensor, torch.nn.Parameter)])
    for name in ("__torch_function__", "__torch_dispatch__")
)
_FAKES = FakeTensor.__module__.rpartition(".")[0]  # the package of fake and functional tensors


def _is_freed(arg: Any) -> bool:
    """Whether it is a dense tensor with elements and without memory."""
    return _storage_size(arg) == 0 and arg.numel() > 0


def _storages_differ(args: Sequence[Any], captured: Sequence[torch.Tensor]) -> Callable[[Sequence[Any]], bool]:
    """A function that says whether storages of a call, or of captured tensors, have other sizes than now."""

    def sizes_of(leaves: Sequence[Any]) -> list[int | None]:
        return [_storage_size(leaf) for leaf in (*leaves, *captured)]

    seen = sizes_of(args)
    return lambda leaves: sizes_of(leaves) != seen


def _storage_size(arg: Any) -> int | None:
    """The bytes in the storage of a dense tensor, None for anything else."""
    if not isinstance(arg, torch.Tensor) or Geometry.of(arg) is None or is_traceable_wrapper_subclass(arg):
        return None
    return None if arg._is_zerotensor() or is_functorch_wrapped_tensor(arg) else arg.untyped_storage().nbytes()


def _forbidden_view_written(
    args: Sequence[Any], plan: InputPlan, analysis: ProgramAnalysis
) -> Callable[[Sequence[Any]], bool] | None:
    """A function that says whether the program writes to an argument that is a view on which autograd forbids it.

    None if no argument may be one: the caller's views are asked at every call, since their kind is no part of a call's key.
    """
    written = [
        (position, info.mutation.is_visible_to_autograd)
        for slot, info in zip(plan.slots, analysis.inputs, strict=False)
        if info.mutation is not None and not info.mutation.sets_storage
        for position in slot.members
    ]
    views = [(p, gets) for p, gets in written if isinstance(arg := args[p], torch.Tensor) and arg._base is not None]
    if not views:
        return None

    def holds(leaves: Sequence[Any]) -> bool:
        if not torch.is_grad_enabled():
            return False
        return any(_is_forbidden(leaves[position], gets_history) for position, gets_history in views)

    return holds


def _is_forbidden(view: torch.Tensor, gets_history: bool) -> bool:
    if view._base is None or view.is_inference() or not (gets_history or view.requires_grad):
        return False
    return creation_of_view(view) != _PLAIN_VIEW


_PLAIN_VIEW = creation_meta_named("DEFAULT")


def _may_be_watched(arg: Any) -> bool:
    """Whether it may be watched in some call of the compiled program."""
    return isinstance(arg, torch.Tensor) and arg.requires_grad and not isinstance(arg, torch.nn.Parameter)


def _is_watched(tensor: torch.Tensor) -> bool:
    """Whether it is a view with a history, and a hook or `retain_grad` waits for its gradient."""
    if tensor._base is None or tensor.is_leaf:
        return False
    return bool(tensor._backward_hooks) or tensor.retains_grad


def _place(tensor: torch.Tensor) -> int:
    """Identifies its storage, or for a tensor without one (sparse) its base."""
    return -id(tensor._base) if Geometry.of(tensor) is None else storage_key(tensor)


# A compiled backward cannot fall back to eager. Tangents that its graph cannot take are refused, or copied into memory.


def refuse_dual(gradients: Iterable[torch.Tensor | None]) -> None:
    """Raises UnsupportedByRefimpl if a tangent of a compiled backward is a dual number of forward-mode AD."""
    if forward_mode_level() >= 0 and any(
        g is not None and forward_ad.unpack_dual(g).tangent is not None for g in gradients
    ):
        raise UnsupportedByRefimpl(
            seen="a gradient with a tangent of forward-mode AD, which arrives at the backward of a compiled graph",
            supported="forward-mode AD of calls that are made within its level: they run without graphs",
            do="call the compiled function within the level",
        )


def is_memoryless(value: Any) -> bool:
    """Whether it is a tensor of zeros without memory."""
    return isinstance(value, torch.Tensor) and value._is_zerotensor()


def in_memory(gradients: Iterable[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The gradients, with zeros that kernels can read in place of zeros without memory."""
    return [None if g is None else g.clone() if g._is_zerotensor() else g for g in gradients]


def refuse_nan(gradients: Sequence[Any]) -> Sequence[Any]:
    """The gradients, computed of such zeros. Raises UnsupportedByRefimpl where one is NaN: that of eager mode may be 0."""
    for gradient in gradients:
        parts = [part for part in dense_parts(gradient) if isinstance(part, torch.Tensor)]
        if any(bool(part.isnan().any()) for part in parts if part.layout is torch.strided):
            raise UnsupportedByRefimpl(
                seen="zeros without memory that arrive at the backward of a compiled graph, where a gradient of them is NaN",
                supported="such zeros where what they are multiplied with is finite",
                do="give a gradient that has memory (`gradient.clone()`), or run the function without compiling it",
            )
    return gradients
