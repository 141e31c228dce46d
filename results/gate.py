"""The gate of a CI job: check that a run fails in exactly the accepted ways.

A new failure closes the gate. So does a line of the baseline whose case no longer fails or has become a known issue of the
ledger: otherwise the line would hide the next failure of that case. A planned case without a record is a failure, and a run that
was stopped is one problem, however many cases are left. Known issues do not close the gate.

With budgets the gate also compares speed and compile time with a base run: a case that became slower, by the verdict of
`results.speed` and by more than its budget, closes it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import date
from enum import Enum
from itertools import chain
from typing import Any, Final

from oracle.records import Record
from oracle.verdict import Status, Verdict
from results.baseline import UNREVIEWED, AcceptedFailure
from results.compare import Comparison
from results.outcomes import NOT_COMPARABLE
from results.queries import count_statuses, notable_verdicts, passing_of
from results.render import TextTable, seconds, shorten
from results.speed import Word
from results.store import RunInfo, Store

MEASURED_NOTHING: Final = 4  # exit code
PROBLEMS_SHOWN: Final = 1000


class ProblemKind(str, Enum):
    """Why the gate is closed. The value is the word in tables and JSON."""

    NEW = "new failure"
    CHANGED = "other status than accepted"
    MISSING = "missing row"
    XPASS = "accepted, but passes now"
    KNOWN = "accepted, but a known issue now"
    NOT_COMPARED = "accepted, but not compared any more"
    EXPIRED = "acceptance expired"
    UNKNOWN = "accepted, but not planned"
    SLOWER = "slower than the budget allows"
    COMPILES_SLOWER = "compiles slower than the budget allows"
    NOT_MEASURED = "speed not measured well enough"
    INCOMPLETE = "incomplete run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One reason why the gate is closed. `line` is the line of the baseline, 0 if the case has none."""

    kind: ProblemKind
    case_id: str
    message: str
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """How much slower than in a base run a case may be, in percent; None for no limit."""

    speed: float | None = None  # time of a call, relative to eager's
    compile_time: float | None = None  # time of a cold compilation


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """Result of the gate, which is open if there are no problems."""

    run: RunInfo
    problems: tuple[Problem, ...]  # of very many of one kind, the first ones (`most` of `gate`)
    count: int  # number of all problems
    accepted: int  # number of failures that the baseline accepts
    unreviewed: int  # those with the reason "unreviewed"
    known: int  # number of cases with status `known`
    gone: tuple[str, ...]  # cases that agree although the ledger says that they differ
    compared: int  # number of cases whose results were compared
    timed: int | None = None  # with budgets: number of cases timed in both runs
    undecided: int = 0  # of these, cases whose speed was not measured well enough for a verdict

    @property
    def has_measured(self) -> bool:
        """Whether anything was compared, and timed where budgets ask for it: an empty run proves nothing."""
        return self.compared > 0 and self.timed != 0

    @property
    def exit_code(self) -> int:
        """0: open. 1: closed. MEASURED_NOTHING: no case is to blame, and nothing was measured that could open the gate."""
        if not self.has_measured and not any(problem.case_id for problem in self.problems):
            return MEASURED_NOTHING
        return int(not self.is_open)

    @property
    def is_open(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run.run_id,
            "is_open": self.is_open,
            "planned": self.run.planned,
            "recorded": self.run.recorded,
            "accepted": self.accepted,
            "unreviewed": self.unreviewed,
            "known": self.known,
            "gone": list(self.gone),
            "compared": self.compared,
            "timed": self.timed,
            "undecided": self.undecided,
            "problems": [{**asdict(problem), "kind": problem.kind.value} for problem in self.problems],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """The facts about a run's planned cases that the gate needs."""

    statuses: Mapping[Status, int]  # how many cases have each
    notable: Iterable[
        tuple[str, Verdict]
    ]  # case id and verdict of those that do not pass, or are accepted; in planned order

    @classmethod
    def of(cls, records: Iterable[Record]) -> Cases:
        """Count records that come from `Store.records(run, with_missing=True)`."""
        records = list(records)
        statuses = Counter(record.verdict.status for record in records)
        return cls(statuses=statuses, notable=[(record.case_id, record.verdict) for record in records])

    @classmethod
    def read(cls, store: Store, run: RunInfo, accepted: Mapping[str, AcceptedFailure]) -> Cases:
        """Count a run's cases in the database; passing cases are read only if the baseline accepts their failure."""
        statuses: Counter[Status] = Counter()
        for *_, status, count in count_statuses(store, run):
            statuses[Status(status)] += count
        return cls(
            statuses=statuses, notable=chain(notable_verdicts(store, run), passing_of(store, run, list(accepted)))
        )


def gate(
    cases: Cases,
    accepted: Mapping[str, AcceptedFailure],
    *,
    run: RunInfo,
    today: date,
    comparison: Comparison | None = None,
    budgets: Budgets = Budgets(),
    most: int | None = None,
) -> GateReport:
    """Compare a run with the baseline. `comparison`: of the run with a base run, for `budgets`.

    `most`: the largest number of problems of one kind that the report names; the others are counted.
    """
    problems = _Problems(most)
    for problem in _incomplete(run, cases.statuses):
        problems.add(problem)
    holding: list[AcceptedFailure] = []
    gone: list[str] = []
    planned: set[str] = set()  # those that the baseline names
    for case_id, verdict in cases.notable:
        entry = accepted.get(case_id)
        if entry is not None:
            planned.add(case_id)
        if verdict.status is Status.XPASS:
            gone.append(case_id)
        problem = _problem(case_id, verdict, entry, today)
        if problem is not None:
            problems.add(problem)
        elif entry is not None and verdict.status is not Status.NOT_RUN:
            holding.append(entry)
    for entry in accepted.values():
        if entry.case_id not in planned:
            message = "no such case in the run: renamed, removed, or not selected"
            problems.add(Problem(kind=ProblemKind.UNKNOWN, case_id=entry.case_id, message=message, line=entry.line))
    if comparison is not None:
        for problem in _over_budget(comparison, budgets):
            problems.add(problem)
    return GateReport(
        run=run,
        problems=tuple(chain.from_iterable(problems.of_kind[kind] for kind in ProblemKind)),
        count=problems.counts.total(),
        accepted=len(holding),
        unreviewed=sum(entry.reason == UNREVIEWED for entry in holding),
        known=cases.statuses.get(Status.KNOWN, 0),
        gone=tuple(gone),
        compared=sum(count for status, count in cases.statuses.items() if status not in _NOTHING_SEEN),
        timed=None if comparison is None else comparison.timed_in_both,
        undecided=0 if comparison is None else comparison.speed_words[Word.NOT_ENOUGH_DATA.value],
    )


class _Problems:
    """Problems by kind, at most so many of each; all are counted."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self.counts: Counter[ProblemKind] = Counter()
        self.of_kind: defaultdict[ProblemKind, list[Problem]] = defaultdict(list)

    def add(self, problem: Problem) -> None:
        self.counts[problem.kind] += 1
        if self._most is None or self.counts[problem.kind] <= self._most:
            self.of_kind[problem.kind].append(problem)


def _incomplete(run: RunInfo, statuses: Mapping[Status, int]) -> Iterator[Problem]:
    if run.state == "planning":
        # Its records do not matter, since it is unknown which cases it would have had.
        message = "the run died while its cases were planned"
        yield Problem(kind=ProblemKind.INCOMPLETE, case_id="", message=message)
        return
    if run.planned == 0:
        message = "no case was planned, and nothing compared is not agreement"
        yield Problem(kind=ProblemKind.INCOMPLETE, case_id="", message=message)
    if left := statuses.get(Status.NOT_RUN, 0):
        message = f"the run was stopped before {left} of its {sum(statuses.values())} cases had run; "
        message += "finish it with `torch-oracle sweep --resume`"
        yield Problem(kind=ProblemKind.INCOMPLETE, case_id="", message=message)


_NOTHING_SEEN: Final = NOT_COMPARABLE | {Status.MISSING}


def _over_budget(comparison: Comparison, budgets: Budgets) -> Iterator[Problem]:
    invalid = {
        comparison.speed_invalid if budgets.speed is not None else "",
        comparison.compile_invalid if budgets.compile_time is not None else "",
    }
    for message in sorted(invalid - {""}):
        yield Problem(kind=ProblemKind.NOT_MEASURED, case_id="", message=message)
    for change in comparison.speed:
        slower = 100 * (1 / change.change - 1)
        if budgets.speed is not None and slower > budgets.speed:
            message = f"{slower:.1f} % slower than in {comparison.base.run_id}, allowed {budgets.speed:g} %"
            yield Problem(kind=ProblemKind.SLOWER, case_id=change.case_id, message=message)
    for change in comparison.compile_time:
        slower = 100 * (change.head_s / change.base_s - 1)
        if budgets.compile_time is not None and slower > budgets.compile_time:
            message = f"{seconds(change.head_s)} and {seconds(change.base_s)} in {comparison.base.run_id}: "
            message += f"{slower:.0f} % more, allowed {budgets.compile_time:g} %"
            yield Problem(kind=ProblemKind.COMPILES_SLOWER, case_id=change.case_id, message=message)


def _problem(case_id: str, verdict: Verdict, entry: AcceptedFailure | None, today: date) -> Problem | None:
    status, symptom = verdict.status, verdict.symptom
    if status is Status.NOT_RUN:
        return None  # reported once for the whole run
    if status is Status.MISSING:
        kind, message = ProblemKind.MISSING, symptom
    elif entry is None:
        if not status.is_finding:
            return None
        frequency = f", {verdict.frequency}" if verdict.reruns else ""
        kind, message = ProblemKind.NEW, f"{status.value}{frequency}: {symptom}"
    elif status in (Status.PASS, Status.XPASS):
        kind, message = ProblemKind.XPASS, f"accepted as {entry.status.value} ({entry.reason}): remove the line"
    elif status is Status.KNOWN:
        issue = verdict.issue or "an issue of the ledger"
        kind, message = ProblemKind.KNOWN, f"known as {issue}: the line can go (accepted as {entry.status.value})"
    elif not status.is_finding:
        kind, message = ProblemKind.NOT_COMPARED, f"accepted as {entry.status.value}, is {status.value}: {symptom}"
    elif status is not entry.status:
        kind, message = ProblemKind.CHANGED, f"accepted as {entry.status.value}, is {status.value}: {symptom}"
    elif entry.is_expired(today):
        kind, message = ProblemKind.EXPIRED, f"on {entry.expires}, still {status.value} ({entry.reason}) {entry.link}"
    else:
        return None
    return Problem(kind=kind, case_id=case_id, message=message.strip(), line=entry.line if entry else 0)


def failing(cases: Cases) -> dict[str, Status]:
    """The findings by case id, missing rows included."""
    return {case_id: verdict.status for case_id, verdict in cases.notable if verdict.status.is_finding}


def tables_of(report: GateReport) -> list[TextTable]:
    """The report as one table, with the counts below. Of very many problems the first ones are shown."""
    shown = report.problems[:PROBLEMS_SHOWN]
    rows = [(p.kind.value, p.case_id or "-", str(p.line or "-"), shorten(p.message)) for p in shown]
    note = f"{report.run.recorded} of {report.run.planned} cases recorded; {report.accepted} accepted failures hold"
    if report.unreviewed:
        note += f", {report.unreviewed} of them unreviewed"
    if not report.accepted and shown and all(p.kind is ProblemKind.UNKNOWN for p in shown):
        note += (
            f"\nno case of the baseline is in run {report.run.run_id}, which has other suites, subjects or a selection: "
            "name the right run with --run (`torch-oracle show --runs` lists them)"
        )
    if report.known:
        note += f"; {report.known} differ as known issues say"
    if report.timed is not None:
        note += f"; {report.timed} timed in both runs"
        if report.undecided:
            note += f", {report.undecided} of them not well enough to tell whether they became slower"
            note += " (sweep --speed --speed-precision 2 takes as many processes as that needs)"
    if not report.has_measured:
        what = "compared" if report.compared == 0 else "timed in both runs (sweep --speed times cases)"
        note += f"\nnothing was {what}, so this run says nothing (exit code {MEASURED_NOTHING})"
    if report.gone:
        note += f"\nagree although a known issue says that they differ, so its entry can go: {', '.join(report.gone)}"
    title = "gate: open" if report.is_open else f"gate: closed ({report.count})"
    if len(shown) < report.count:
        note = f"and {report.count - len(shown)} more (--json has all)\n{note}"
    columns = ("why", "case", "line", "what")
    right, prose = frozenset({2}), frozenset({3})
    return [TextTable(title=title, columns=columns, rows=tuple(rows), right=right, prose=prose, note=note)]
