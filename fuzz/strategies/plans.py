"""Call plans: what is called again, on what, after which change. Guards are fuzzed here, not only code."""

from __future__ import annotations

from dataclasses import replace

import torch

from fuzz.draw import Draw
from fuzz.scene import Scene
from fuzz.structure import FuzzProgram
from oracle.program import Call


def draw_plan(draw: Draw, scene: Scene, program: FuzzProgram) -> FuzzProgram:
    """The program with its calls. The first call has the arguments the scene was made with."""
    wants_gradients = any(isinstance(v, torch.Tensor) and v.requires_grad for v in scene.values.values())
    grad_mode = "grad" if draw.chance(0.9) else "no_grad"
    first = Call(args=[*scene.specs.values()], backward=wants_gradients and grad_mode == "grad", grad_mode=grad_mode)
    return replace(program, calls=(first,))
