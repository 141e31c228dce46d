"""Indices of tensors as programs write them: slices, numbers, new axes, ellipsis; masks and index tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Scene
from fuzz.program.structure import Expr, Items, Operand, Ref


def draw_slice(draw: Draw, size: int) -> str:
    """A slice of a dimension, as text. Not empty unless the dimension is, but for a rare one."""
    if size < 2 or draw.chance(0.03):
        return draw.choice((":", "::2", "0:1", ":-1", "1:"))
    at = draw.integer(1, size - 1)
    kind = draw.weighted({"from": 4, "to": 4, "step": 3, "both": 2, "negative": 2, "odd": 2, "far": 1, "stepped": 1})
    match kind:
        case "from":
            return f"{at}:"
        case "to":
            return f":{at}"
        case "step":
            return f"::{draw.choice((2, 3))}"
        case "both":
            return f"{draw.integer(0, at - 1)}:{at}"
        case "negative":
            return draw.choice((":-1", f"-{at}:"))
        case "odd":
            return "1::2"
        case "far":
            return draw.choice((f":{size + 3}", f"{at}:{size + 50}", f"-{size + 2}:"))
        case _:
            return f"{draw.integer(0, at - 1)}:{size}:{draw.choice((2, 3))}"


def draw_basic_index(draw: Draw, shape: Sequence[int], *, can_insert: bool = True) -> Expr | None:
    """Slices and numbers, at least one that matters; None for a tensor without dimensions."""
    if not shape:
        return None
    leading = draw.integer(0, len(shape) - 1)
    parts = [":"] * leading
    if leading and leading == len(shape) - 1 and draw.chance(0.3):
        parts = ["..."]
    size = shape[leading]
    if size and draw.chance(0.3):
        parts.append(str(draw.integer(0, size - 1) if draw.chance(0.7) else -draw.integer(1, size)))
    else:
        parts.append(draw_slice(draw, size))
    if leading + 1 < len(shape) and draw.chance(0.3):
        parts.append(draw_slice(draw, shape[leading + 1]))
    if can_insert and draw.chance(0.1):
        parts.insert(draw.integer(0, len(parts)), "None")
    return Expr(", ".join(parts))


def draw_mask(draw: Draw, scene: Scene, tensor: torch.Tensor) -> str:
    """A bool tensor of this shape, or of its leading dimensions."""
    rank = tensor.dim() if draw.chance(0.7) else draw.integer(min(1, tensor.dim()), tensor.dim())
    return scene.tensor(shape=tuple(tensor.shape)[:rank], dtype="bool")


def draw_positions(draw: Draw, scene: Scene, size: int, *, count: int | None = None, distinct: bool = False) -> Operand:
    """Positions in a dimension of this size, which is positive: an index tensor (an argument), or numbers in the program.

    `distinct`: no position occurs twice, so that a write is defined.
    """
    if distinct or draw.chance(0.5):
        wanted = min(size, count or draw.integer(1, min(size, 4)))
        start = draw.integer(0, size - wanted)
        numbers = [*range(start, start + wanted)]
        if draw.chance(0.5):
            numbers.reverse()
        if count is not None and len(numbers) < count:
            numbers += [numbers[-1]] * (count - len(numbers))
        if not distinct and len(numbers) > 1 and draw.chance(0.5):
            numbers[0] = numbers[-1]
        if draw.chance(0.2):
            numbers = [number - size for number in numbers]
        return Expr(f"torch.tensor({numbers})")
    return Ref(scene.tensor(shape=(count or draw.integer(1, 6),), dtype="int64", domain=f"index:{size}"))


def draw_advanced_index(draw: Draw, scene: Scene, tensor: torch.Tensor) -> Operand | None:
    """A mask or index tensors, with slices around them. None where there is nothing to index."""
    if not tensor.dim() or not tensor.numel():
        return None
    if draw.chance(0.4):
        return Ref(draw_mask(draw, scene, tensor))
    dim = draw.integer(0, min(tensor.dim(), 2) - 1)
    parts: list[Operand] = [Expr(":")] * dim
    parts.append(draw_positions(draw, scene, tensor.shape[dim]))
    if dim + 1 < tensor.dim() and draw.chance(0.3):
        parts.append(Expr(draw_slice(draw, tensor.shape[dim + 1])))
    return parts[0] if len(parts) == 1 else Items(tuple(parts), "tuple")
