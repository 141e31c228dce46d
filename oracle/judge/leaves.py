"""Leaves of one call, eager's beside the subject's: structure, metadata, values.

What is found goes into a `FindingsBuilder`, most findings under the severity they have in `Severity`. How values of one plain
tensor are compared is oracle.judge.values; this module takes leaves apart into plain tensors first (sparse, quantised,
nested, wrapper subclasses) and pairs them with the same leaf of the run in fp64 and of the runs under noise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from oracle.judge.rounded import is_rounded_size
from oracle.judge.tolerance import PYTHON_NUMBER
from oracle.judge.trust import TrustedRuns, is_flipped_by_mode
from oracle.judge.values import ValueReport, compare_values
from oracle.outcome import CallObservation, Leaf, Outcome, Raised, Returned
from oracle.program import ComparePolicy
from oracle.verdict import Compared, Status, WorstElement


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
    produced: int = 0  # elements and numbers of outputs and gradients: what the program is run for

    def add(
        self, severity: Severity, status: Status, call: int, symptom: str, worst: WorstElement | None = None
    ) -> None:
        self.findings.append(
            Finding(severity=severity, status=status, call=call, symptom=f"call {call}: {symptom}", worst=worst)
        )

    def explain(self, call: int, text: str) -> None:
        self.explained.append(f"call {call}: {text}")

    def count(self, *, tensors: int = 0, elements: int = 0, others: int = 0, unstable: int = 0) -> None:
        self.compared += Compared(tensors=tensors, elements=elements, others=others, unstable_elements=unstable)

    def take_counts(self, other: FindingsBuilder) -> None:
        self.compared += other.compared
        self.produced += other.produced

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
    others: tuple[str, ...] = ("other kernels", "vector loops")  # of oracle.relaid, whose values are eager's as well


OUTPUTS = Section(name="outputs", severity=Severity.VALUES, status=Status.FAIL_ACCURACY)
INPUTS = Section(name="inputs_after", severity=Severity.MUTATION, status=Status.FAIL_MUTATION)
# A gradient's flags and strides are autograd's own business: accumulation may or may not keep the tensor it is given.
GRADIENTS = Section(
    name="gradients", severity=Severity.GRADIENT, status=Status.FAIL_GRAD, has_flags=False,
    others=("scalar loops", "vector loops"),
)  # fmt: skip
STATE = Section(name="module_state", severity=Severity.STATE, status=Status.FAIL_STATE)
SECTIONS = (OUTPUTS, INPUTS, GRADIENTS, STATE)


class RunsState:
    """The run in fp64, those under noise, loud noise and none, those by other kernels, each started once.

    They start when first asked for.

    `like`: the run of a random program whose generator states the others must have gone through. From the first call on
    that left another state, a run drew other numbers and says nothing.
    """

    def __init__(
        self,
        truth: Callable[[], Outcome | None],
        noise: Callable[[], Sequence[Outcome]],
        loud: Callable[[], Sequence[Outcome]] = tuple,
        relaid: Callable[[str], Outcome | None] = lambda name: None,
        still: Callable[[], Outcome | None] = lambda: None,
        *,
        like: Outcome | None = None,
    ) -> None:
        self._start_truth, self._start_noise, self._start_loud = truth, noise, loud
        self._start_relaid, self._start_still = relaid, still
        self._relaid: dict[str, dict[tuple[int, str, str], Leaf]] = {}
        self._still: list[dict[tuple[int, str, str], Leaf]] | None = None
        self._digests = None if like is None else [call.rng_digest for call in calls_of(like)]
        self._truth: list[dict[tuple[int, str, str], Leaf]] | None = None
        self._noise: list[dict[tuple[int, str, str], Leaf]] | None = None
        self._loud: list[dict[tuple[int, str, str], Leaf]] | None = None

    def truth_leaf(self, call: int, section: Section, path: str) -> Leaf | None:
        if self._truth is None:
            outcome = self._start_truth()
            self._truth = [] if outcome is None else [_leaves_by_key(outcome, self._digests)]
        return next((leaves.get((call, section.name, path)) for leaves in self._truth), None)

    def noise_leaves(self, call: int, section: Section, path: str) -> list[Leaf]:
        if self._noise is None:
            self._noise = [_leaves_by_key(outcome, self._digests) for outcome in self._start_noise()]
        return _present(leaves.get((call, section.name, path)) for leaves in self._noise)

    def loud_leaves(self, call: int, section: Section, path: str) -> list[Leaf]:
        if self._loud is None:
            self._loud = [_leaves_by_key(outcome, self._digests) for outcome in self._start_loud()]
        return _present(leaves.get((call, section.name, path)) for leaves in self._loud)

    def relaid_leaves(self, call: int, section: Section, path: str) -> Iterator[Leaf]:
        """By eager's other kernels, each as it is asked for; a gradient by the loops of elementwise operators alone."""
        for name in section.others:
            if name not in self._relaid:
                outcome = self._start_relaid(name)
                self._relaid[name] = {} if outcome is None else _leaves_by_key(outcome, self._digests)
            leaf = self._relaid[name].get((call, section.name, path))
            if leaf is not None:
                yield leaf

    def still_leaf(self, call: int, section: Section, path: str) -> Leaf | None:
        """Of eager under the noise's mode without noise."""
        if self._still is None:
            outcome = self._start_still()
            self._still = [] if outcome is None else [_leaves_by_key(outcome, self._digests)]
        return next((leaves.get((call, section.name, path)) for leaves in self._still), None)


