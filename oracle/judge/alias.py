"""Compare aliases and strides: which tensors share a storage, at which offsets, with which strides.

Two outcomes agree if the same tensors share a storage in both, and if tensors that share one have the same strides and the same
offsets relative to each other. Strides of dimensions of size 1 and of empty tensors address nothing and are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from oracle.judge.findings import SECTIONS, FindingsBuilder, Severity
from oracle.observe.outcome import CallObservation, TensorFacts
from oracle.program import ComparePolicy
from oracle.verdict import Status


def compare_aliases(
    call: int, eager: CallObservation, subject: CallObservation, policy: ComparePolicy, builder: FindingsBuilder
) -> set[str]:
    """Add a finding for each difference in which tensors share a storage, are one object, or lie elsewhere in a shared storage.

    Returns the paths whose strides are reported, so that `compare_strides` does not report them again.
    """
    for path in sorted({*subject.aliases.overwritten} - {*eager.aliases.overwritten}):
        builder.add(
            Severity.ALIAS, Status.FAIL_ALIAS, call, f"{path} is overwritten by a later call, but should not be"
        )
    for path in sorted({*eager.aliases.overwritten} - {*subject.aliases.overwritten}):
        builder.add(Severity.ALIAS, Status.FAIL_ALIAS, call, f"{path} is not changed by a later call, but should be")
    if not policy.aliases or (eager.aliases == subject.aliases and not eager.aliases.storages):
        return set()
    eager_facts, subject_facts = facts_by_path(eager), facts_by_path(subject)
    one_sided = _paths(eager) ^ _paths(subject)  # missing and extra leaves are reported as such
    # Nothing promises which empty tensors share a storage. Which ones are the same object is still compared.
    untold = one_sided | {path for path, facts in eager_facts.items() if 0 in facts.shape}
    expected = _without(eager.aliases.storages, untold)
    seen = _without(subject.aliases.storages, untold)
    reported: set[str] = set()
    for symptom in _partition_symptoms(expected, seen, "the storage of"):
        builder.add(Severity.ALIAS, Status.FAIL_ALIAS, call, symptom)
    same_objects = _without(eager.aliases.objects, one_sided), _without(subject.aliases.objects, one_sided)
    for symptom in _partition_symptoms(*same_objects, "its object with"):
        builder.add(Severity.ALIAS, Status.FAIL_ALIAS, call, symptom)
    for group in expected:
        if group in seen:
            reported |= _compare_view_relation(call, group, eager_facts, subject_facts, policy, builder)
    return reported


def _without(groups: Iterable[Sequence[str]], dropped: set[str]) -> list[tuple[str, ...]]:
    kept = [tuple(path for path in group if path not in dropped) for group in groups]
    return [group for group in kept if len(group) > 1]


def _partition_symptoms(expected: Sequence[tuple[str, ...]], seen: Sequence[tuple[str, ...]], what: str) -> list[str]:
    """One sentence for each pair of paths that shares something on one side only. Outputs are named before arguments."""
    expected_of = {path: group for group in expected for path in group}
    seen_of = {path: group for group in seen for path in group}
    symptoms, told = [], set()
    for path in sorted({*expected_of, *seen_of}, key=_outputs_first):
        should = set(expected_of.get(path, ())) - {path}
        does = set(seen_of.get(path, ())) - {path}
        for other in sorted(should - does, key=_outputs_last):
            if frozenset((path, other)) not in told:
                told.add(frozenset((path, other)))
                symptoms.append(f"{path} does not share {what} {other}, but should")
        for other in sorted(does - should, key=_outputs_last):
            if frozenset((path, other)) not in told:
                told.add(frozenset((path, other)))
                symptoms.append(f"{path} shares {what} {other}, but should not")
    return symptoms


def _outputs_first(path: str) -> tuple[bool, str]:
    return (not path.startswith("output"), path)


def _outputs_last(path: str) -> tuple[bool, str]:
    return (path.startswith("output"), path)


def _compare_view_relation(
    call: int,
    group: Sequence[str],
    eager_facts: Mapping[str, TensorFacts],
    subject_facts: Mapping[str, TensorFacts],
    policy: ComparePolicy,
    builder: FindingsBuilder,
) -> set[str]:
    members = [path for path in group if _has_offset(eager_facts.get(path)) and _has_offset(subject_facts.get(path))]
    if not members:
        return set()
    # Offsets are relative to the group: nothing promises where a storage begins inside an allocation.
    eager_start = min(eager_facts[path].storage_offset or 0 for path in members)
    subject_start = min(subject_facts[path].storage_offset or 0 for path in members)
    reported: set[str] = set()
    for path in members:
        left, right = eager_facts[path], subject_facts[path]
        if left.shape != right.shape or 0 in left.shape:
            continue
        expected, seen = (left.storage_offset or 0) - eager_start, (right.storage_offset or 0) - subject_start
        if expected != seen:
            builder.add(
                Severity.ALIAS, Status.FAIL_ALIAS, call,
                f"{path}.storage_offset in the storage it shares is {seen}, but should be {expected}",
            )  # fmt: skip
        if policy.strides != "ignore" and have_other_strides(left, right):
            reported.add(path)
            builder.add(
                Severity.ALIAS, Status.FAIL_ALIAS, call,
                f"{path}.stride() in the storage it shares is {right.stride}, but should be {left.stride}",
            )  # fmt: skip
    return reported


def _has_offset(facts: TensorFacts | None) -> bool:
    return facts is not None and facts.storage_offset is not None


def compare_strides(
    call: int,
    eager: CallObservation,
    subject: CallObservation,
    policy: ComparePolicy,
    builder: FindingsBuilder,
    *,
    reported: set[str],
) -> None:
    """Compare strides of outputs and of arguments after the call, but for the paths that `compare_aliases` has `reported`."""
    if policy.strides == "ignore":
        return
    views = _views_of_inputs(eager) if policy.strides == "views" else None
    for section, status in (("outputs", Status.FAIL_STRIDE), ("inputs_after", Status.FAIL_MUTATION)):
        others = None
        for leaf in getattr(eager, section):
            if leaf.facts is None or leaf.path in reported or (views is not None and leaf.path not in views):
                continue
            if others is None:
                others = {other.path: other.facts for other in getattr(subject, section)}
            facts = others.get(leaf.path)
            if facts is not None and facts.shape == leaf.facts.shape and have_other_strides(leaf.facts, facts):
                builder.add(
                    Severity.STRIDE, status, call,
                    f"{leaf.path}.stride() is {facts.stride}, but should be {leaf.facts.stride}",
                )  # fmt: skip


def have_other_strides(left: TensorFacts, right: TensorFacts) -> bool:
    """Whether two tensors of one shape have different strides in a dimension where the stride addresses something."""
    if left.stride == right.stride:
        return False
    if left.stride is None or right.stride is None or 0 in left.shape:
        return False
    return any(size != 1 and a != b for size, a, b in zip(left.shape, left.stride, right.stride, strict=True))


def _views_of_inputs(call: CallObservation) -> set[str]:
    paths: set[str] = set()
    for group in call.aliases.storages:
        if any(not path.startswith("output") for path in group):
            paths.update(group)
    return paths


def facts_by_path(call: CallObservation) -> dict[str, TensorFacts]:
    return {
        leaf.path: leaf.facts for section in SECTIONS for leaf in getattr(call, section.name) if leaf.facts is not None
    }


def _paths(call: CallObservation) -> set[str]:
    return {leaf.path for section in SECTIONS for leaf in getattr(call, section.name)}
