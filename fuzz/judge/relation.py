"""Judges a metamorphic relation: the subject's verdicts on a program and on a related one.

Note [Why a relation gives no false alarm] The two results are never compared with each other: both are right within the judge's
bounds, and two right results may be twice as far apart. Instead each program is judged as usual against its own run in eager,
after eager was seen to keep the relation (for a changed program: all results equal within the judge's bounds). A relation is
broken if the subject is right on one program and wrong on the other, so that every broken relation is also a finding of the
ordinary judge. If both are wrong, judging the program alone shows the bug.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fuzz.builds.inductor import in_turn
from fuzz.draw.inputs.source import shown_inputs
from fuzz.judge.fresh import judge_in_fresh_process
from fuzz.judge.metamorphic import Related, Relation, Road, drawn_relations, relation_named
from fuzz.judge.observing import prepared_subject
from fuzz.judge.refusal import refusal_of
from fuzz.judge.single import judge as judge_program
from fuzz.program.render import to_program
from fuzz.program.structure import FuzzProgram
from oracle.case import CaseOptions, CaseResult, EagerState, judge_subject
from oracle.hygiene import ProcessState, snapshot
from oracle.judge import Evidence, Promises, Runs, judge
from oracle.observe.outcome import Outcome, Returned
from oracle.program import ComparePolicy, Program
from oracle.program.build import ProgramLoadError, instantiate
from oracle.subjects.base import Subject
from oracle.subjects.registry import load, resolve
from oracle.symptom import symptom_of, with_relation
from oracle.verdict import Status, Verdict

# Two related programs must have equal values; an added copy may change strides and aliases.
_POLICY = ComparePolicy(strides="ignore", aliases=False, reason="another program of the same meaning")
_OPTIONS = CaseOptions()
_TRACEBACK_CHARACTERS = 3000
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationResult:
    """The result of one relation."""

    verdict: Verdict
    traceback: str = ""
    leaked: tuple[str, ...] = ()


def judge_relation(
    program: FuzzProgram, relation: Relation, subject: Subject, *, progress: Progress = lambda stage: None
) -> RelationResult | None:
    """PASS if the subject is right on both or wrong on both, else the verdict on the wrong one.

    None if the relation does not apply to the program or the subject, if it does not hold in eager (for "through refimpl": with
    refimpl), or if either program is refused.
    """
    related = relation.relate(program) if relation.is_for(subject.spec) else None
    if related is None or not _is_kept(program, related, relation, progress):
        return None
    first = _case(to_program(program, name="original"), subject, progress)
    if not _is_judged(first, subject):
        return None
    second = _by_road(to_program(related.program, name="related"), relation, subject, progress)
    if not _is_judged(second, subject):
        return None
    wrong = [result for result in (first, second) if result.verdict.status.is_finding]
    if len(wrong) != 1:
        verdict = Verdict(status=Status.PASS, compared=second.verdict.compared)
        return RelationResult(verdict=verdict, leaked=first.leaked + second.leaked)
    (result,) = wrong
    verdict = replace(result.verdict, symptom=with_relation(relation.name, result.verdict.symptom))
    return RelationResult(verdict=verdict, traceback=result.traceback, leaked=first.leaked + second.leaked)


@in_turn(shares_builds=False)
def judge_related(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Task function: {"subject", "program", "relation" or "turn", "times"} -> {"relation", "shown", "runs", "verdict", ...}.

    With "relation" that one is judged, up to `times` times until it shows a finding; with "turn" the first one of this turn that
    applies. "relation" of the result is "" if none applies. Stages begin with its name.
    """
    progress("load")
    subject = prepared_subject(payload["subject"])
    program = FuzzProgram.from_json(payload["program"])
    name = payload.get("relation", "")
    asked = (relation_named(name),) if name else drawn_relations(payload["turn"], subject.spec)
    runs, result, said = 0, None, ""
    for relation in asked:
        for _ in range(payload["times"]):
            result = judge_relation(
                program,
                relation,
                subject,
                progress=lambda stage, said=relation.name: progress(f"relation {said}: {stage}"),
            )
            runs += 1
            if result is None or result.verdict.status.is_finding:
                break
        if result is not None:
            said = relation.name
            break
    verdict = result.verdict if result is not None else Verdict(status=Status.PASS_DUE_TO_SKIP, symptom="none applies")
    return {
        "relation": said,
        "shown": verdict.status.is_finding,
        "runs": runs,
        "verdict": verdict.to_json(),
        "symptom": symptom_of(verdict).to_json(),
        "traceback": "" if result is None else result.traceback[-_TRACEBACK_CHARACTERS:],
        "inputs": shown_inputs(program) if verdict.status.is_finding else [],
        "replace_worker": bool(result is not None and result.leaked),
    }


