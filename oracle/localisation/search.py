"""The search: runs a program on a subject and on the rungs below it, and looks inside the first wrong one.

Each question is asked in a forked process, so that a crash or a hang of the compiler is an answer, and no patch of the compiler
lasts. Eager runs once, before. Once a difference is known, only the calls that show it are made: later ones, and a backward
after a wrong output, would make every question dearer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import torch

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.hygiene import snapshot
from oracle.in_fork import settle_in_fork
from oracle.isolate.forked import ChildDiedError, ChildLateError, in_child
from oracle.judge.later_calls import plainer_plans
from oracle.localisation.culprit import Culprit, find_culprit
from oracle.localisation.ladder import ladder_of, second_opinion
from oracle.localisation.parts import Part, without
from oracle.localisation.report import Localisation, RungRow
from oracle.localisation.steps.passes import BACKENDS, Step, first_wrong_step
from oracle.localisation.values.first_wrong import WrongValue, first_wrong_value
from oracle.observe.outcome import calls_of
from oracle.program import Call
from oracle.program.build import Instance
from oracle.reruns.other_kernels import OTHERS
from oracle.subjects.base import Subject
from oracle.subjects.registry import load
from oracle.subjects.spec import SubjectSpec
from oracle.symptom import Symptom, matches, symptom_of
from oracle.verdict import Status, Verdict

RUNS = 3
_TIMEOUT_S = 300.0
_CULPRIT_CPU_S = 120.0
_JUDGED_BY_VALUES = (
    Status.FAIL_ACCURACY, Status.FAIL_GRAD, Status.FAIL_MUTATION, Status.FAIL_STATE, Status.FAIL_GUARD,
)  # fmt: skip
_SHARED = (
    "analysis",
    "functionalization",
    "decomposition",
)  # kinds of parts that several rungs have, and that may show in several ways
Progress = Callable[[str], None]
_Answer = TypeVar("_Answer")


@dataclass(slots=True, kw_only=True)
class Questions:
    """Judges one program on subjects, each in a forked process."""

    make: Callable[[], Instance]
    eager: EagerState
    given: dict[
        str, Subject
    ]  # subjects that no path names, such as a backend of this process, by the name of their spec
    timeout_s: float = _TIMEOUT_S
    unanswered: list[str] = field(default_factory=list)  # questions whose process died or took too long, and how

    @classmethod
    def about(cls, make: Callable[[], Instance], given: Sequence[Subject] = ()) -> Questions:
        """Questions about a program. Runs it in eager, in this process."""
        eager = EagerState(make=make)
        eager.run(lambda stage: None, snapshot())
        return cls(make=make, eager=eager, given={subject.spec.name: subject for subject in given})

    def gather_evidence(self) -> None:
        """Make the further runs of eager in this process, so that no forked process has to do it again."""
        before = snapshot()
        runs = self.eager.further_runs(lambda stage: None, before)
        runs.truth()
        runs.noise()
        runs.loud_noise()
        runs.still()
        for name in OTHERS:
            runs.other_kernels(name)

    def with_calls(self, calls: tuple[Call, ...]) -> Questions:
        """The same questions about a beginning of the plan, whose last call may lack its backward."""
        return replace(self, make=lambda: self.make().with_calls(calls), eager=self.eager.up_to(calls))

    def subject(self, spec: SubjectSpec) -> Subject:
        """The subject of a spec."""
        return self.given.get(spec.name) or load(spec)

    def verdict(self, spec: SubjectSpec, parts: Sequence[Part] = ()) -> Verdict:
        """The verdict on a subject, without these parts of it."""
        return self.verdict_without(spec, parts)[0]

    def verdict_without(
        self, spec: SubjectSpec, parts: Sequence[Part], *, is_brief: bool = False
    ) -> tuple[Verdict, list[str]]:
        """The verdict on a subject without these parts of it, and those that it does not use for this program."""
        subject = self.subject(spec)  # its compiler is imported here, once, and not in every child

        def judged() -> Any:
            settle_in_fork()
            with without(parts) if parts else contextlib.nullcontext(list) as absent:
                verdict = judge_subject(
                    eager=self.eager, subject=subject, options=CaseOptions(), is_brief=is_brief
                ).verdict
                return {"verdict": verdict.to_json(), "absent": [*map(str, absent())]}

        try:
            answer = in_child(judged, timeout_s=self.timeout_s)
            return Verdict.from_json(answer["verdict"]), answer["absent"]
        except ChildLateError as late:
            return Verdict(status=Status.TIMEOUT, symptom=str(late)), []
        except ChildDiedError as died:
            return Verdict(status=Status.CRASH, symptom=f"the process died of {died}"), []

    def answer(self, what: str, work: Callable[[], Any], made: Callable[[Any], _Answer], otherwise: _Answer) -> _Answer:
        """The result of `work` in a forked process; `otherwise`, and a note in `unanswered`, if it dies or takes too long."""

        def asked() -> Any:
            settle_in_fork()
            return work()

        try:
            return made(in_child(asked, timeout_s=self.timeout_s))
        except ChildDiedError as died:
            self.unanswered.append(f"{what}: the process died of {died}")
        except ChildLateError as late:
            self.unanswered.append(f"{what}: {late}")
        return otherwise


def localise_program(
    make: Callable[[], Instance],
    spec: SubjectSpec,
    *,
    name: str = "",
    given: Sequence[Subject] = (),
    runs: int = RUNS,
    progress: Progress = lambda stage: None,
) -> Localisation:
    """Localises the difference that a program shows on a subject. If none of `runs` runs shows one, the verdict says so.

    `name` is shown in the report; `given` are subjects of this process that have no path.
    """
    started = time.monotonic()
    with _in_one_thread():
        progress("eager")
        questions = Questions.about(make, given)
        progress(f"{spec.name}, {runs} runs")
        questions, verdicts = _shown(questions, spec, runs, progress)
        wrong = [verdict for verdict in verdicts if verdict.status.is_finding]
        found = Localisation(
            program=name,
            subject=spec.name,
            verdict=(wrong or verdicts)[0],
            shown=len(wrong),
            runs=len(verdicts),
            seconds=0.0,
        )
        if wrong:
            found = _inside(questions, spec, found, progress)
    return replace(found, seconds=time.monotonic() - started)


@contextlib.contextmanager
def _in_one_thread() -> Iterator[None]:
    """Run eager in one thread, as forked processes do. Else rounding differs, and small operators wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _shown(questions: Questions, spec: SubjectSpec, runs: int, progress: Progress) -> tuple[Questions, list[Verdict]]:
    """The verdicts of `runs` runs, and the questions about the calls that the difference needs."""
    verdict, _ = questions.verdict_without(spec, (), is_brief=True)
    verdicts = [verdict]
    asked = questions
    for plan in [] if questions.eager.is_random else plainer_plans(questions.eager.instance().program.calls, verdict):
        plainer = questions.with_calls(plan)
        _gather(plainer, verdict, progress)
        again = plainer.verdict(spec)
        if matches(symptom_of(verdict), symptom_of(again)) and again.call == verdict.call:
            asked = plainer
            verdicts += [again] if runs > 1 else []
            break
    if asked is questions:
        _gather(questions, verdict, progress)
    # A subject that takes too long is not asked again: each answer would take as long.
    while len(verdicts) < runs and verdicts[-1].status is not Status.TIMEOUT:
        verdicts.append(asked.verdict(spec))
    return asked, verdicts


