"""Minimises any program that shows a finding: a user's function or module of any size, down to a few statements.

The program is turned into structured forms (`fuzz.reduce.from_program`). A long form is first narrowed to a window of its
statements (`fuzz.reduce.windows`), and then reduced like a drawn program (`fuzz.reduce.task.searched`). If no form shows the
finding, statements of the source itself are dropped (`fuzz.reduce.from_source`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from fuzz.program.render import needed_definitions, to_program
from fuzz.program.structure import Block, FuzzProgram, walk
from fuzz.reduce.from_program import CAPTURED, SOURCE, WAYS, Way
from fuzz.reduce.from_source import statement_count, without_statements
from fuzz.reduce.search import key_of
from fuzz.reduce.task import HANG_S, Searched, searched
from fuzz.reduce.trials import TrialProcess
from fuzz.reduce.windows import SHORT, narrowed
from oracle.localisation.ladder import first_wrong, ladder_of
from oracle.program import Program
from oracle.subjects.spec import SubjectSpec
from oracle.symptom import Symptom, matches, symptom_of
from oracle.verdict import Status, Verdict

STATEMENTS = "statements"
_RUNS = 3  # of the program, until it shows the symptom
_SMALL = 3  # a result of so many statements, without definitions, is not tried to be made smaller in another way
_NARROW_SHARE = 0.5  # of the time left, for windows of one form

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a program."""

    statements: int  # of the source; or of the function, with those of its definitions
    elements: int  # of the tensors in the arguments of the largest call; 0 if the source makes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimised:
    """The smallest program found, with what it shows and what it took."""

    program: FuzzProgram | None  # None: no structured form shows the symptom
    source: Program  # the same as source; without a form the program given, perhaps with fewer statements
    verdict: Verdict  # of `source` on the subject
    symptom: Symptom
    rung: SubjectSpec  # the first wrong rung of `source`; the subject if there is none
    how: str  # "source", "captured", "statements" (of the source itself, without a form), or "" if none is smaller
    reproduced: bool  # the program given shows the symptom
    shown: int  # of `runs` runs of the program given, so many showed the symptom
    runs: int
    before: Size
    after: Size
    nodes: int  # statements of the largest captured graph; 0 if nothing was captured
    trials: int
    seconds: float
    is_finished: bool  # nothing can be reduced further; False: out of time
    reasons: tuple[str, ...] = ()  # why ways to a structured form were left out


def minimise(
    program: Program,
    subject: SubjectSpec,
    *,
    verdict: Verdict | None = None,
    budget_s: float = 60.0,
    progress: Progress = lambda stage: None,
) -> Minimised:
    """The smallest program found within `budget_s` seconds that shows the program's symptom on the subject.

    `verdict` is that of an earlier run of the program; without it, or if no smaller program shows it, the program is judged up to
    three times. All runs are in a child process, so a crash is a verdict. Raises UsageError for a subject that cannot be loaded.
    """
    started = time.monotonic()
    with TrialProcess() as trials:
        search = _Search(
            program=program, subject=subject, trials=trials, deadline=started + budget_s, progress=progress
        )
        shown = runs = int(verdict is not None and verdict.status.is_finding)
        if not (verdict is not None and shown and search.run(verdict)):
            progress("reproduce")
            again, shown, runs = _judged(program, subject, verdict, trials)
            if shown and verdict is None:
                search.run(again)
            verdict = verdict or again
        if shown and search.best is None:
            search.drop_statements(verdict)
        return _minimised(search, verdict, shown=shown, runs=runs, seconds=time.monotonic() - started)


def _minimised(search: _Search, verdict: Verdict, *, shown: int, runs: int, seconds: float) -> Minimised:
    program, best, shorter = search.program, search.best, search.shorter
    before = Size(statements=statement_count(program), elements=_elements(program))
    source = program if shorter is None else shorter.program
    after = before if shorter is None else Size(statements=statement_count(source), elements=_elements(source))
    found = best or shorter
    return Minimised(
        program=None if best is None else best.program,
        source=source if best is None else to_program(best.program, name=program.name),
        verdict=verdict if found is None else found.verdict,
        symptom=symptom_of(verdict),
        rung=search.subject if found is None else found.rung,
        how=search.how,
        reproduced=bool(shown),
        shown=shown,
        runs=runs,
        before=before,
        after=after if best is None else size_of(best.program),
        nodes=search.nodes,
        trials=search.trials.judged,
        seconds=seconds,
        is_finished=found is not None and found.is_finished,
        reasons=tuple(dict.fromkeys(search.reasons)),
    )


