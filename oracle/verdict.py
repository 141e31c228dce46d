"""The verdict on one case.

Status words follow PyTorch's benchmark vocabulary (benchmarks/dynamo/common.py) where it has one. This module does not import
torch, so that `results` can read verdicts without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Status(str, Enum):
    """Result of a case. The value is the word that users and their scripts see."""

    PASS = "pass"
    PASS_DUE_TO_SKIP = "pass_due_to_skip"  # nothing was compared; the symptom says why
    FAIL_ACCURACY = "fail_accuracy"
    FAIL_GRAD = "fail_grad"
    FAIL_MUTATION = "fail_mutation"
    FAIL_ALIAS = "fail_alias"
    FAIL_STRIDE = "fail_stride"
    FAIL_METADATA = "fail_metadata"
    FAIL_STATE = "fail_state"  # wrong module state, changed process state, or a leak
    FAIL_RNG = "fail_rng"
    FAIL_GUARD = "fail_guard"  # right on the first call, wrong on a later one
    FAIL_EXCEPTION = "fail_exception"  # eager raises X; the subject returns, or raises Y
    FAIL_EXPORT = "fail_export"
    FAIL_TO_RUN = "fail_to_run"  # eager returns, the subject raises
    EAGER_FAIL_TO_RUN = "eager_fail_to_run"
    EAGER_TWO_RUNS_DIFFER = "eager_two_runs_differ"
    MODEL_FAIL_TO_LOAD = "model_fail_to_load"
    OOM = "OOM"
    TIMEOUT = "timeout"
    CRASH = "crash"
    MISSING = "missing"  # planned, but without a record although the run ended
    NOT_RUN = "not_run"  # planned, but not started before the run was stopped
    KNOWN = "known"  # differs as an entry of the ledger says; `Verdict.issue` is its id
    XPASS = "xpass"  # agrees, although an entry of the ledger says that it differs

    @property
    def is_finding(self) -> bool:
        """Whether a run that contains this status exits with 1."""
        return self not in _NOT_FINDINGS

    @property
    def is_absent(self) -> bool:
        """Whether the case has no record."""
        return self in (Status.MISSING, Status.NOT_RUN)

    @property
    def is_silent(self) -> bool:
        """Whether the subject was wrong without an error, which is the worst kind of finding."""
        return self in _SILENT


_NOT_FINDINGS = frozenset(
    {
        Status.PASS,
        Status.PASS_DUE_TO_SKIP,
        Status.KNOWN,
        Status.XPASS,
        Status.NOT_RUN,
        Status.EAGER_FAIL_TO_RUN,
        Status.EAGER_TWO_RUNS_DIFFER,
    }
)
_SILENT = frozenset(
    {
        Status.FAIL_ACCURACY,
        Status.FAIL_GRAD,
        Status.FAIL_MUTATION,
        Status.FAIL_ALIAS,
        Status.FAIL_STRIDE,
        Status.FAIL_METADATA,
        Status.FAIL_STATE,
        Status.FAIL_RNG,
        Status.FAIL_GUARD,
        Status.FAIL_EXCEPTION,
        Status.FAIL_EXPORT,
    }
)


_WORST_FLOATS = ("eager_error", "subject_error", "allowed_error", "ulp")


def _float_to_json(value: float | None) -> float | str | None:
    """The number, with NaN and infinities as text, since JSON has no numbers for them."""
    return value if value is None or math.isfinite(value) else str(value)


def _float_from_json(value: float | str | None) -> float | None:
    return None if value is None else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstElement:
    """The element that differs most. Values are text, so that NaN and Inf survive JSON."""

    where: str  # path of the tensor: "call 0: output[1]", "call 0: grad of kwargs['weight']"
    index: tuple[int, ...]
    eager: str
    subject: str
    truth: str | None = None  # the fp64 value, if there is one
    eager_error: float | None = None  # |eager - truth|; None without a finite truth
    subject_error: float | None = None  # |subject - truth|, or |subject - eager| without a truth
    allowed_error: float | None = None
    ulp: float | None = None  # |subject - eager| in units of the last place of eager's dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How much was compared. If nothing was, a verdict does not count as agreement."""

    tensors: int = 0
    elements: int = 0
    others: int = 0  # Python numbers, strings, None, dtypes ...
    unstable_elements: int = 0  # elements not compared, since rounding noise changes them completely in eager

    def __add__(self, other: Compared) -> Compared:
        return Compared(
            tensors=self.tensors + other.tensors,
            elements=self.elements + other.elements,
            others=self.others + other.others,
            unstable_elements=self.unstable_elements + other.unstable_elements,
        )

    @property
    def is_nothing(self) -> bool:
        return self.tensors == 0 and self.others == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasSum:
    """Weighted mean errors against fp64 of the float tensors of one dtype, as sums that can be added over cases.

    A tensor's mean error is the one away from zero, in ULP (`oracle.judge.systematic`); its weight is the number of its distinct
    fp64 values. One ULP is `eps` for a number whose significand is 1.
    """

    dtype: str
    eps: float
    tensors: int
    weight: int
    subject: float  # sum of weight * mean error of the subject
    eager: float  # sum of weight * mean error of eager
    variance: float  # sum of (weight * standard error of the subject's mean)^2

    def __add__(self, other: BiasSum) -> BiasSum:
        """Raises ValueError for two dtypes."""
        if self.dtype != other.dtype:
            raise ValueError(f"sum of errors in ULP of {self.dtype} and {other.dtype}, but should be of one dtype")
        return BiasSum(
            dtype=self.dtype,
            eps=self.eps,
            tensors=self.tensors + other.tensors,
            weight=self.weight + other.weight,
            subject=self.subject + other.subject,
            eager=self.eager + other.eager,
            variance=self.variance + other.variance,
        )

    @property
    def subject_mean(self) -> float:
        return self.subject / self.weight

    @property
    def eager_mean(self) -> float:
        return self.eager / self.weight

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.variance) / self.weight


