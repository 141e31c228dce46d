"""How calls of operators with a common shape are drawn: functions that make `DrawCall`s."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzz.draw import Draw
from fuzz.opspec.spec import DrawCall
from fuzz.scene import Scene
from fuzz.structure import OpCall, Ref
from fuzz.tensors.shapes import draw_broadcastable
from fuzz.tensors.specs import draw_dtype


def unary(target: str, dtypes: Sequence[str], *, domain: str = "any") -> DrawCall:
    """f(x)."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        x = scene.tensor(lambda t: _is_one_of(t, dtypes), dtype=None, domain=domain)
        if not _is_one_of(scene.values[x], dtypes):
            x = scene.new_tensor(None, draw_dtype(draw, dtypes), domain=domain)
        return OpCall(target=target, args=(Ref(x),), results=(scene.fresh(),))

    return draw_call


def binary(target: str, dtypes: Sequence[str], *, mixes: bool = True, domain: str = "any") -> DrawCall:
    """f(x, y) with broadcasting both ways, a Python number or a 0-d tensor now and then, and (`mixes`) another dtype."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        x = scene.tensor(lambda t: _is_one_of(t, dtypes))
        if not _is_one_of(scene.values[x], dtypes):
            x = scene.new_tensor(None, draw_dtype(draw, dtypes))
        tensor = scene.values[x]
        if draw.chance(0.15):
            return OpCall(target=target, args=(Ref(x), scene.number(tensor)), results=(scene.fresh(),))
        shape = draw_broadcastable(draw, tensor.shape) if draw.chance(0.4) else tuple(tensor.shape)
        dtype = None if mixes and draw.chance(0.2) else str(tensor.dtype).removeprefix("torch.")
        y = scene.tensor(lambda t: _is_one_of(t, dtypes), shape=shape, dtype=dtype, domain=domain)
        args = (Ref(y), Ref(x)) if draw.chance(0.2) and domain == "any" else (Ref(x), Ref(y))
        return OpCall(target=target, args=args, results=(scene.fresh(),))

    return draw_call


def _is_one_of(tensor: torch.Tensor, dtypes: Sequence[str]) -> bool:
    return str(tensor.dtype).removeprefix("torch.") in dtypes
