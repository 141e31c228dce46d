"""Operator specifications: hundreds of operators, each with how to draw a call of it.

`OPERATORS` maps a spec's name to it. One file a category; a row of its table says what the operator takes (`fuzz.opspec.build`,
`fuzz.opspec.operands`). Operators that this version of torch does not have are left out.
"""

from __future__ import annotations

import torch

from fuzz.opspec.activations import ACTIVATIONS
from fuzz.opspec.attention import ATTENTION
from fuzz.opspec.build import guarded
from fuzz.opspec.casts import CASTS
from fuzz.opspec.convolutions import CONVOLUTIONS
from fuzz.opspec.creation import CREATION
from fuzz.opspec.fft import FFT, WINDOWS
from fuzz.opspec.indexing import INDEXING
from fuzz.opspec.joining import JOINING
from fuzz.opspec.linalg import LINALG
from fuzz.opspec.lists import LISTS
from fuzz.opspec.losses import LOSSES
from fuzz.opspec.matmul import MATMUL
from fuzz.opspec.norms import NORMS
from fuzz.opspec.pointwise import POINTWISE
from fuzz.opspec.primitives import PRIMITIVES
from fuzz.opspec.python_operators import PYTHON_OPERATORS
from fuzz.opspec.random_numbers import RANDOM_NUMBERS
from fuzz.opspec.reductions import REDUCTIONS
from fuzz.opspec.scans import SCANS, SORTS
from fuzz.opspec.spec import OpSpec
from fuzz.opspec.special import SPECIAL
from fuzz.opspec.views import VIEWS
from fuzz.opspec.writing import IN_PLACE, OUT_VARIANTS

__all__ = ["OPERATORS", "OpSpec"]

_TABLES = (
    ACTIVATIONS,
    ATTENTION,
    CASTS,
    CONVOLUTIONS,
    CREATION,
    FFT,
    WINDOWS,
    INDEXING,
    JOINING,
    LINALG,
    LOSSES,
    MATMUL,
    NORMS,
    POINTWISE,
    PYTHON_OPERATORS,
    REDUCTIONS,
    SCANS,
    SORTS,
    SPECIAL,
    VIEWS,
    IN_PLACE,
    OUT_VARIANTS,
    LISTS,
    RANDOM_NUMBERS,
    PRIMITIVES,
)


def _exists(spec: OpSpec) -> bool:
    path = spec.name.split("(")[0]
    if path.startswith("."):
        return hasattr(torch.Tensor, path[1:])
    place: object = torch
    for part in path.split(".")[1:] if path.startswith("torch.") else ():
        place = getattr(place, part, None)
    return place is not None


OPERATORS: dict[str, OpSpec] = {spec.name: guarded(spec) for table in _TABLES for spec in table if _exists(spec)}
assert len(OPERATORS) == sum(_exists(spec) for table in _TABLES for spec in table), "two specifications have one name"
