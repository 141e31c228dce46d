"""Judges the values of two versions of torch against each other, as `oracle.judge` does for a subject and eager.

Versions round differently. A difference is put down to rounding if a witness of the judge accepts it: eager in float64, or eager
under rounding noise. These runs are made by the torch of this process, and asked only about a version that has the same inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from oracle.case import EagerState, draws_numbers
from oracle.hygiene import snapshot
from oracle.judge.evidence import Evidence, Promises, Runs
from oracle.judge.findings import SECTIONS
from oracle.judge.judging import judge
from oracle.observe.outcome import CallObservation, Leaf, Outcome, Raised, Returned, calls_of
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict
from triage.advise.answers import Answer
from triage.advise.asking import Side
from triage.advise.worker import input_digests

_ENDINGS = (Status.FAIL_TO_RUN, Status.FAIL_EXCEPTION, Status.CRASH, Status.TIMEOUT, Status.OOM)  # told as errors
_SHOWN = 3  # names of inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two outcomes compared. Without a verdict the text says why."""

    text: str
    verdict: Verdict | None = None

    @property
    def is_told(self) -> bool:
        """Whether values were compared to the end of the plan."""
        return self.verdict is not None and self.verdict.status not in _ENDINGS

    @property
    def is_other(self) -> bool:
        """Whether something that a caller sees differs by more than rounding. A run that ends early is reported as an error."""
        return self.is_told and self.verdict is not None and self.verdict.status.is_finding

    @property
    def is_same_bits(self) -> bool:
        return (
            self.verdict is not None and not self.is_other and {name for name, _ in self.verdict.witnesses} <= {"bits"}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """All comparisons of two versions. `old` and `new` below stand for the versions."""

    eager: Comparison  # new against old
    compiled: Comparison  # new against old
    compiled_old: Comparison  # against eager of the same version
    compiled_new: Comparison
    inputs: tuple[str, ...] = ()  # inputs whose bits differ between the versions

    @property
    def rows(self) -> Iterator[tuple[str, Comparison]]:
        """The comparisons with their names."""
        yield "eager of the new torch against the old one", self.eager
        yield "compiled by the new torch against the old one", self.compiled
        yield "compiled by the old torch against its eager", self.compiled_old
        yield "compiled by the new torch against its eager", self.compiled_new


def judge_both(old: Side, new: Side, eager: EagerState, spec: SubjectSpec) -> Judged:
    """Compare the outcomes of the first round. The second one shows what varies from run to run."""
    judging = _Judging(eager=eager, spec=spec, inputs=input_digests(eager.instance().program))
    others = _other_inputs(old.first.inputs, new.first.inputs)
    own = [
        judging.compare(side.first, side.first.eager, side.second.eager, side.first.compiled, is_subject=True)
        for side in (old, new)
    ]
    if others:
        shown = ", ".join(others[:_SHOWN]) + (" ..." if len(others) > _SHOWN else "")
        between = [
            Comparison(text=f"not compared: random streams of the versions differ, so these inputs do: {shown}")
        ] * 2
    else:
        between = [
            judging.compare(old.first, old.first.eager, old.second.eager, new.first.eager),
            judging.compare(old.first, old.first.compiled, old.second.compiled, new.first.compiled, is_compiled=True),
        ]
    return Judged(eager=between[0], compiled=between[1], compiled_old=own[0], compiled_new=own[1], inputs=tuple(others))


def _other_inputs(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return sorted(path for path in {*old} & {*new} if old[path] != new[path])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judging:
    eager: EagerState  # of this process, which has been run
    spec: SubjectSpec
    inputs: Mapping[str, str]

    def compare(
        self,
        answer: Answer,
        expected: Outcome,
        again: Outcome,
        seen: Outcome,
        *,
        is_subject: bool = False,
        is_compiled: bool = False,
    ) -> Comparison:
        """Compare `seen` with `expected`. `answer` is the one that `expected` is from.

        `is_subject`: `expected` is eager and `seen` is compiled. `is_compiled`: both are compiled.
        """
        if not isinstance(expected, (Returned, Raised)) or not isinstance(seen, (Returned, Raised)):
            return Comparison(text="not compared: a process ended early")
        program, own = self.eager.instance().program, self.spec.rng == "own"
        is_random = bool(self.eager.is_random)
        draws = draws_numbers(program, self.eager.first)
        evidence = Evidence(
            eager=expected,
            again=again,
            subject=seen,
            runs=self._runs() if _has_inputs(answer.inputs, self.inputs) else Runs(),
            promises=Promises(policy=program.policy, raises=program.expects_raise, own_stream=own and is_subject),
            draws=draws,
            is_random=is_random,
        )
        if is_compiled and own and draws:  # the two are compared where they draw the same numbers
            same = judge(replace(evidence, runs=Runs()))
            if {name for name, _ in same.witnesses} <= {"bits"} and same.status is Status.PASS:
                return _told(same, expected, seen)
            if is_random:
                return Comparison(text="not compared: a compiled program draws its own random numbers")
        return _told(judge(evidence), expected, seen)

    def _runs(self) -> Runs:
        return self.eager.further_runs(lambda stage: None, snapshot())


def _has_inputs(its: Mapping[str, str], ours: Mapping[str, str]) -> bool:
    return not _other_inputs(its, ours)


def _told(verdict: Verdict, expected: Outcome, seen: Outcome) -> Comparison:
    status = verdict.status
    if status in (Status.EAGER_FAIL_TO_RUN, *_ENDINGS):
        text = (
            "not compared to the end: a run raises"
            if calls_of(seen) and calls_of(expected)
            else "not compared: a run raises"
        )
        return Comparison(text=text, verdict=None if status is Status.EAGER_FAIL_TO_RUN else verdict)
    if status is Status.EAGER_TWO_RUNS_DIFFER:
        return Comparison(text=f"not compared: two runs with one version differ ({verdict.symptom})")
    if status.is_finding:
        more = f" (and {len(verdict.also)} more)" if verdict.also else ""
        return Comparison(text=f"differs: {verdict.symptom}{more}", verdict=verdict)
    found = Comparison(text="the same bits", verdict=verdict)
    if status is Status.PASS_DUE_TO_SKIP and not found.is_same_bits:
        return Comparison(text=f"little could be compared: {verdict.symptom or 'rounding noise changes most elements'}")
    if found.is_same_bits:
        return found
    names = ", ".join(name for name, count in verdict.witnesses if name != "bits" and count)
    ulp = "" if verdict.max_ulp is None else f", {verdict.max_ulp:.0f} ULP"
    text = f"differs by rounding (max error {_largest_error(expected, seen):.2g}{ulp}; accepted: {names})"
    return Comparison(text=text, verdict=verdict)


def _largest_error(expected: Outcome, seen: Outcome) -> float:
    """The largest difference of two finite elements."""
    calls = zip(calls_of(expected), calls_of(seen), strict=False)
    return max((_error(left, right) for pair in calls for left, right in _pairs(*pair)), default=0.0)


def _pairs(expected: CallObservation, seen: CallObservation) -> Iterator[tuple[Leaf, Leaf]]:
    for section in SECTIONS:
        others = {leaf.path: leaf for leaf in getattr(seen, section.name)}
        yield from ((leaf, others[leaf.path]) for leaf in getattr(expected, section.name) if leaf.path in others)


def _error(left: Leaf, right: Leaf) -> float:
    a, b = left.value, right.value
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return 0.0
    wide = torch.complex128 if a.is_complex() else torch.float64
    apart = (a.to(wide) - b.to(wide)).abs()
    return float(apart[apart.isfinite()].max()) if bool(apart.isfinite().any()) else 0.0