def _judged(
    program: Program, subject: SubjectSpec, known: Verdict | None, trials: TrialProcess
) -> tuple[Verdict, int, int]:
    """The verdict of the first run that shows a symptom, that of `known` if it is given, else of the last run.

    Also how many runs showed it, and of how many.
    """
    runs = 0
    while True:
        verdict = trials.judge_source(program, subject)
        runs += 1
        is_shown = verdict.status.is_finding and (known is None or matches(symptom_of(known), symptom_of(verdict)))
        if is_shown or runs == _RUNS:
            return verdict, int(is_shown), runs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shorter:
    """The program given with fewer statements, and its verdict on the subject."""

    program: Program
    verdict: Verdict
    rung: SubjectSpec  # the first wrong rung
    is_finished: bool


@dataclass(slots=True, kw_only=True)
class _Search:
    """The search over all ways, and the best program so far."""

    program: Program
    subject: SubjectSpec
    trials: TrialProcess
    deadline: float
    progress: Progress
    best: Searched | None = None
    shorter: _Shorter | None = None  # if there is no best
    how: str = ""
    nodes: int = 0
    reasons: list[str] = field(default_factory=list)
    tried: set[bytes] = field(default_factory=set)  # keys of forms
    rungs: list[SubjectSpec] = field(default_factory=list)  # lower ones on which the program shows the symptom
    right_on: list[SubjectSpec] = field(default_factory=list)  # lower ones on which it does not
    verdict: Verdict = field(init=False)  # of the program

    def run(self, verdict: Verdict) -> bool:
        """Try the ways until one leads to a small program; whether any did.

        A function that was reduced as source, and is not small yet, is captured after that.
        """
        self.verdict = verdict
        if verdict.status is Status.TIMEOUT:
            self.trials.timeout_s = HANG_S
        self.progress("plan")
        self._with_a_plainer_plan()
        for way in self._ways():
            if self._is_over():
                break
            if self.best is not None and way.how == SOURCE:
                continue
            given = self.program if self.best is None else to_program(self.best.program, name=self.program.name)
            for form in self._forms(given, way):
                found = self._reduced(form)
                if found is not None and (self.best is None or _cost(found.program) < _cost(self.best.program)):
                    self.best, self.how = found, way.how
                if found is not None or self._is_over():
                    break
        return self.best is not None

    def drop_statements(self, verdict: Verdict) -> None:
        """Look for a program with fewer statements of the source, which is first wrong on the same rung."""
        self.progress("statements")
        symptom, judge = symptom_of(verdict), self.trials.judge_source

        def is_wrong(program: Program, rung: SubjectSpec) -> bool:
            return matches(symptom, symptom_of(judge(program, rung)))

        rung = first_wrong(self.subject, symptom, lambda asked: judge(self.program, asked))
        rungs = ladder_of(self.subject)
        below = rungs[: rungs.index(rung)][-1:]

        def shows(program: Program) -> bool:
            return is_wrong(program, rung) and not any(is_wrong(program, lower) for lower in below)

        found, is_finished = without_statements(self.program, shows, deadline=self.deadline)
        last = judge(found, self.subject)
        if matches(symptom, symptom_of(last)):
            self.shorter = _Shorter(program=found, verdict=last, rung=rung, is_finished=is_finished)
            self.how = STATEMENTS if found != self.program else ""

    def _with_a_plainer_plan(self) -> None:
        """Keep only the first call, if that shows the symptom, and no backward that it does not need.

        All later trials cost less by as much: a trial of three calls, differentiated twice, takes five times as long.
        """
        first = replace(self.program.calls[0], double_backward=False)
        if self.verdict.call != 0 or self._needs_calls() or self.program.expects_raise:
            return
        is_of_gradient = self.verdict.status is Status.FAIL_GRAD or "grad" in self.verdict.symptom
        plans = [first] if is_of_gradient or not first.backward else [replace(first, backward=False), first]
        for plan in plans:
            plainer = replace(self.program, calls=(plan,))
            if plainer == self.program:
                return
            verdict = self.trials.judge_source(plainer, self.subject)
            if verdict.status.is_finding and matches(symptom_of(self.verdict), symptom_of(verdict)):
                self.program, self.verdict = plainer, verdict
                return

    def _ways(self) -> list[Way]:
        """The ways that can show the symptom: one graph of calls with several sizes first, if a later call is wrong."""
        if len(self.program.calls) == 1:
            return [way for way in WAYS if not way.dynamic]
        return sorted(WAYS, key=lambda way: (way.how != SOURCE, way.dynamic != self._needs_calls()))

    def _needs_calls(self) -> bool:
        return self.verdict.status is Status.FAIL_GUARD

    def _is_over(self) -> bool:
        if time.monotonic() > self.deadline:
            return True
        return self.best is not None and _cost(self.best.program) <= (0, _SMALL)

    def _forms(self, given: Program, way: Way) -> Iterator[FuzzProgram]:
        """The forms that were not tried yet, and have the calls that the symptom needs."""
        self.progress(way.how)
        for form in self.trials.forms(given, self.subject, way):
            if isinstance(form, str):
                self.reasons.append(f"{way.how}: {form}")
                continue
            if way.how == CAPTURED:
                self.nodes = max(self.nodes, len(form.statements))
            key = key_of(form)
            if key not in self.tried and (len(form.calls) > 1 or not self._needs_calls()):
                self.tried.add(key)
                yield form

    def _reduced(self, form: FuzzProgram) -> Searched | None:
        """The reduced form; None if it does not show the symptom.

        If that is wrong on a lower rung than the program, it shows another bug: a form right on that rung is looked for.
        """
        while True:
            shorter = self._narrowed(form)
            if shorter is None:
                return None
            verdict = self.trials.judge(shorter, self.subject)
            if not self._is_same(shorter, verdict):
                return None
            found = searched(
                shorter, self.subject, verdict, self.trials, deadline=self.deadline, progress=self.progress
            )
            if found.rung == self.subject or found.rung in self.rungs or self._is_over():
                return found
            if matches(symptom_of(self.verdict), symptom_of(self.trials.judge_source(self.program, found.rung))):
                self.rungs.append(found.rung)
                return found
            self.right_on.append(found.rung)

    def _narrowed(self, form: FuzzProgram) -> FuzzProgram | None:
        """A short form, or the form itself; None if it is known not to show the symptom."""
        if len(form.statements) <= SHORT:
            return form
        self.progress("narrow")
        suspects = self.trials.suspects(form, self.subject)
        if not suspects and not self._is_same(form, self.trials.judge(form, self.subject)):
            return None
        one = replace(form.calls[min(self.verdict.call or 0, len(form.calls) - 1)], before="")
        alone = [] if self._needs_calls() or len(form.calls) == 1 else [replace(form, calls=(one,))]
        for candidate in (*alone, form):
            found = narrowed(
                candidate,
                lambda shorter: self._is_same(shorter, self.trials.judge(shorter, self.subject)),
                suspects,
                deadline=time.monotonic() + max(0.0, self.deadline - time.monotonic()) * _NARROW_SHARE,
            )
            if found.program is not candidate:
                return found.program
        return form

    def _is_same(self, shorter: FuzzProgram, verdict: Verdict) -> bool:
        symptom = symptom_of(self.verdict)
        return (
            verdict.status.is_finding
            and matches(symptom, symptom_of(verdict))
            and not any(matches(symptom, symptom_of(self.trials.judge(shorter, rung))) for rung in self.right_on)
        )


def size_of(program: FuzzProgram) -> Size:
    """The size of a structured program."""
    definitions, statements = _cost(program)
    return Size(statements=definitions + statements, elements=_elements(to_program(program, name="")))


def _cost(program: FuzzProgram) -> tuple[int, int]:
    """Lines of definitions, then statements; of two programs the one with the smaller cost is the smaller one."""
    definitions = sum(len(d.text.splitlines()) for d in needed_definitions(program) if not d.text.startswith("import "))
    state = 0 if program.state is None else len(program.state)
    return definitions + state, sum(not isinstance(s, Block) for s in walk((*program.derive, *program.statements)))


def _elements(program: Program) -> int:
    def count(spec: object) -> int:
        if isinstance(spec, dict) and "shape" in spec:
            return math.prod(spec["shape"])
        items = spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ()
        return sum(count(item) for item in items)

    return max(count([call.args, call.kwargs]) for call in program.calls)
