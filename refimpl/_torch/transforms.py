"""torch.func: the C++ functions that enter and leave a transform, wrap and unwrap tensors, and the state that they change.

They are what eager mode runs. The Python around them is not called: capture interprets it like any code of the program.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

# Python functions of torch.func that capture recognizes and does not interpret. They are compared by identity, never called.
from torch._functorch import apis as _apis  # noqa: TID251
from torch._functorch import eager_transforms as _eager_transforms  # noqa: TID251
from torch._functorch import predispatch as _predispatch  # noqa: TID251
from torch._functorch import vmap as _vmap  # noqa: TID251
from torch.autograd import forward_ad as _forward_ad

_C: Any = getattr(torch._C, "_functorch")
_HOOKS: Any = getattr(torch._C, "_autograd")
_NATIVE: Any = torch._C
_VF: Any = getattr(torch, "_VF")


def _wrapped(*names: str, owner: Any = _C) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """For each name the C++ function, and the Python functions that only pass a call on to it."""
    return {
        name: (
            getattr(owner, name),
            tuple(getattr(_predispatch, each) for each in (name,) if hasattr(_predispatch, each)),
        )
        for name in names
        if hasattr(owner, name)
    }


# Name -> (C++ function, Python functions that stand for it). Those that change a state of torch and take no tensor.
transform_setters: dict[str, tuple[Any, tuple[Any, ...]]] = {
    **_wrapped(
        "_vmap_increment_nesting", "_vmap_decrement_nesting", "_grad_increment_nesting", "_grad_decrement_nesting",
        "_jvp_increment_nesting", "_jvp_decrement_nesting", "set_inplace_requires_grad_allowed",
        "set_single_level_autograd_function_allowed",
    ),
    **_wrapped("_enter_dual_level", "_exit_dual_level", "_set_fwd_grad_enabled", owner=_NATIVE),
    **_wrapped("_saved_tensors_hooks_disable", "_saved_tensors_hooks_enable", owner=_HOOKS),
}  # fmt: skip
# Those that take a tensor and return tensors.
transform_operators: dict[str, tuple[Any, tuple[Any, ...]]] = {
    **_wrapped("_add_batch_dim", "_remove_batch_dim", "_wrap_for_grad", "_unwrap_for_grad", "get_unwrapped"),
    **_wrapped("_make_dual", "_unpack_dual", owner=_VF),
}
# Those that ask about a tensor, or about the state.
transform_questions: tuple[Any, ...] = (
    _C.is_batchedtensor, _C.is_gradtrackingtensor, _C.is_functorch_wrapped_tensor, _C.maybe_get_level, _C.maybe_get_bdim,
    _C.get_inplace_requires_grad_allowed, _C.get_single_level_autograd_function_allowed, _C.maybe_current_level,
    _NATIVE._is_fwd_grad_enabled, _HOOKS._saved_tensors_hooks_get_disabled_error_message,
)  # fmt: skip
set_tensor_requires_grad: Any = getattr(_eager_transforms, "_set_tensor_requires_grad")
autograd_grad_of_transforms: Any = getattr(_eager_transforms, "_autograd_grad")
# Python functions that load batching rules and derivatives at their first call.
transform_loaders: tuple[Any, ...] = tuple(
    {
        id(found): found
        for found in (
            _vmap.lazy_load_decompositions,
            getattr(_predispatch, "lazy_load_decompositions", _vmap.lazy_load_decompositions),
        )
    }.values()
)
load_forward_derivatives: Callable[[], None] = getattr(_forward_ad, "_maybe_load_decompositions")
# The decorator that copies the attributes of the transformed function to what a transform returns.
wraps_transformed: Any = getattr(_apis, "_wraps_without_dynamo_attrs", None)


def load_batching_rules() -> None:
    """Registers what torch registers at the first vmap: batching rules for a few operators, which the C++ functions find."""
    if not getattr(_predispatch, "DECOMPOSITIONS_LOADED", False):
        _vmap.lazy_load_decompositions()


def transform_depth() -> int:
    """How many transforms of torch.func are active."""
    return _C.get_dynamic_layer_stack_depth()


# By the kind of the innermost transform. The function of torch that leaves several at once leaves each twice on torch 2.11.
_LEAVE: dict[str, Callable[[], Any]] = {
    "Vmap": _C._vmap_decrement_nesting,
    "Grad": _C._grad_decrement_nesting,
    "Jvp": _C._jvp_decrement_nesting,
    "Functionalize": _C._func_decrement_nesting,
}


def transform_kinds() -> tuple[str, ...]:
    """The active transforms, outermost first: "Vmap", "Grad" (also of vjp), "Jvp" and others."""
    return tuple(layer.key().name for layer in _C.get_interpreter_stack() or ())


class VmapInfo(NamedTuple):
    """What the `vmap` method of an autograd.Function receives first. It looks like torch's tuple of that name."""

    batch_size: Any
    randomness: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransformLayer:
    """An active transform. `info` is what vmap tells the `vmap` method of an autograd.Function."""

    kind: str
    level: int
    info: VmapInfo | None = None

    def unwrapped(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int | None]:
        """The tensor below this transform, and the dimension that vmap runs over, if it runs over this tensor."""
        if self.info is not None:
            return _C._unwrap_batched(tensor, self.level)
        return _C._unwrap_for_grad(tensor, self.level), None


