"""Findings of the judge: the differences that are wrong, those accepted with a reason, and how much was compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from oracle.verdict import BiasSum, Compared, Status, WorstElement

_NONE: Mapping[str, int] = {}


class Severity(IntEnum):
    """Order of a call's findings: the first gives the verdict's status, the others are listed in `also`.

    First come differences that make values incomparable, then wrong values, then properties few callers look at.
    """

    STRUCTURE = 0  # missing or extra leaves
    METADATA = 1  # shape, dtype, device, layout
    RANDOM_STREAM = 2  # generator state of a random program; explains wrong values
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
    witnesses: Counter[str] = field(default_factory=Counter)  # witness -> number of elements it admitted
    bias: list[BiasSum] = field(default_factory=list)  # one for each tensor whose errors were measured
    produced: int = 0  # number of elements and Python numbers in outputs and gradients

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
    """One part of a call's observation, and the severity and status of a difference in it."""

    name: str  # attribute of CallObservation
    severity: Severity
    status: Status
    has_flags: bool = True  # requires_grad and other flags are compared
    other_kernels: tuple[str, ...] = ("other kernels", "vector loops")  # names in oracle.reruns.other_kernels.OTHERS


OUTPUTS = Section(name="outputs", severity=Severity.VALUES, status=Status.FAIL_ACCURACY)
INPUTS = Section(name="inputs_after", severity=Severity.MUTATION, status=Status.FAIL_MUTATION)
# Flags and strides of gradients are not compared: autograd's accumulation may keep the tensor it gets or copy it.
GRADIENTS = Section(
    name="gradients", severity=Severity.GRADIENT, status=Status.FAIL_GRAD, has_flags=False,
    other_kernels=("scalar loops", "vector loops"),
)  # fmt: skip
STATE = Section(name="module_state", severity=Severity.STATE, status=Status.FAIL_STATE)
SECTIONS = (OUTPUTS, INPUTS, GRADIENTS, STATE)
