"""Group new findings, so that the cases of one bug in one operator are one group.

Cases of one group have the same operator (or model, or program), the same status and kind of symptom (oracle.symptom: without
paths, numbers, sizes and dtypes), and the same first wrong rung. If several subjects have the same symptom on a program, they are
in one group, whose first wrong rung is the lowest of them on the ladder.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import groupby
from operator import attrgetter
from sys import intern
from typing import Any, Final, NamedTuple, Protocol

from oracle.known.severity import Severity
from oracle.records import Record
from oracle.symptom import symptom_of
from oracle.verdict import Status, Verdict
from results.ladder import ladder_of, rung_of
from results.render import TextTable, shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingGroup:
    """Cases that are probably one bug."""

    suite: str
    what: str  # operator, model or program: "nn.functional.dropout", "found/alias_set_then_written"
    status: str
    kind: str  # oracle.symptom.Symptom.kind
    severity: Severity | None  # None if the run has no records of the cases
    subjects: tuple[str, ...]  # all wrong subjects, starting with the first wrong rung
    case_ids: tuple[str, ...]  # in planned order
    example: str  # a case id on the first wrong rung
    symptom: str  # of the example, shortened

    @property
    def cases(self) -> int:
        return len(self.case_ids)

    @property
    def label(self) -> str:
        """A short label: "add: fail_accuracy first on inductor (output: number)"."""
        if not self.what:
            return self.status
        return f"{self.what}: {self.status} first on {self.subjects[0]}" + (f" ({self.kind})" if self.kind else "")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "severity": self.severity.value if self.severity else None, "cases": self.cases}


class Columns(Protocol):
    """Cases as columns by name: a data frame (results.tables.frame), or a dictionary of lists."""

    def __getitem__(self, key: str, /) -> Iterable[Any]: ...


class GroupRow(NamedTuple):
    """The facts about one case that grouping needs."""

    suite: str
    group: str
    name: str
    subject: str
    dtype: str
    direction: str
    status: str
    symptom: str
    case_id: str
    position: int  # planned order
    is_finding: bool


_COLUMNS: Final = (
    "suite",
    "group",
    "name",
    "subject",
    "dtype",
    "direction",
    "status",
    "symptom",
    "case_id",
    "is_finding",
)


def columns_of(records: Sequence[Record]) -> dict[str, list[Any]]:
    """The facts about records that grouping needs, as columns."""
    names = ("case_id", "suite", "group", "name", "subject", "dtype", "direction")
    columns = {name: [getattr(record, name) for record in records] for name in names}
    verdicts = [record.verdict for record in records]
    return {
        **columns,
        "status": [verdict.status.value for verdict in verdicts],
        "symptom": [verdict.symptom for verdict in verdicts],
        "is_finding": [verdict.status.is_finding for verdict in verdicts],
    }


def group_findings(table: Columns) -> list[FindingGroup]:
    """The findings of a table in groups: most severe first, then most cases, then planned order.

    The table's other rows show on which rungs a program agrees.
    """
    suites, groups, names, subjects, dtypes, directions, statuses, symptoms, case_ids, flags = (
        list(table[name]) for name in _COLUMNS
    )

    def row(i: int) -> GroupRow:
        labels = (suites[i], groups[i], names[i], subjects[i], dtypes[i], directions[i])
        return GroupRow(*labels, statuses[i], symptoms[i], case_ids[i], i, flags[i])

    return group_rows(map(row, sorted(range(len(names)), key=names.__getitem__)))


def group_rows(rows: Iterable[GroupRow]) -> list[FindingGroup]:
    """The groups of rows of which those with one `name` follow each other, in planned order, as `group_findings`.

    Rows are not kept, so that a run in which most cases fail need not fit into memory: only the ids of the findings are.
    """
    parts: dict[tuple[_Bug, _Place, int], _Part] = {}
    rungs: defaultdict[_Bug, set[int]] = defaultdict(set)  # on which programs are first wrong
    for _, of_name in groupby(rows, key=attrgetter("name")):
        for findings, passed in _programs(of_name):
            first = min(findings, key=attrgetter("place"))
            if first.place[0] == 0:
                rungs[first.bug].add(first.place[1])
            key = first.bug, first.place, passed
            part = parts.get(key)
            if part is None:
                part = parts[key] = _Part(bug=first.bug, first=first)
            part.add(findings)
    groups: dict[tuple[_Bug, _Place], _Part] = {}
    for (bug, place, passed), part in parts.items():
        if place[0] == 0:
            # A lower rung without a result for this program (not run, not comparable) may be wrong too, so the program joins
            # the cases that are first wrong there.
            place = (0, min(rung for rung in rungs[bug] if rung > passed), "")
        if (bug, place) in groups:
            groups[bug, place].join(part)
        else:
            groups[bug, place] = part
    in_order = sorted(groups.values(), key=lambda part: min(part.positions))
    return sorted((part.group() for part in in_order), key=_order)


def _programs(of_name: Iterable[GroupRow]) -> Iterator[tuple[list[_Finding], int]]:
    """The findings of each bug in the programs of one name, and the highest rung below the first wrong one that agrees; or -1."""
    bugs: dict[_Bug, list[_Finding]] = {}
    passes: list[tuple[str, int]] = []
    for row in of_name:
        if row.is_finding:
            found = _Finding.of(row)
            bugs.setdefault(found.bug, []).append(found)
        elif row.status in _AGREES and (place := _place(row.subject))[0] == 0:
            passes.append((row.suite, place[1]))
    for findings in bugs.values():
        first = min(findings, key=attrgetter("place"))
        passed = -1
        if first.place[0] == 0:
            below = [rung for suite, rung in passes if suite == first.suite and rung < first.place[1]]
            passed = max(below, default=-1)
        yield findings, passed


def _order(group: FindingGroup) -> tuple[int, int]:
    rank = len(Severity) if group.severity is None else group.severity.rank
    return rank, -group.cases


_Place = tuple[int, int, str]
_Bug = tuple[str, str, str, str]  # suite, operator, status and kind, which cases of one bug share


@dataclass(frozen=True, slots=True)
class _Finding:
    position: int
    case_id: str
    suite: str
    subject: str
    place: _Place
    bug: _Bug
    kind: str
    symptom: str

    @classmethod
    def of(cls, row: GroupRow) -> _Finding:
        kind = intern(symptom_of(Verdict(status=Status(row.status), symptom=row.symptom)).kind)
        what = _what(row.group, row.name, row.dtype, row.direction)
        bug = (row.suite, what, row.status, intern(kind[:_KIND_LENGTH].rstrip()))
        if Status(row.status).is_absent:
            bug, kind = ("", "", row.status, ""), ""  # missing rows are one group, whatever their operators
        return cls(row.position, row.case_id, row.suite, row.subject, _place(row.subject), bug, kind, row.symptom)

    @property
    def rank(self) -> tuple[_Place, int]:
        return self.place, self.position


class _Part:
    """Findings of one bug: a group, or a part of one."""

    def __init__(self, *, bug: _Bug, first: _Finding) -> None:
        self.bug = bug
        self.first = first  # on the lowest rung, of these the first one planned
        self.subjects: set[str] = set()
        self.positions = array("q")
        self.case_ids: list[str] = []

    def add(self, findings: Sequence[_Finding]) -> None:
        for one in findings:
            self.subjects.add(one.subject)
            self.positions.append(one.position)
            self.case_ids.append(one.case_id)
        self.first = min(self.first, *findings, key=attrgetter("rank"))

    def join(self, other: _Part) -> None:
        self.subjects |= other.subjects
        self.positions.extend(other.positions)
        self.case_ids += other.case_ids
        self.first = min(self.first, other.first, key=attrgetter("rank"))

    def group(self) -> FindingGroup:
        suite, what, status, _ = self.bug
        order = sorted(range(len(self.positions)), key=self.positions.__getitem__)
        return FindingGroup(
            suite=suite,
            what=what,
            status=status,
            kind=self.first.kind,
            severity=severity_of(status, self.first.kind),
            subjects=tuple(sorted(self.subjects, key=lambda subject: (_place(subject), subject))),
            case_ids=tuple([self.case_ids[i] for i in order]),
            example=self.first.case_id,
            symptom=_short(self.first.symptom),
        )


def _what(group: str, name: str, dtype: str, direction: str) -> str:
    """The operator or model if the program's name is that with a sample; else the program's name.

    "add/float32/backward/sample-3" and "overlap/00180" are samples of "add" and "overlap". "found/alias_set" is a program that
    has nothing in common with other programs of "found".
    """
    if not name.startswith(f"{group}/"):
        return name
    parts = name[len(group) + 1 :].split("/")
    is_sample = any(part in (dtype, direction) for part in parts) or all(map(_NUMBERED.fullmatch, parts))
    return group if is_sample else name


_NUMBERED: Final = re.compile(r"(?:[A-Za-z]+-)?\d+")
# The judge cuts long messages, which include the name of the subject, so the same message may end earlier on another subject.
_KIND_LENGTH: Final = 60


_AGREES: Final = frozenset({Status.PASS.value, Status.XPASS.value})


@cache
def _place(subject: str) -> _Place:
    """Sort key of subjects: the rungs of LADDER, those of exported programs, then others by name."""
    rung, ladder = rung_of(subject), ladder_of(subject)
    if rung is None:
        return (2, 0, subject)
    return (1, rung, ladder) if ladder else (0, rung, "")


_RAISED: Final = re.compile(
    r"(?P<call>(?:call \d+: )?)(?:outcome|exception) is (?:\w+\.)*(?P<type>\w+) in (?P<phase>\w+) \((?P<message>.*)",
    re.DOTALL,
)
_RETURN: Final = ", but should be a return"
_BACKEND: Final = re.compile(r"^backend=\S+ raised: ")
_NAMES_ERROR: Final = re.compile(r"(?:\w+\.)*[A-Z]\w+: ")


def _short(symptom: str) -> str:
    """A symptom without parts that most have: the first call, that eager returns, that a backend raised."""
    symptom = symptom.removeprefix("call 0: ")
    found = _RAISED.match(symptom)
    if found is None or not symptom.endswith((_RETURN, "...")):
        return symptom
    message = found["message"].removesuffix(_RETURN).removesuffix(")")
    message = _BACKEND.sub("", message[1:].removesuffix(message[0]) if message[:1] in ("'", '"') else message)
    if found["phase"] == "call" and _NAMES_ERROR.match(message):
        return found["call"] + message  # without the wrapping exception
    where = "" if found["phase"] == "call" else f" in {found['phase']}"
    return f"{found['call']}{found['type']}{where}: {message}"


_SEVERITIES: Final = {
    Status.FAIL_MUTATION: Severity.MUTATION,
    Status.FAIL_ALIAS: Severity.MUTATION,
    Status.FAIL_STATE: Severity.STATE,
    Status.FAIL_RNG: Severity.STATE,
    Status.CRASH: Severity.CRASH,
    Status.TIMEOUT: Severity.CRASH,
    Status.OOM: Severity.CRASH,
    Status.FAIL_TO_RUN: Severity.REFUSAL,
    Status.FAIL_EXPORT: Severity.REFUSAL,
    Status.MODEL_FAIL_TO_LOAD: Severity.REFUSAL,
    Status.FAIL_METADATA: Severity.METADATA,
    Status.FAIL_STRIDE: Severity.STRIDES,
}


def severity_of(status: str, kind: str) -> Severity | None:
    """Severity of a finding, from its status word and the kind of its symptom; None for a case without a record."""
    if Status(status).is_absent:
        return None
    if kind.endswith("sign of zero"):
        return Severity.SIGN
    if (severity := _SEVERITIES.get(Status(status))) is not None:
        return severity
    if status == Status.FAIL_EXCEPTION.value and not kind.startswith("a return"):
        return Severity.METADATA  # both raise, with different errors
    if kind.startswith("argument"):
        return Severity.MUTATION
    if ".stride()" in kind:
        return Severity.STRIDES
    if re.match(r"[a-z]+\.\w", kind):  # "output.dtype", "grad.requires_grad is False": an attribute
        return Severity.METADATA
    return Severity.GRADIENT if kind.startswith("grad") or status == Status.FAIL_GRAD.value else Severity.VALUE


# ------------------------------------------------------------------------------------------------------------ tables

SHOW_ALL: Final = "`torch-oracle show --all`"
_OTHERS_SHOWN: Final = 3  # number of further subjects named in one line


def groups_table(
    groups: Sequence[FindingGroup], limit: int | None, *, title: str = "new findings", more: str = SHOW_ALL
) -> TextTable:
    """One line per group. `more` is the command that shows the groups left out."""
    shown = groups if limit is None else groups[:limit]
    rows = [
        (
            str(group.cases),
            group.status,
            _others(group.subjects[1:], None if limit is None else _OTHERS_SHOWN),
            group.example,
            shorten(group.symptom),
        )
        for group in shown
    ]
    left = groups[len(shown) :]
    notes = [
        "one line for each operator (or program) and symptom; the example is on the first stage that is wrong "
        "(dynamo comes before aot_eager, aot_eager before inductor)",
        "; ".join(
            f"{status.value}: {_MEANINGS[status]}" for status in _MEANINGS if any(g.status == status for g in shown)
        ),
    ]
    if left:
        frequent, count = Counter(f"{g.status} {g.kind}".strip() for g in left).most_common(1)[0]
        often = f", {count} of them {shorten(frequent, 100)}" if count > 1 else ""
        notes.append(f"and {len(left)} more with {cases_text(sum(g.cases for g in left))}{often}; {more} prints them")
    return TextTable(
        title=f"{title}: {len(groups)} in {cases_text(sum(group.cases for group in groups))}",
        columns=("cases", "status", "also wrong", "example", "symptom"),
        rows=tuple(rows),
        right=frozenset({0}),
        prose=frozenset({4}),
        is_cut=True,
        note="\n".join(filter(None, notes)),
    )


# Explanations of status words that are not clear by themselves.
_MEANINGS: Final = {
    Status.FAIL_ACCURACY: "wrong values",
    Status.FAIL_GRAD: "wrong gradients",
    Status.FAIL_MUTATION: "arguments are not changed as eager changes them",
    Status.FAIL_ALIAS: "results share memory and eager's do not, or the reverse",
    Status.FAIL_STATE: "the state of a module or of the process is not as eager leaves it, or memory of every call is kept",
    Status.FAIL_RNG: "the random generator is not as eager leaves it",
    Status.FAIL_GUARD: "right on the first call, wrong on a later one",
    Status.FAIL_EXCEPTION: "eager raises, the subject returns or raises another error",
    Status.FAIL_TO_RUN: "eager returns, the subject raises",
    Status.FAIL_METADATA: "dtype, shape, requires_grad or another property is not eager's",
    Status.MISSING: "no record, although the run is complete",
}


def _others(subjects: Sequence[str], limit: int | None) -> str:
    shown = list(subjects[:limit])
    more = len(subjects) - len(shown)
    return ", ".join(shown + [f"{more} more"] * bool(more)) or "-"


def cases_text(count: int) -> str:
    return f"{count} case{'s' if count != 1 else ''}"
