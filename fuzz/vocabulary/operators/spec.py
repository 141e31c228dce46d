"""OpSpec: the description of an operator, with a function that draws a call of it.

Counterpart: torch/testing/_internal/opinfo/core.py OpInfo. Differs: an OpInfo lists samples of an operator alone; a specification
draws a call that fits a program under construction, avoids undefined results, and uses no part of torch's test machinery.
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
    `scene.fresh()`; None if the scene has no operand that fits. Eager need not accept the call: the scene tries it, and drops it
    if eager refuses.
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
    aten: tuple[str, ...] = ()  # overloads that it calls, if the name does not tell
    meta: Mapping[str, str] = field(default_factory=dict)  # notes: reasons for a restricted domain
