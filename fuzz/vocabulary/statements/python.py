"""All rules of Python features, which capture must trace or leave to Python."""

from __future__ import annotations

from fuzz.vocabulary.statements import (
    python_around,
    python_calls,
    python_classes,
    python_data,
    python_names,
    python_special,
    python_tensors,
)
from fuzz.vocabulary.statements.rule import Rule

RULES: tuple[Rule, ...] = (
    *python_names.RULES,
    *python_around.RULES,
    *python_calls.RULES,
    *python_classes.RULES,
    *python_data.RULES,
    *python_tensors.RULES,
    *python_special.RULES,
)
