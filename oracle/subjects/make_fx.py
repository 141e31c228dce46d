"""The subject `make_fx`: traces an aten graph by torch's make_fx, in real, fake or symbolic mode, and runs it.

Counterpart: torch/fx/experimental/proxy_tensor.py make_fx
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from oracle.subjects.traced import FlatProgram, FlatTrace, TracedSubject


class GraphTracedSubject(TracedSubject):
    """A subject whose trace is an fx.GraphModule with the captured tensors as attributes."""

    def replace_state(self, traced: FlatTrace, originals: dict[int, torch.Tensor], flat: FlatProgram) -> None:
        assert isinstance(traced, torch.fx.GraphModule), type(traced)
        for module in traced.modules():
            held = {**module.__dict__, **module._parameters, **module._buffers}
            for name, value in held.items():
                original = originals.get(id(value)) if isinstance(value, torch.Tensor) else None
                if original is not None:
                    setattr(module, name, original)


class MakeFx(GraphTracedSubject):
    """torch's make_fx. Parameters are real tensors in fake and symbolic mode too: torch makes them fake while tracing."""

    def trace(self, flat: FlatProgram, tensors: list[torch.Tensor]) -> FlatTrace:
        mode = self.spec.options.get("mode", "real")
        return make_fx(flat_function(flat), tracing_mode=mode, _allow_non_fake_inputs=mode != "real")(*tensors)


def flat_function(flat: FlatProgram) -> Callable[..., Any]:
    """The program as a function with a name and a signature, which make_fx reads."""

    def program(*tensors: torch.Tensor) -> list[Any]:
        return flat(*tensors)

    return program
