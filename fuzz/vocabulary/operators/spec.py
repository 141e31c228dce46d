"""OpSpec: what the fuzzer knows of one operator: how to make a call of it that eager accepts, and what the call is.

Counterpart: torch/testing/_internal/opinfo/core.py OpInfo.
Differs: an OpInfo lists samples of an operator on its own; a specification draws a call that fits a program under construction,
keeps to what has one meaning, and is written against no part of torch's test machinery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Scene
from fuzz.program.structure import OpCall

DrawCall: TypeAlias = Callable[[Draw, Scene], OpCall | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """One operator as Python calls it.

    `draw_call` takes operands from the scene (or adds arguments to it) and returns the call with its results named by
    `scene.fresh()`; None where the scene has nothing that fits and nothing should be added. The call need not be accepted: the
    scene tries it, and drops what eager refuses.
    """

    name: str  # as it is called: "torch.add", "torch.nn.functional.relu", ".add_", "torch.ops.aten._softmax"
    category: (
        str  # "pointwise", "reduction", "matmul", "view", "index", "shape", "norm", "conv", "creation", "random", ...
    )
    draw_call: DrawCall
    weight: float = 1.0
    writes: bool = False  # in-place, out=, foreach in place
    is_random: bool = False
    is_view: bool = False
    aten: tuple[str, ...] = ()  # overloads it is known to call, where that is not plain from the name
    meta: Mapping[str, str] = field(default_factory=dict)  # notes: reasons for a narrowed domain
