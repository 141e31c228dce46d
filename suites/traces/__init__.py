"""Traces: the reference implementation's graphs beside torch's, over operators and models, and torch's fake results beside
real ones. Torch-free at this level: the parent process plans and tabulates, workers trace.
"""

from __future__ import annotations

MODES = ("real", "fake", "symbolic")
DIRECTIONS = ("forward", "joint")  # joint: forward, and gradients by torch.autograd.grad, in one traced function
INTEGER = "integer"  # as a dtype: int64 where the operator takes it, else the first of the others that it takes
INTEGER_DTYPES = ("int64", "int32", "int16", "int8", "uint8")
OURS = "refimpl.make_fx"
THEIRS = "make_fx"