def _is_judged(result: CaseResult, subject: Subject) -> bool:
    """Whether a verdict says something about the subject."""
    status = result.verdict.status
    if status is Status.PASS:
        return True
    return status.is_finding and not refusal_of(result.verdict, subject.spec, traceback=result.traceback)


def _case(program: Program, subject: Subject, progress: Progress) -> CaseResult:
    eager = EagerState(make=lambda: instantiate(program))
    return judge_subject(eager=eager, subject=subject, options=_OPTIONS, progress=progress)


def _by_road(program: Program, relation: Relation, subject: Subject, progress: Progress) -> CaseResult:
    match relation.road:
        case Road.HERE:
            return _case(program, subject, progress)
        case Road.FRESH_PROCESS:
            progress("subject")
            return CaseResult(verdict=judge_in_fresh_process(program, subject.spec))
        case Road.REFIMPL:
            # Takes two seconds to import, and most processes that judge a program never come here.
            from oracle.subjects.refimpl import ThroughRefimpl  # noqa: PLC0415

            return _case(replace(program, policy=_POLICY), ThroughRefimpl(subject), progress)


# ------------------------------------------------------------------------------------------------------- eager's own part


def _is_kept(program: FuzzProgram, related: Related, relation: Relation, progress: Progress) -> bool:
    """Whether the relation holds without the subject."""
    if relation.road is Road.REFIMPL:
        return judge_program(to_program(program, name="by refimpl"), _refimpl()).verdict.status is Status.PASS
    return related.program is program or _is_kept_by_eager(program, related, progress)


@functools.lru_cache(maxsize=1)
def _refimpl() -> Subject:
    return load(resolve("refimpl.aot"))


def _is_kept_by_eager(program: FuzzProgram, related: Related, progress: Progress) -> bool:
    """Whether eager's values on both programs are within the judge's bounds of each other; never for random programs."""
    before = snapshot()
    mine, its = (_eager(p, progress, before) for p in (program, related.program))
    if mine is None or its is None or mine.is_random or its.is_random:
        return False
    if not isinstance(mine.first, Returned) or not isinstance(its.first, Returned):
        return False

    def quiet(stage: str) -> None:
        progress("eager")

    restored = _restored(its.first, related, mine.first)
    for one, other in ((mine.first, restored), (restored, mine.first)):  # either may be the less accurate one
        runs = Runs(truth=lambda: mine.ground_truth(quiet, before), noise=lambda: mine.noise_runs(quiet, before))
        verdict = judge(Evidence(eager=one, again=one, subject=other, runs=runs, promises=Promises(policy=_POLICY)))
        if verdict.status is not Status.PASS:
            return False
    return True


def _eager(program: FuzzProgram, progress: Progress, before: ProcessState) -> EagerState | None:
    made = to_program(program, name="in eager")
    state = EagerState(make=lambda: instantiate(made))
    try:
        state.run(progress, before)
    except ProgramLoadError:
        return None
    return state


def _restored(outcome: Returned, related: Related, like: Returned) -> Outcome:
    """The outcome with its outputs at the paths that they have in the original."""
    if not related.outputs or len(outcome.calls) != len(like.calls):
        return outcome
    calls = []
    for call, original in zip(outcome.calls, like.calls, strict=True):
        outputs = tuple(replace(leaf, path=_moved(leaf.path, related.outputs)) for leaf in call.outputs)
        calls.append(replace(call, outputs=outputs, structure=original.structure))
    return Returned(calls=tuple(calls))


def _moved(path: str, outputs: Mapping[str, str]) -> str:
    for old, new in outputs.items():
        if path == old or path.startswith((f"{old}[", f"{old}.")):
            return new + path[len(old) :]
    return path