def _present(leaves: Iterable[Leaf | None]) -> list[Leaf]:
    return [leaf for leaf in leaves if leaf is not None]


def no_runs() -> RunsState:
    """Neither fp64 nor noise: only what is close counts as equal."""
    return RunsState(lambda: None, lambda: ())


def calls_of(outcome: Outcome) -> tuple[CallObservation, ...]:
    """The calls that returned."""
    return outcome.calls if isinstance(outcome, (Returned, Raised)) else ()


def _leaves_by_key(outcome: Outcome, digests: Sequence[str] | None) -> dict[tuple[int, str, str], Leaf]:
    calls = calls_of(outcome)
    if digests is not None:
        drew_the_same = [call.rng_digest == digest for call, digest in zip(calls, digests, strict=False)]
        calls = calls[: drew_the_same.index(False) if False in drew_the_same else len(drew_the_same)]
    return {
        (number, section.name, leaf.path): leaf
        for number, call in enumerate(calls)
        for section in SECTIONS
        for leaf in getattr(call, section.name)
    }


# --------------------------------------------------------------------------------------------- one section


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPair:
    """One leaf on both sides, comparable: its structure and metadata agree."""

    call: int
    section: Section
    eager: Leaf
    subject: Leaf

    @property
    def path(self) -> str:
        return self.eager.path


def pair_leaves(
    call: int,
    section: Section,
    eager: Sequence[Leaf],
    subject: Sequence[Leaf],
    runs: RunsState,
    builder: FindingsBuilder,
) -> list[LeafPair]:
    """Reports missing, extra and differently typed leaves; returns those whose values can be compared.

    A size that eager itself has otherwise in `runs` is explained, and the leaf left out.
    """
    subject_leaves = {leaf.path: leaf for leaf in subject}
    pairs = []
    for leaf in eager:
        other = subject_leaves.pop(leaf.path, None)
        if other is None:
            status = Status.FAIL_METADATA if section is OUTPUTS else section.status
            builder.add(Severity.STRUCTURE, status, call, f"{leaf.path} is missing, but should be {_kind(leaf)}")
        elif has_rounded_size(call, section, leaf, other, runs):
            elements = math.prod(leaf.facts.shape) if leaf.facts is not None else 0
            builder.count(tensors=1, elements=elements, unstable=elements)
            builder.produced += elements
            builder.explain(
                call,
                f"{leaf.path} is {_kind(other)}, not {_kind(leaf)}: rounding noise gives eager other sizes",
            )
        elif compare_metadata(call, section, leaf, other, builder):
            pairs.append(LeafPair(call=call, section=section, eager=leaf, subject=other))
    for path, leaf in subject_leaves.items():
        status = Status.FAIL_METADATA if section is OUTPUTS else section.status
        builder.add(Severity.STRUCTURE, status, call, f"{path} is {_kind(leaf)}, but should not be there")
    return pairs


