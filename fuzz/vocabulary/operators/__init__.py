"""Operator specifications: hundreds of operators, each with a function that draws a call of it.

`OPERATORS` maps names to specifications. There is one file per category, with a table whose rows describe the operands
(`fuzz.vocabulary.operators.build`, `fuzz.vocabulary.operators.operands`). Operators that this version of torch lacks are left
out.
"""

from __future__ import annotations

import torch

from fuzz.vocabulary.operators.activations import ACTIVATIONS
from fuzz.vocabulary.operators.attention import ATTENTION
from fuzz.vocabulary.operators.build import guarded
from fuzz.vocabulary.operators.casts import CASTS
from fuzz.vocabulary.operators.convolutions import CONVOLUTIONS
from fuzz.vocabulary.operators.creation import CREATION
from fuzz.vocabulary.operators.fft import FFT, WINDOWS
from fuzz.vocabulary.operators.indexing import INDEXING
from fuzz.vocabulary.operators.joining import JOINING
from fuzz.vocabulary.operators.linalg import LINALG
from fuzz.vocabulary.operators.lists import LISTS
from fuzz.vocabulary.operators.losses import LOSSES
from fuzz.vocabulary.operators.matmul import MATMUL
from fuzz.vocabulary.operators.norms import NORMS
from fuzz.vocabulary.operators.pointwise import POINTWISE
from fuzz.vocabulary.operators.primitives import PRIMITIVES
from fuzz.vocabulary.operators.python_operators import PYTHON_OPERATORS
from fuzz.vocabulary.operators.random_numbers import RANDOM_NUMBERS
from fuzz.vocabulary.operators.reductions import REDUCTIONS
from fuzz.vocabulary.operators.scans import SCANS, SORTS
from fuzz.vocabulary.operators.spec import OpSpec
from fuzz.vocabulary.operators.special import SPECIAL
from fuzz.vocabulary.operators.views import VIEWS
from fuzz.vocabulary.operators.writing import IN_PLACE, OUT_VARIANTS

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
