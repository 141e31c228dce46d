"""The subjects of the reference implementation. The only module outside refimpl that imports it.

Counterpart: torch/fx/experimental/proxy_tensor.py make_fx
"""

from __future__ import annotations

import torch

import refimpl
from oracle.subjects.make_fx import GraphTracedSubject, flat_function
from oracle.subjects.traced import FlatProgram, FlatTrace


class RefimplMakeFx(GraphTracedSubject):
    """refimpl's make_fx, in real or fake mode."""

    def trace(self, flat: FlatProgram, tensors: list[torch.Tensor]) -> FlatTrace:
        mode = self.spec.options.get("mode", "real")
        return refimpl.make_fx(flat_function(flat), tracing_mode=mode, _allow_non_fake_inputs=mode != "real")(*tensors)