def has_rounded_size(call: int, section: Section, eager: Leaf, subject: Leaf, runs: RunsState) -> bool:
    """Whether the shapes differ, and nothing else, and eager's own shape is another one under noise."""
    expected, seen = eager.facts, subject.facts
    if expected is None or seen is None or expected.shape == seen.shape:
        return False
    shaped = replace(seen, shape=expected.shape, stride=expected.stride, storage_offset=expected.storage_offset)
    if shaped != expected:
        return False
    at = (call, section, eager.path)
    still, truth = _shape(runs.still_leaf(*at)), _shape(runs.truth_leaf(*at))
    if still is not None and still != expected.shape:
        return False
    noise = (source(*at) for source in (runs.noise_leaves, runs.loud_leaves))
    shapes = ([shape for shape in map(_shape, leaves) if shape is not None] for leaves in noise)
    return is_rounded_size(expected.shape, seen.shape, truth, shapes)


def _shape(leaf: Leaf | None) -> tuple[int, ...] | None:
    return None if leaf is None or leaf.facts is None else leaf.facts.shape


_SHAPING = ("shape", "dtype", "device", "layout")
_FLAGS = ("type_name", "requires_grad", "is_leaf", "is_conj", "is_neg", "is_inference", "is_coalesced", "quantizer")


def compare_metadata(call: int, section: Section, eager: Leaf, subject: Leaf, builder: FindingsBuilder) -> bool:
    """Whether values can be compared. Strides and aliases are compared elsewhere (oracle.judge.alias)."""
    expected, seen = eager.facts, subject.facts
    status, severity = Status.FAIL_METADATA, Severity.METADATA
    if section is not OUTPUTS:
        status, severity = section.status, section.severity
    if expected is None or seen is None:
        if (expected is None) != (seen is None) or type(eager.value) is not type(subject.value):
            builder.add(severity, status, call, f"{eager.path} is {_kind(subject)}, but should be {_kind(eager)}")
            return False
        return True
    if expected == seen:
        return True
    is_comparable = True
    for name in _SHAPING:
        left, right = getattr(expected, name), getattr(seen, name)
        if left != right:
            builder.add(severity, status, call, _attribute_symptom(eager.path, name, right, left))
            is_comparable = False
    flag_severity = Severity.FLAGS if section is OUTPUTS else severity
    for name in _FLAGS if section.has_flags else ("type_name",):
        left, right = getattr(expected, name), getattr(seen, name)
        if left != right:
            builder.add(flag_severity, status, call, _attribute_symptom(eager.path, name, right, left))
    return is_comparable


def _attribute_symptom(path: str, name: str, seen: Any, expected: Any) -> str:
    if name == "dtype":
        seen, expected = f"torch.{seen}", f"torch.{expected}"
    return f"{path}.{name} is {seen}, but should be {expected}"


