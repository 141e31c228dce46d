"""Operator specifications: at least 300 operators, each with how to draw a call of it.

`OPERATORS` maps a spec's name to it. One file a category; rules that several share are in `fuzz.opspec.rules`.
"""

from __future__ import annotations

from fuzz.opspec.pointwise import POINTWISE
from fuzz.opspec.spec import OpSpec

__all__ = ["OPERATORS", "OpSpec"]

OPERATORS: dict[str, OpSpec] = {spec.name: spec for spec in (*POINTWISE,)}
