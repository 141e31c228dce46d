"""Compares the reference implementation's graphs with torch's on operators and models, and torch's fake kernels with real ones.

Only workers import torch: they trace, and the parent process plans and makes tables.
"""

from __future__ import annotations

MODES = ("real", "fake", "symbolic")
DIRECTIONS = ("forward", "joint")  # joint: forward, and gradients by torch.autograd.grad, in one traced function
# As a dtype: int64 if the operator supports it, else the first other integer dtype that it supports.
INTEGER = "integer"
INTEGER_DTYPES = ("int64", "int32", "int16", "int8", "uint8")
OURS = "refimpl.make_fx"
THEIRS = "make_fx"