def _kind(leaf: Leaf) -> str:
    if leaf.facts is not None:
        return f"{leaf.facts.type_name} of shape {leaf.facts.shape} and dtype torch.{leaf.facts.dtype}"
    return "None" if leaf.value is None else f"{type(leaf.value).__name__} {_shortened(leaf.value)}"


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def compare_pair(
    pair: LeafPair,
    *,
    runs: RunsState,
    builder: FindingsBuilder,
    flushes_denormals: bool = False,
) -> bool:
    """Values of one leaf. Returns whether they are right; says what is wrong in `builder`."""
    if pair.eager.facts is None:
        return _compare_python_values(pair, runs, builder)
    is_right = True
    at = (pair.call, pair.section, pair.path)
    eager_parts, subject_parts = parts_of(pair.eager.value), parts_of(pair.subject.value)
    if [suffix for suffix, _ in eager_parts] != [suffix for suffix, _ in subject_parts]:
        builder.add(
            pair.section.severity, pair.section.status, pair.call,
            f"{pair.path} is made of {[suffix for suffix, _ in subject_parts]}, "
            f"but should be of {[suffix for suffix, _ in eager_parts]}",
        )  # fmt: skip
        return False
    for position, ((suffix, eager), (_, subject)) in enumerate(zip(eager_parts, subject_parts, strict=True)):
        if eager.shape != subject.shape or eager.dtype != subject.dtype:
            builder.add(
                pair.section.severity, pair.section.status, pair.call,
                f"{pair.path}{suffix} is {tuple(subject.shape)} of {subject.dtype}, "
                f"but should be {tuple(eager.shape)} of {eager.dtype}",
            )  # fmt: skip
            is_right = False
            continue

        def parts_in(leaves: Sequence[Leaf], position: int = position) -> list[Tensor]:
            return [part for leaf in leaves if (part := _part(leaf, position)) is not None]

        trusted = TrustedRuns(
            eager,
            still=lambda position=position: _part(runs.still_leaf(*at), position),
            truth=lambda position=position: _part(runs.truth_leaf(*at), position),
            noise=lambda parts_in=parts_in: parts_in(runs.noise_leaves(*at)),
            loud=lambda parts_in=parts_in: parts_in(runs.loud_leaves(*at)),
            relaid=lambda position=position: (_part(leaf, position) for leaf in runs.relaid_leaves(*at)),
        )
        report = compare_values(
            eager,
            subject,
            truth=trusted.truth,
            noise=trusted.noise,
            loud=trusted.loud,
            relaid=trusted.relaid,
            # a gradient is a sum over paths, and whether that begins with a zero of its own is nobody's promise
            zero_signs=pair.section is not GRADIENTS,
            flushes_denormals=flushes_denormals,
        )
        is_right &= take_report(pair, suffix, report, builder)
        _explain_distrust(pair, suffix, trusted, builder)
    builder.count(tensors=1)
    return is_right


def take_report(pair: LeafPair, suffix: str, report: ValueReport, builder: FindingsBuilder) -> bool:
    """Write one tensor's report into the builder, under its path."""
    builder.count(elements=report.elements, unstable=report.unstable)
    if pair.section in (OUTPUTS, GRADIENTS):
        builder.produced += report.elements
    builder.saw_ulp(report.max_ulp)
    for text in report.explained:
        builder.explain(pair.call, f"{pair.path}{suffix}{text}")
    if not report.is_right:
        where = f"call {pair.call}: {pair.path}{suffix}"
        worst = replace(report.worst, where=where) if report.worst is not None else None
        builder.add(pair.section.severity, pair.section.status, pair.call, f"{pair.path}{suffix}{report.detail}", worst)
    return report.is_right


def _explain_distrust(pair: LeafPair, suffix: str, trusted: TrustedRuns, builder: FindingsBuilder) -> None:
    if trusted.distrusted:
        builder.explain(
            pair.call,
            f"{pair.path}{suffix} has {trusted.distrusted} elements that eager has otherwise under a dispatch mode: "
            "there neither fp64 nor noise counts",
        )


# --------------------------------------------------------------------------------------------- parts of a tensor


def parts_of(value: Tensor) -> list[tuple[str, Tensor]]:
    """The plain strided tensors a tensor consists of, on the CPU, with the suffix each has in a path.

    Sparse COO: coalesced first, for the order of uncoalesced entries is nobody's promise. Tensors on the meta device
    have no values and so no parts, and neither have fake tensors, which a subject has left behind where it should not.
    """
    if value.device.type == "meta" or is_fake(value):
        return []
    if value.is_nested:
        return [
            (f"[{number}]{suffix}", part)
            for number, component in enumerate(value.unbind())
            for suffix, part in parts_of(component)
        ]
    if type(value) is not Tensor:
        flatten = getattr(value, "__tensor_flatten__", None)
        if flatten is not None:
            names, _ = flatten()
            return [(f".{name}{suffix}", part) for name in names for suffix, part in parts_of(getattr(value, name))]
        value = value.as_subclass(Tensor)
    if value.layout is torch.strided:
        if value.is_quantized:
            value = value.int_repr()
        return [("", value.cpu())]
    if value.layout is torch.sparse_coo:
        value = value.coalesce()
        named = [(".indices()", value.indices()), (".values()", value.values())]
    elif value.layout in (torch.sparse_csr, torch.sparse_bsr):
        named = [
            (".crow_indices()", value.crow_indices()),
            (".col_indices()", value.col_indices()),
            (".values()", value.values()),
        ]
    elif value.layout in (torch.sparse_csc, torch.sparse_bsc):
        named = [
            (".ccol_indices()", value.ccol_indices()),
            (".row_indices()", value.row_indices()),
            (".values()", value.values()),
        ]
    else:
        return [("", value.to_dense().cpu())]
    # Clones: a view of a compressed tensor's complex values asks its base for strides, which it has not.
    return [(suffix, part.clone().cpu()) for suffix, part in named]


