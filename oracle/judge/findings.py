"""What the judge finds while it compares two outcomes: findings, what was accepted and why, and how much was compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from oracle.verdict import BiasSum, Compared, Status, WorstElement

_NONE: Mapping[str, int] = {}


class Severity(IntEnum):
    """The order in which findings of one call decide its status; the first is the verdict, the others stand in `also`.

    What makes values incomparable comes first, then wrong values, then what a caller sees only when asking for it.
    """

    STRUCTURE = 0  # other leaves
    METADATA = 1  # shape, dtype, device, layout
    RANDOM_STREAM = 2  # of a random program: explains the values that follow
    VALUES = 3
    MUTATION = 4
    GRADIENT = 5
    STATE = 6
    FLAGS = 7  # type, requires_grad, is_leaf, conj, neg, inference, coalesced, quantizer
    ALIAS = 8
    STRIDE = 9
    RNG = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference that is wrong."""

    severity: Severity
    status: Status
    call: int
    symptom: str
    worst: WorstElement | None = None


@dataclass(slots=True, kw_only=True)
class FindingsBuilder:
    """Collects what is found while two outcomes are compared."""

    findings: list[Finding] = field(default_factory=list)
    explained: list[str] = field(default_factory=list)
    compared: Compared = field(default_factory=Compared)
    max_ulp: float | None = None
    witnesses: Counter[str] = field(default_factory=Counter)  # name -> how many elements rest on it
    bias: list[BiasSum] = field(default_factory=list)  # of the tensors whose errors were measured
    produced: int = 0  # elements and numbers of outputs and gradients: what the program is run for

    def add(
        self, severity: Severity, status: Status, call: int, symptom: str, worst: WorstElement | None = None
    ) -> None:
        self.findings.append(
            Finding(severity=severity, status=status, call=call, symptom=f"call {call}: {symptom}", worst=worst)
        )

    def explain(self, call: int, text: str) -> None:
        self.explained.append(f"call {call}: {text}")

    def count(
        self,
        *,
        tensors: int = 0,
        elements: int = 0,
        others: int = 0,
        unstable: int = 0,
        witnesses: Mapping[str, int] = _NONE,
    ) -> None:
        self.compared += Compared(tensors=tensors, elements=elements, others=others, unstable_elements=unstable)
        self.witnesses.update(witnesses)

    def take_counts(self, other: FindingsBuilder) -> None:
        self.compared += other.compared
        self.produced += other.produced
        self.witnesses.update(other.witnesses)
        self.bias += other.bias

    def saw_ulp(self, ulp: float | None) -> None:
        if ulp is not None:
            self.max_ulp = ulp if self.max_ulp is None else max(self.max_ulp, ulp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a call's observation, and what a difference in it is called."""

    name: str  # attribute of CallObservation
    severity: Severity
    status: Status
    has_flags: bool = True  # requires_grad and the like are part of the promise
    other_kernels: tuple[str, ...] = (
        "other kernels",
        "vector loops",
    )  # of oracle.reruns.relaid, whose values are eager's as well


OUTPUTS = Section(name="outputs", severity=Severity.VALUES, status=Status.FAIL_ACCURACY)
INPUTS = Section(name="inputs_after", severity=Severity.MUTATION, status=Status.FAIL_MUTATION)
# A gradient's flags and strides are autograd's own business: accumulation may or may not keep the tensor it is given.
GRADIENTS = Section(
    name="gradients", severity=Severity.GRADIENT, status=Status.FAIL_GRAD, has_flags=False,
    other_kernels=("scalar loops", "vector loops"),
)  # fmt: skip
STATE = Section(name="module_state", severity=Severity.STATE, status=Status.FAIL_STATE)
SECTIONS = (OUTPUTS, INPUTS, GRADIENTS, STATE)
