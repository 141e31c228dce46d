"""Operator specifications: hundreds of operators, each with how to draw a call of it.

`OPERATORS` maps a spec's name to it. One file a category; a row of its table says what the operator takes (`fuzz.opspec.build`,
`fuzz.opspec.operands`).
"""

from __future__ import annotations

from fuzz.opspec.casts import CASTS
from fuzz.opspec.linalg import LINALG
from fuzz.opspec.matmul import MATMUL
from fuzz.opspec.pointwise import POINTWISE
from fuzz.opspec.python_operators import PYTHON_OPERATORS
from fuzz.opspec.reductions import REDUCTIONS
from fuzz.opspec.scans import SCANS, SORTS
from fuzz.opspec.spec import OpSpec
from fuzz.opspec.special import SPECIAL

__all__ = ["OPERATORS", "OpSpec"]

_TABLES = (POINTWISE, PYTHON_OPERATORS, SPECIAL, CASTS, REDUCTIONS, SCANS, SORTS, MATMUL, LINALG)

OPERATORS: dict[str, OpSpec] = {spec.name: spec for table in _TABLES for spec in table}
assert len(OPERATORS) == sum(map(len, _TABLES)), "two specifications have one name"