def _part(leaf: Leaf | None, position: int) -> Tensor | None:
    if leaf is None or leaf.facts is None:
        return None
    parts = parts_of(leaf.value)
    return parts[position][1] if position < len(parts) else None


# --------------------------------------------------------------------------------------------- Python values

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def _compare_python_values(pair: LeafPair, runs: RunsState, builder: FindingsBuilder) -> bool:
    expected, seen = pair.eager.value, pair.subject.value
    builder.count(others=1)
    if pair.section in (OUTPUTS, GRADIENTS):
        builder.produced += 1
    if isinstance(expected, (float, complex)):
        return _compare_python_floats(pair, runs, builder)
    if isinstance(expected, str) and expected[:1] == "<":
        expected, seen = _ADDRESS.sub("", expected), _ADDRESS.sub("", seen)
        if expected == seen:
            builder.explain(
                pair.call, f"{pair.path} is {_shortened(expected)}, an opaque object: only its type was compared"
            )
    if expected == seen:
        return True
    if isinstance(expected, int):
        at = (pair.call, pair.section, pair.path)
        still = runs.still_leaf(*at)
        if (
            _is_flipped(expected, [runs.truth_leaf(*at)])
            or _is_flipped(expected, runs.noise_leaves(*at))
            or _is_flipped(expected, runs.loud_leaves(*at))
        ) and not (
            still is not None
            and is_flipped_by_mode(
                expected, still.value, [leaf.value for leaf in (*runs.noise_leaves(*at), *runs.loud_leaves(*at))]
            )
        ):
            builder.count(unstable=1)
            builder.explain(
                pair.call,
                f"{pair.path} is {seen}, not {expected}: eager itself flips it under rounding noise or in fp64",
            )
            return True
    builder.add(
        pair.section.severity, pair.section.status, pair.call,
        f"{pair.path} is {_shortened(seen)}, but should be {_shortened(expected)}",
    )  # fmt: skip
    return False


def _is_flipped(expected: int, others: Sequence[Leaf | None]) -> bool:
    return any(leaf is not None and type(leaf.value) is type(expected) and leaf.value != expected for leaf in others)


def _compare_python_floats(pair: LeafPair, runs: RunsState, builder: FindingsBuilder) -> bool:
    dtype = torch.complex128 if isinstance(pair.eager.value, complex) else torch.float64

    def as_tensor(value: Any) -> Tensor:
        return torch.tensor(value, dtype=dtype)

    def numbers(leaves: Sequence[Leaf | None]) -> list[Tensor]:
        return [
            as_tensor(leaf.value) for leaf in leaves if leaf is not None and type(leaf.value) is type(pair.eager.value)
        ]

    at = (pair.call, pair.section, pair.path)
    eager = as_tensor(pair.eager.value)
    trusted = TrustedRuns(
        eager,
        still=lambda: next(iter(numbers([runs.still_leaf(*at)])), None),
        truth=lambda: next(iter(numbers([runs.truth_leaf(*at)])), None),
        noise=lambda: numbers(runs.noise_leaves(*at)),
        loud=lambda: numbers(runs.loud_leaves(*at)),
        row=PYTHON_NUMBER,
    )
    report = compare_values(
        eager,
        as_tensor(pair.subject.value),
        truth=trusted.truth,
        noise=trusted.noise,
        loud=trusted.loud,
        row=PYTHON_NUMBER,
    )
    # Not among the tensor elements, and ULPs of float64 say nothing about a float32 computation.
    is_right = take_report(pair, "", replace(report, elements=0, max_ulp=None), builder)
    _explain_distrust(pair, "", trusted, builder)
    return is_right


def is_undefined(path: str, policy: ComparePolicy) -> bool:
    """Whether the policy says that this leaf's values are not defined; a path covers the leaves below it."""
    return any(path == name or path.startswith((f"{name}[", f"{name}.")) for name in policy.undefined_outputs)
