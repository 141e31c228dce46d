"""The subjects of the reference implementation, and what it offers in upstream's place. The only module outside refimpl
that imports it.

Counterpart: torch/fx/experimental/proxy_tensor.py make_fx
"""

from __future__ import annotations

import pkgutil
from pathlib import Path

import torch

import refimpl
from oracle.subjects.make_fx import GraphTracedSubject, flat_function
from oracle.subjects.traced import FlatProgram, FlatTrace

SOURCE_FOLDER = Path(refimpl.__file__).parent


def substituted_names() -> tuple[str, ...]:
    """The upstream dotted names that `refimpl.SUBSTITUTIONS` has a counterpart of, sorted."""
    return tuple(sorted(refimpl.SUBSTITUTIONS))


def substitutes() -> dict[str, object]:
    """Upstream dotted name -> the object of refimpl that stands in for it. AttributeError where the table names nothing."""
    return {upstream: pkgutil.resolve_name(ours) for upstream, ours in sorted(refimpl.SUBSTITUTIONS.items())}


def substitute_places() -> dict[str, str]:
    """Upstream dotted name -> the dotted name of what stands in for it: what `mock.patch` has to be told."""
    return dict(sorted(refimpl.SUBSTITUTIONS.items()))


class RefimplMakeFx(GraphTracedSubject):
    """refimpl's make_fx, in real, fake or symbolic mode."""

    def trace(self, flat: FlatProgram, tensors: list[torch.Tensor]) -> FlatTrace:
        mode = self.spec.options.get("mode", "real")
        return refimpl.make_fx(flat_function(flat), tracing_mode=mode, _allow_non_fake_inputs=mode != "real")(*tensors)