def transform_layers() -> tuple[TransformLayer, ...]:
    """The active transforms, outermost first."""
    found = []
    for layer in _C.get_interpreter_stack() or ():
        kind, info = layer.key().name, None
        if kind == "Vmap":
            pointer = _C.CVmapInterpreterPtr(layer)
            info = VmapInfo(pointer.batchSize(), pointer.randomness().name.lower())
        found.append(TransformLayer(kind=kind, level=layer.level(), info=info))
    return tuple(found)


def mapped_over(tensor: torch.Tensor, dim: int | None, level: int) -> torch.Tensor:
    """The slices of the tensor along a dimension, as the vmap of that level sees them."""
    return tensor if dim is None else _C._add_batch_dim(tensor, dim, level)


def levels_with_gradient(tensor: torch.Tensor) -> frozenset[int]:
    """The levels of torch.func.grad at which the tensor requires grad, and 0 if it does outside of all transforms."""
    found = []
    while _C.is_functorch_wrapped_tensor(tensor):
        if _C.is_gradtrackingtensor(tensor) and tensor.requires_grad:
            found.append(_C.maybe_get_level(tensor))
        tensor = _C.get_unwrapped(tensor)
    return frozenset([*found, *([0] if tensor.requires_grad else [])])


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether the tensor belongs to a transform."""
    return _C.is_functorch_wrapped_tensor(tensor)


def without_wrappers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside the wrappers of transforms; of a mapped tensor, all slices."""
    while _C.is_functorch_wrapped_tensor(tensor):
        tensor = _C.get_unwrapped(tensor)
    return tensor


def mapped_levels(tensor: torch.Tensor) -> frozenset[int]:
    """The levels of the vmaps that run over the tensor."""
    found = []
    while _C.is_functorch_wrapped_tensor(tensor):
        if _C.is_batchedtensor(tensor):
            found.append(_C.maybe_get_level(tensor))
        tensor = _C.get_unwrapped(tensor)
    return frozenset(found)


def is_mapped(tensor: torch.Tensor) -> bool:
    """Whether a vmap runs over the tensor, so that it stands for many slices."""
    return bool(mapped_levels(tensor))


def transform_state() -> tuple[Any, ...]:
    """The state that `transform_setters` change, as far as torch can tell: all but the level of forward-mode AD."""
    return (
        transform_depth(), torch._C._is_fwd_grad_enabled(), _HOOKS._saved_tensors_hooks_get_disabled_error_message()
    )  # fmt: skip


def restore_transforms(state: tuple[Any, ...]) -> None:
    """Leaves the transforms that were entered since, because an exception or a graph break has left the code that would."""
    depth, forward_mode, message = state
    for kind in reversed(transform_kinds()[depth:]):
        _LEAVE[kind]()
    _NATIVE._set_fwd_grad_enabled(forward_mode)
    if message is None:
        _HOOKS._saved_tensors_hooks_enable()
    else:
        _HOOKS._saved_tensors_hooks_disable(message)
    if not depth:
        _leave_dual_level()


@contextlib.contextmanager
def leaving_transforms() -> Iterator[None]:
    """A block from which an exception leaves the transforms that were entered in it: a graph has no `finally`."""
    before = transform_state()
    try:
        yield
    except BaseException:
        restore_transforms(before)
        raise


@contextlib.contextmanager
def outside_of_transforms() -> Iterator[None]:
    """A block in which no transform is active. They are active again afterwards."""
    with below_transforms(0):
        yield


@contextlib.contextmanager
def below_transforms(depth: int) -> Iterator[None]:
    """A block in which only the outermost transforms are active, this many. All are active again afterwards."""
    inner = []
    while transform_depth() > depth:
        inner.append(_C.pop_dynamic_layer_stack())
    try:
        yield
    finally:
        for layer in reversed(inner):
            _C.push_dynamic_layer_stack(layer)


def _leave_dual_level() -> None:
    """Leaves the level of forward-mode AD. There is at most one, and entering another one raises."""
    try:
        entered = _NATIVE._enter_dual_level()
    except RuntimeError:
        entered = 0
    _NATIVE._exit_dual_level(level=entered)


__all__ = [
    "TransformLayer",
    "autograd_grad_of_transforms",
    "below_transforms",
    "is_mapped",
    "is_wrapped",
    "leaving_transforms",
    "levels_with_gradient",
    "load_batching_rules",
    "load_forward_derivatives",
    "mapped_levels",
    "mapped_over",
    "outside_of_transforms",
    "restore_transforms",
    "set_tensor_requires_grad",
    "transform_depth",
    "transform_kinds",
    "transform_layers",
    "transform_loaders",
    "transform_operators",
    "transform_questions",
    "transform_setters",
    "transform_state",
    "without_wrappers",
    "wraps_transformed",
]
