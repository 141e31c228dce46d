"""Helpers for statements that write: calls, and operands that are not overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.geometry import partly_overlap, share_memory
from fuzz.draw.scene import Scene, dtype_name
from fuzz.program.structure import OpCall, Operand, Ref, Statement

Drawn: TypeAlias = "Statement | Sequence[Statement] | None"


def write(name: str, how: str, *args: Operand, keyword: tuple[str, Operand] | None = None, result: str = "") -> OpCall:
    """`name.how(*args)`, optionally with one keyword and bound to a name."""
    return OpCall(
        target=f".{how}",
        args=(Ref(name), *args),
        kwargs=(keyword,) if keyword else (),
        results=(result,) if result else (),
    )


def is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def is_float8(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() == 1


def beside(draw: Draw, scene: Scene, name: str, *, requires_grad: bool | None = None) -> Ref:
    """A tensor of the target's shape and dtype that does not partly overlap it."""
    tensor = scene.values[name]
    found = scene.pick(
        lambda other: (
            other is not tensor
            and other.shape == tensor.shape
            and other.dtype is tensor.dtype
            and not partly_overlap(other, tensor)
            and (requires_grad is None or other.requires_grad is requires_grad)
        )
    )
    return Ref(found or scene.new_tensor(tuple(tensor.shape), dtype_name(tensor), requires_grad=requires_grad))


def source_for(draw: Draw, scene: Scene, part: torch.Tensor, whole: torch.Tensor) -> Ref:
    """A tensor to write into a part: of its shape, or one that broadcasts to it; of its dtype, or one that can be cast."""
    found = scene.pick(
        lambda other: (
            other.dim() <= part.dim()
            and all(m in (1, n) for m, n in zip(reversed(other.shape), reversed(part.shape), strict=False))
            and torch.can_cast(other.dtype, part.dtype)
            and not share_memory(other, whole)
        )
    )
    if found is not None and draw.chance(0.6):
        return Ref(found)
    shape = tuple(part.shape)[1:] if draw.chance(0.2) else tuple(part.shape)
    return Ref(scene.new_tensor(shape, dtype_name(part)))
