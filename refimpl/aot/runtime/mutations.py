"""The first half of the epilogue: it applies the program's mutations of inputs to the caller's tensors.

Counterpart: torch/_functorch/_aot_autograd/runtime_wrappers.py _create_runtime_wrapper (the part on mutated inputs)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from refimpl.aot.analysis.metadata import ForwardOutput, Geometry, InputMutation

Apply = Callable[[torch.Tensor, torch.Tensor], None]
Step = Callable[[torch.Tensor, Sequence[Any]], Any]  # arguments: the caller's tensor, all forward outputs


def steps_of_mutation(mutation: InputMutation) -> Iterator[Step]:
    """The steps that apply a mutation to an input, in order."""
    if mutation.detaches:
        yield lambda tensor, forward: tensor.detach_()
    if mutation.left_position is not None:
        yield _step(mutation.left_position, apply_mutation(replace(mutation, geometry=None)))
    if mutation.sets_storage:
        return
    if mutation.numbers:
        yield _step_of_call(mutation)
    else:
        yield _step(mutation.position, apply_mutation(mutation))


def _step(position: int, apply: Apply) -> Step:
    return lambda tensor, forward: apply(tensor, forward[position])


def _step_of_call(mutation: InputMutation) -> Step:
    """A step whose new sizes and strides are outputs of the forward graph."""

    def step(tensor: torch.Tensor, forward: Sequence[Any]) -> None:
        numbers = [forward[n.position] if isinstance(n, ForwardOutput) else n for n in mutation.numbers]
        count = len(numbers) // 2
        geometry = Geometry(size=tuple(numbers[:count]), stride=tuple(numbers[count:-1]), offset=numbers[-1])
        apply_mutation(replace(mutation, geometry=geometry))(tensor, forward[mutation.position])

    return step


def apply_mutation(mutation: InputMutation) -> Apply:
    """A function of the caller's tensor and its new value, which has a history if gradients flow through the write."""
    geometry = mutation.geometry
    if geometry is None and not mutation.writes_data:
        return _leave
    if geometry is None:
        assert mutation.writes_data
        write = _write
        if not mutation.is_visible_to_autograd:
            write = _write_unseen if mutation.bumps_version else _write_unnoticed
        return functools.partial(_write_overlapping, write=write) if mutation.overlaps_itself else write
    return _geometry_change(mutation, geometry)


def _leave(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Neither data nor geometry have changed."""


def _write(tensor: torch.Tensor, value: torch.Tensor) -> None:
    if tensor is not value:
        tensor.copy_(value)


def _write_overlapping(tensor: torch.Tensor, value: torch.Tensor, *, write: Apply) -> None:
    """Write along expanded dimensions once, since `copy_` refuses a target whose elements share memory."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor, value = tensor.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    write(tensor, value)


def _write_unseen(tensor: torch.Tensor, value: torch.Tensor) -> None:
    if torch.is_inference_mode_enabled() or not (tensor.requires_grad or value.requires_grad):
        tensor.copy_(value)
        return
    with torch.no_grad():
        tensor.detach().copy_(value)


def _write_unnoticed(tensor: torch.Tensor, value: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.data.copy_(value)


def in_memory(memory: torch.Tensor, *, is_inference: bool) -> torch.Tensor:
    """A new tensor in the memory of `memory`, without a history."""
    with torch.inference_mode(is_inference):
        result = torch.empty(0, dtype=memory.dtype, device=memory.device)
    return result.set_(memory)  # type: ignore[call-overload]


def as_inference(result: torch.Tensor) -> torch.Tensor:
    """An inference tensor in the memory of a result. A lazily conjugated or negated result is returned unchanged."""
    if result.is_conj() or result.is_neg():
        return result
    with torch.inference_mode():
        return torch.empty(0, dtype=result.dtype, device=result.device).set_(result)  # type: ignore[call-overload]


def place(tensor: torch.Tensor, memory: torch.Tensor, mutation: InputMutation, forward: Sequence[Any]) -> None:
    """Let an input use the memory of `memory`. If it has a new history, a write of equal values gives it that history."""
    with torch.no_grad():
        if mutation.assigns_data:
            assert mutation.placement is not None
            tensor.data = in_memory(memory.detach(), is_inference=mutation.placement.is_inference)
        else:
            tensor.set_(memory.detach())  # type: ignore[call-overload]
    if mutation.is_visible_to_autograd and mutation.is_visible_after_move and mutation.requires_grad:
        if not tensor._is_view():
            tensor.detach_()  # the history from before is of another shape
        tensor.copy_(forward[mutation.position])


def _geometry_change(mutation: InputMutation, geometry: Geometry) -> Apply:
    size, stride, offset = geometry.size, geometry.stride, geometry.offset

    def change(tensor: torch.Tensor, value: torch.Tensor) -> None:
        if tuple(tensor.shape) != tuple(size) or tensor.stride() != tuple(stride) or tensor.storage_offset() != offset:
            # Autograd takes a view for a leaf after its base got a history, until `grad_fn` is read.
            _ = tensor.grad_fn
            extent = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
            if (
                0 not in size and extent * tensor.itemsize > tensor.untyped_storage().nbytes()
            ):  # an `out=` that was too small
                tensor.untyped_storage().resize_(extent * tensor.itemsize)
            with torch.set_grad_enabled(mutation.is_visible_to_autograd and torch.is_grad_enabled()):
                tensor.as_strided_(size, stride, offset)
        if mutation.writes_data:
            write = _write if mutation.is_visible_to_autograd else _write_unseen
            write(tensor, value)

    return change
