"""The subject `jit_trace`: runs the graph of torch.jit.trace.

Counterpart: torch/jit/_trace.py trace
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from oracle.subjects.traced import FlatProgram, FlatTrace, TracedSubject


class _Holder(torch.nn.Module):
    """A module with the program's parameters, since jit.trace treats only those of the traced module as parameters."""

    def __init__(self, flat: FlatProgram) -> None:
        super().__init__()
        self.flat = flat
        if isinstance(flat.target, torch.nn.Module):
            self.target = flat.target

    def forward(self, *tensors: torch.Tensor) -> Any:
        return tuple(self.flat(*tensors))


class JitTrace(TracedSubject):
    """torch.jit.trace without its check, which would run the program again."""

    def trace(self, flat: FlatProgram, tensors: list[torch.Tensor]) -> FlatTrace:
        holder = _Holder(flat)
        with (
            warnings.catch_warnings()
        ):  # warnings that TorchScript is deprecated, and tracer warnings about what the oracle finds anyway
            warnings.simplefilter("ignore")
            return torch.jit.trace(holder, tuple(tensors), check_trace=False)  # pyright: ignore

    def replace_state(self, traced: FlatTrace, originals: dict[int, torch.Tensor], flat: FlatProgram) -> None:
        assert isinstance(traced, torch.jit.ScriptModule)
        assert isinstance(flat.target, torch.nn.Module)
        copies = {
            **dict(flat.target.named_parameters(remove_duplicate=False)),
            **dict(flat.target.named_buffers(remove_duplicate=False)),
        }
        for path, tensor in copies.items():
            owner_path, _, name = f"target.{path}".rpartition(".")
            owner = traced.get_submodule(owner_path)
            if hasattr(owner, name):  # the tracer drops what the program does not use
                setattr(owner, name, originals[id(tensor)])
