"""The subject `make_fx`: torch's proxy tracing to an aten graph, in real, fake or symbolic mode, and the graph run.

Counterpart: torch/fx/experimental/proxy_tensor.py make_fx
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from oracle.subjects.traced import FlatProgram, FlatTrace, TracedSubject


class GraphTracedSubject(TracedSubject):
    """A trace that is an fx.GraphModule whose attributes are the captured tensors."""

    def replace_state(self, traced: FlatTrace, originals: dict[int, torch.Tensor], flat: FlatProgram) -> None:
        assert isinstance(traced, torch.fx.GraphModule), type(traced)
        for module in traced.modules():
            held = {**module.__dict__, **module._parameters, **module._buffers}
            for name, value in held.items():
                original = originals.get(id(value)) if isinstance(value, torch.Tensor) else None
                if original is not None:
                    setattr(module, name, original)


class MakeFx(GraphTracedSubject):
    """torch's make_fx. Parameters stay real tensors in fake and symbolic mode: torch fakes them while tracing."""

    def trace(self, flat: FlatProgram, tensors: list[torch.Tensor]) -> FlatTrace:
        mode = self.spec.options.get("mode", "real")
        return make_fx(flat_function(flat), tracing_mode=mode, _allow_non_fake_inputs=mode != "real")(*tensors)


def flat_function(flat: FlatProgram) -> Callable[..., Any]:
    """make_fx names the graph after its function, and reads its signature."""

    def program(*tensors: torch.Tensor) -> list[Any]:
        return flat(*tensors)

    return program
