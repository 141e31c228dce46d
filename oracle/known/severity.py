"""Severity of a known issue for a user who does not know of it. Does not import torch."""

from __future__ import annotations

from enum import Enum


class Severity(str, Enum):
    """Most severe first: a wrong result without an error comes before everything that stops the program."""

    VALUE = "wrong value"
    GRADIENT = "wrong gradient"
    MUTATION = "wrong mutation"
    STATE = "wrong state"
    CRASH = "crash"
    REFUSAL = "refusal"
    METADATA = "metadata"
    STRIDES = "strides"
    SIGN = "sign of zero"

    @property
    def rank(self) -> int:
        """0 for the most severe."""
        return list(Severity).index(self)

    @property
    def meaning(self) -> str:
        """A sentence that explains the word."""
        return _MEANINGS[self]


_MEANINGS = {
    Severity.VALUE: "The compiled program returns wrong numbers and says nothing.",
    Severity.GRADIENT: "The results are right, their gradients are wrong, and nothing says so.",
    Severity.MUTATION: "A write reaches the wrong tensor or none, or a result shares memory where eager's does not.",
    Severity.STATE: "Module state, the random generator or process state is left other than eager leaves it.",
    Severity.CRASH: "The process dies.",
    Severity.REFUSAL: "The compiler raises an error for a program that eager runs.",
    Severity.METADATA: "Values are right; `requires_grad`, `is_leaf`, the type or another property is not eager's.",
    Severity.STRIDES: "Values are right; the strides of a result are not eager's.",
    Severity.SIGN: "Values are right but for the sign of a zero.",
}
