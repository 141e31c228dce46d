"""Compare the leaves of one call with eager's: structure, metadata, values.

Sparse, quantised, nested tensors and wrapper subclasses are taken apart into plain tensors, and oracle.judge.values compares the
plain tensors. Each is paired with the same leaf of eager's further runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from oracle.judge.evidence import LeavesOfRuns, Place
from oracle.judge.findings import GRADIENTS, OUTPUTS, FindingsBuilder, Section, Severity
from oracle.judge.rounded import is_rounded_size
from oracle.judge.systematic import may_be_systematic, systematic_error
from oracle.judge.tolerance import PYTHON_NUMBER, TABLE
from oracle.judge.trust import TrustedRuns
from oracle.judge.values import GivenRuns, ValueReport, compare_values
from oracle.observe.outcome import Leaf
from oracle.observe.shelf import drop_pages
from oracle.program import ComparePolicy
from oracle.verdict import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPair:
    """The same leaf of eager and of the subject, once its structure and metadata are known to agree."""

    call: int
    section: Section
    eager: Leaf
    subject: Leaf

    @property
    def path(self) -> str:
        return self.eager.path

    @property
    def place(self) -> Place:
        return self.call, self.section, self.eager.path


def pair_leaves(
    call: int,
    section: Section,
    eager: Sequence[Leaf],
    subject: Sequence[Leaf],
    runs: LeavesOfRuns,
    builder: FindingsBuilder,
) -> list[LeafPair]:
    """Add findings for missing and extra leaves and wrong metadata; return the leaves whose values can be compared.

    A leaf whose size rounding noise changes in eager too is left out with an explanation.
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


def has_rounded_size(call: int, section: Section, eager: Leaf, subject: Leaf, runs: LeavesOfRuns) -> bool:
    """Whether only the shapes differ, and eager's own shape changes under noise by as much."""
    expected, seen = eager.facts, subject.facts
    if expected is None or seen is None or expected.shape == seen.shape:
        return False
    shaped = replace(seen, shape=expected.shape, stride=expected.stride, storage_offset=expected.storage_offset)
    if shaped != expected:
        return False
    at = (call, section, eager.path)
    still, truth = _shape(runs.still(at)), _shape(runs.truth(at))
    if still is not None and still != expected.shape:
        return False
    noise = (source(at) for source in (runs.noise, runs.loud_noise))
    shapes = ([shape for shape in map(_shape, leaves) if shape is not None] for leaves in noise)
    return is_rounded_size(expected.shape, seen.shape, truth, shapes)


def _shape(leaf: Leaf | None) -> tuple[int, ...] | None:
    return None if leaf is None or leaf.facts is None else leaf.facts.shape


_SHAPING = ("shape", "dtype", "device", "layout")
_FLAGS = ("type_name", "requires_grad", "is_leaf", "is_conj", "is_neg", "is_inference", "is_coalesced", "quantizer")


def compare_metadata(call: int, section: Section, eager: Leaf, subject: Leaf, builder: FindingsBuilder) -> bool:
    """Compare metadata, but for strides and aliases (oracle.judge.alias). Returns whether values can be compared."""
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


def compare_pair(pair: LeafPair, *, runs: LeavesOfRuns, builder: FindingsBuilder) -> bool:
    """Compare the values of one leaf. Returns whether they are right, and adds findings to `builder` if not."""
    if pair.eager.facts is None:
        return _compare_python_values(pair, runs, builder)
    is_right = True
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
        trusted = _trusted_runs(pair.place, eager, runs, lambda leaf, position=position: part_of(leaf, position))
        # A gradient is a sum, and it is undefined whether the sum starts at +0: signs of zeros in it are not compared.
        report = compare_values(eager, subject, trusted, zero_signs=pair.section is not GRADIENTS)
        is_right &= take_report(pair, suffix, report, builder)
        if report.is_right and report.max_ulp:
            is_right &= _has_honest_errors(pair, suffix, eager, subject, trusted, builder)
        _explain_distrust(pair, suffix, trusted, builder)
    drop_pages()
    builder.count(tensors=1)
    return is_right


def _trusted_runs(
    at: Place,
    eager: Tensor,
    runs: LeavesOfRuns,
    part: Callable[[Leaf | None], Tensor | None],
    **options: Any,
) -> TrustedRuns:
    """The further runs, seen as runs of one plain tensor. `part` takes that tensor out of a leaf."""

    def parts(leaves: Iterable[Leaf]) -> Iterator[Tensor]:
        return (found for found in map(part, leaves) if found is not None)

    given = GivenRuns(
        truth=lambda: part(runs.truth(at)),
        noise=lambda: list(parts(runs.noise(at))),
        loud_noise=lambda: list(parts(runs.loud_noise(at))),
        other_kernels=lambda: parts(runs.other_kernels(at)),
    )
    return TrustedRuns(eager, given, still=lambda: part(runs.still(at)), **options)


def take_report(pair: LeafPair, suffix: str, report: ValueReport, builder: FindingsBuilder) -> bool:
    """Add one tensor's report to the builder, under the tensor's path."""
    builder.count(elements=report.elements, unstable=report.unstable, witnesses=report.witnesses)
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


