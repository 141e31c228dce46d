"""refimpl: an independent, readable reimplementation of the road from a Python function to a kernel."""

from __future__ import annotations

from refimpl.errors import DataDependentRead, RefimplError, UnsupportedByRefimpl, UntraceableOutput
from refimpl.trace.make_fx import make_fx

# Upstream dotted name -> the name here that stands in for it, same signature.
SUBSTITUTIONS: dict[str, str] = {"torch.fx.experimental.proxy_tensor.make_fx": "refimpl.make_fx"}

__all__ = ["SUBSTITUTIONS", "DataDependentRead", "RefimplError", "UnsupportedByRefimpl", "UntraceableOutput", "make_fx"]
