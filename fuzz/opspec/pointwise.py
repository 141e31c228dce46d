"""Pointwise operators."""

from __future__ import annotations

from fuzz.opspec.rules import binary, unary
from fuzz.opspec.spec import OpSpec
from fuzz.tensors.specs import COMPLEX, FLOATS, INTEGERS

_ALL = (*FLOATS, *INTEGERS, *COMPLEX)

POINTWISE = (
    *(
        OpSpec(name=f"torch.{name}", category="pointwise", draw_call=unary(f"torch.{name}", FLOATS))
        for name in ("sin", "cos", "exp", "tanh", "sigmoid", "relu", "abs", "floor", "erf")
    ),
    *(
        OpSpec(name=f"torch.{name}", category="pointwise", draw_call=binary(f"torch.{name}", _ALL))
        for name in ("add", "sub", "mul")
    ),
)