def _has_honest_errors(
    pair: LeafPair, suffix: str, eager: Tensor, subject: Tensor, runs: TrustedRuns, builder: FindingsBuilder
) -> bool:
    """Whether a tensor whose single elements are right has no systematic error; adds a finding to `builder` if it has one.

    Where a dispatch mode changes eager's result, this is not tested. On devices other than the CPU an error is only mentioned,
    since the systematic errors of right kernels there have not been measured.
    """
    if not may_be_systematic(eager, subject):
        return True
    truth = runs.truth() if TABLE[eager.dtype].eps > TABLE[torch.float64].eps else None
    noise = runs.noise()
    if runs.distrusted:
        return True
    report = systematic_error(eager, subject, truth, noise, runs.other_kernels)
    if report.bias is not None:
        builder.bias.append(report.bias)
    if report.excused:
        builder.explain(pair.call, f"{pair.path}{suffix}{report.excused}")
    if report.rule is None:
        return True
    if report.is_advisory or pair.eager.value.device.type != "cpu":
        builder.explain(pair.call, f"{pair.path}{suffix}{report.detail}: told, and no finding")
        return True
    builder.add(pair.section.severity, pair.section.status, pair.call, f"{pair.path}{suffix}{report.detail}")
    return False


def _explain_distrust(pair: LeafPair, suffix: str, trusted: TrustedRuns, builder: FindingsBuilder) -> None:
    if trusted.distrusted:
        builder.explain(
            pair.call,
            f"{pair.path}{suffix} has {trusted.distrusted} elements that eager has otherwise under a dispatch mode: "
            "there neither fp64 nor noise counts",
        )


# --------------------------------------------------------------------------------------------- parts of a tensor


def parts_of(value: Tensor) -> list[tuple[str, Tensor]]:
    """The plain strided tensors that a tensor consists of, copied to the CPU, each with its suffix for paths.

    Sparse COO tensors are coalesced first, since the order of uncoalesced entries is undefined. Meta tensors, and fake tensors
    that a subject wrongly returned, have no values and therefore no parts.
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
    # Parts are cloned, since a view of complex values of a compressed tensor fails: its base has no strides.
    return [(suffix, part.clone().cpu()) for suffix, part in named]


def part_of(leaf: Leaf | None, position: int) -> Tensor | None:
    if leaf is None or leaf.facts is None:
        return None
    parts = parts_of(leaf.value)
    return parts[position][1] if position < len(parts) else None


# --------------------------------------------------------------------------------------------- Python values

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def _compare_python_values(pair: LeafPair, runs: LeavesOfRuns, builder: FindingsBuilder) -> bool:
    expected, seen = pair.eager.value, pair.subject.value
    builder.count(others=1)
    if pair.section in (OUTPUTS, GRADIENTS):
        builder.produced += 1
    if isinstance(expected, (float, complex)):
        dtype = torch.complex128 if isinstance(expected, complex) else torch.float64
        return _compare_python_numbers(pair, dtype, runs, builder)
    if isinstance(expected, str) and expected[:1] == "<":
        expected, seen = _ADDRESS.sub("", expected), _ADDRESS.sub("", seen)
        if expected == seen:
            builder.explain(
                pair.call, f"{pair.path} is {_shortened(expected)}, an opaque object: only its type was compared"
            )
    if expected == seen:
        return True
    if isinstance(expected, int) and isinstance(seen, int) and max(abs(expected), abs(seen)) < 2**63:
        return _compare_python_numbers(pair, torch.bool if isinstance(expected, bool) else torch.int64, runs, builder)
    builder.add(
        pair.section.severity, pair.section.status, pair.call,
        f"{pair.path} is {_shortened(seen)}, but should be {_shortened(expected)}",
    )  # fmt: skip
    return False


def _compare_python_numbers(pair: LeafPair, dtype: torch.dtype, runs: LeavesOfRuns, builder: FindingsBuilder) -> bool:
    """Compare two Python numbers as 0-d tensors; floats by float32's row, since most come from `.item()` of float32 tensors."""

    def as_tensor(leaf: Leaf | None) -> Tensor | None:
        if leaf is None or type(leaf.value) is not type(pair.eager.value):
            return None
        is_held = dtype is not torch.int64 or abs(leaf.value) < 2**63
        return torch.tensor(leaf.value, dtype=dtype) if is_held else None

    row = PYTHON_NUMBER if dtype.is_floating_point or dtype.is_complex else None
    eager, subject = torch.tensor(pair.eager.value, dtype=dtype), torch.tensor(pair.subject.value, dtype=dtype)
    trusted = _trusted_runs(pair.place, eager, runs, as_tensor, row=row)
    report = compare_values(eager, subject, trusted, row=row)
    # A Python number does not count as a tensor element, and ULPs of float64 mean nothing for a float32 computation.
    told = {"elements": 0, "max_ulp": None, "detail": report.detail.removesuffix(" (1 of 1 elements differ)")}
    is_right = take_report(pair, "", replace(report, **told), builder)
    _explain_distrust(pair, "", trusted, builder)
    return is_right


def is_undefined(path: str, policy: ComparePolicy) -> bool:
    """Whether the policy declares this leaf's values undefined; a path in the policy includes the leaves below it."""
    return any(path == name or path.startswith((f"{name}[", f"{name}.")) for name in policy.undefined_outputs)