def added_by_dtype(sums: Iterable[BiasSum]) -> tuple[BiasSum, ...]:
    """One sum for each dtype, in the order of first appearance."""
    totals: dict[str, BiasSum] = {}
    for one in sums:
        totals[one.dtype] = totals[one.dtype] + one if one.dtype in totals else one
    return tuple(totals.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judge's result for one subject on one program."""

    status: Status
    symptom: str = ""  # one line: "call 1: output[0]: shape is (2, 3), but should be (3,)"
    stage: str | None = None  # if the worker died or timed out: what it was doing (not the first wrong rung)
    call: int | None = None  # index in the call plan
    worst: WorstElement | None = None
    compared: Compared = Compared()
    witnesses: tuple[tuple[str, int], ...] = ()  # witness -> number of elements it admitted (oracle.judge.witnesses)
    also: tuple[str, ...] = ()  # further symptoms, in the order found
    explained: tuple[str, ...] = ()  # differences seen and accepted, each with its reason
    max_ulp: float | None = None  # largest |subject - eager| over all float elements, in ULP of eager's dtype
    issue: str = ""  # with `known` and `xpass`: the id of the ledger's entry
    observed: str = ""  # with `known`: the status that the judge returned
    bias: tuple[BiasSum, ...] = ()  # errors of the outputs and gradients, one sum for each dtype
    reruns: tuple[str, ...] = ()  # statuses of the same case when it was run again, each time in a fresh process

    @property
    def frequency(self) -> str:
        """How often a finding that was run again is one: "in 1 of 3 runs"; "" if it was not run again."""
        if not self.reruns:
            return ""
        again = sum(Status(word).is_finding for word in self.reruns)
        return f"in {1 + again} of {1 + len(self.reruns)} runs"

    @property
    def is_flaky(self) -> bool:
        """Whether it was run again and did not fail each time."""
        return not all(Status(word).is_finding for word in self.reruns)

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["status"] = self.status.value
        data["max_ulp"] = _float_to_json(self.max_ulp)
        if self.worst is not None:
            for key in _WORST_FLOATS:
                data["worst"][key] = _float_to_json(data["worst"][key])
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        fields = dict(data)
        worst = dict(fields["worst"]) if fields.get("worst") else None
        if worst is not None:
            worst.update({key: _float_from_json(worst.get(key)) for key in _WORST_FLOATS})
            worst["index"] = tuple(worst["index"])
        return cls(
            **{
                **fields,
                "status": Status(fields["status"]),
                "max_ulp": _float_from_json(fields.get("max_ulp")),
                "worst": WorstElement(**worst) if worst is not None else None,
                "compared": Compared(**fields.get("compared", {})),
                "witnesses": tuple((name, count) for name, count in fields.get("witnesses", ())),
                "also": tuple(fields.get("also", ())),
                "explained": tuple(fields.get("explained", ())),
                "bias": tuple(BiasSum(**one) for one in fields.get("bias", ())),
                "reruns": tuple(fields.get("reruns", ())),
            }
        )


def describe(subject: str, verdict: Verdict) -> str:
    """A verdict as a few lines of text."""
    lines = [f"{subject}: {verdict.status.value}" + (f": {verdict.symptom}" if verdict.symptom else "")]
    if verdict.worst is not None:
        worst = verdict.worst
        lines.append(f"  worst element: {worst.where}[{', '.join(map(str, worst.index))}]")
        lines.append(
            f"    eager {worst.eager}, subject {worst.subject}" + (f", fp64 {worst.truth}" if worst.truth else "")
        )
        if worst.subject_error is not None:
            errors = {"error": worst.subject_error, "eager's": worst.eager_error, "allowed": worst.allowed_error}
            told = [f"{name} {error:.3g}" for name, error in errors.items() if error is not None]
            lines.append(f"    {', '.join(told)}")
    lines += [f"  also: {text}" for text in verdict.also[:5]]
    return "\n".join([*lines, *(f"  {note}" for note in notes_on(verdict))])


def notes_on(verdict: Verdict) -> list[str]:
    """What an agreement rests on, and what was not compared: someone who expected a difference looks there first."""
    if verdict.status is not Status.PASS:
        return []
    notes = [f"accepted: {reason}" for reason in verdict.explained[:3]]
    every = f"of {verdict.compared.elements:,} elements compared"
    if noise := dict(verdict.witnesses).get("noise"):
        notes.append(f"{noise:,} {every} agree only because rounding noise moves them as far in eager")
    if unstable := verdict.compared.unstable_elements:
        notes.append(f"not compared: {unstable:,} further elements, which rounding noise changes in eager")
    return notes