def _gather(questions: Questions, verdict: Verdict, progress: Progress) -> None:
    if verdict.status in _JUDGED_BY_VALUES:
        progress("eager under noise")
        questions.gather_evidence()


def _inside(questions: Questions, spec: SubjectSpec, found: Localisation, progress: Progress) -> Localisation:
    symptom = symptom_of(found.verdict)
    rows: list[RungRow] = []
    judged: dict[str, Verdict] = {spec.name: found.verdict}

    def ask(rung: SubjectSpec) -> Verdict:
        if rung.name not in judged:
            progress(rung.name)
            judged[rung.name] = questions.verdict(rung)
        verdict = judged[rung.name]
        rows.append(RungRow(name=rung.name, verdict=verdict, is_wrong=matches(symptom, symptom_of(verdict))))
        return verdict

    first = next(rung for rung in ladder_of(spec) if matches(symptom, symptom_of(ask(rung))))
    changes = any(call.before for call in questions.make().program.calls)
    opinion = second_opinion(first, symptom, ask, changes_between_calls=changes)
    located = replace(found, rungs=tuple(rows), first_wrong=first.name, second_opinion=opinion)
    if judged[first.name].status is Status.TIMEOUT:
        return located
    progress("steps of the compiler")
    step = _first_wrong_step(questions, first)
    progress("values of the program")
    value = _first_wrong_value(questions, first, judged[first.name].call or 0)
    progress("culprit")
    culprit = _culprit(questions, first, symptom, step.name if step is not None else "")
    lower = _lower_rung_of(
        culprit, questions, [rung for rung in ladder_of(spec) if judged.get(rung.name)], first, judged
    )
    if lower is not None:
        located = replace(located, first_wrong=lower.name, shown_by=first.name)
        step = _first_wrong_step(questions, lower) or step
    return replace(located, step=step, value=value, culprit=culprit, unanswered=tuple(questions.unanswered))


def _lower_rung_of(
    culprit: Culprit, questions: Questions, asked: Sequence[SubjectSpec], first: SubjectSpec, judged: dict[str, Verdict]
) -> SubjectSpec | None:
    """The lowest rung that the same part makes wrong in another way; None if there is none below `first`."""
    if not culprit.parts or any(part.kind not in _SHARED for part in culprit.parts):
        return None
    for rung in asked:
        if rung.name == first.name:
            return None
        is_wrong = judged[rung.name].status.is_finding
        if is_wrong and not questions.verdict(rung, culprit.parts).status.is_finding:
            return rung
    return None


def _first_wrong_step(questions: Questions, rung: SubjectSpec) -> Step | None:
    if rung.options.get("backend") not in BACKENDS:
        return None

    def work() -> Any:
        wrong = first_wrong_step(questions.make, rung).wrong
        return None if wrong is None else asdict(wrong)

    return questions.answer("step", work, lambda found: None if found is None else Step(**found), None)


def _first_wrong_value(questions: Questions, rung: SubjectSpec, call: int) -> WrongValue | None:
    subject = questions.subject(rung)
    if questions.eager.first is not None and call >= len(calls_of(questions.eager.first)):
        return None  # eager raises in this call, so there are no values to compare with

    def work() -> Any:
        wrong = first_wrong_value(questions.make, subject, call=call)
        return None if wrong is None else {**asdict(wrong), "verdict": wrong.verdict.to_json()}

    def made(found: Any) -> WrongValue | None:
        return None if found is None else WrongValue(**{**found, "verdict": Verdict.from_json(found["verdict"])})

    return questions.answer("value", work, made, None)


def _culprit(questions: Questions, rung: SubjectSpec, symptom: Symptom, step: str) -> Culprit:
    subject = questions.subject(rung)

    def work() -> Any:
        return find_culprit(
            questions.make, subject, symptom, eager=questions.eager, first_wrong_step=step, cpu_budget_s=_CULPRIT_CPU_S
        ).to_json()

    return questions.answer("culprit", work, Culprit.from_json, Culprit(is_finished=False))
