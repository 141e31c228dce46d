"""Group new findings, so that the cases of one bug in one operator are one group.

Cases of one group have the same operator (or model, or program), the same status and kind of symptom (oracle.symptom: without
paths, numbers, sizes and dtypes), and the same first wrong rung. If several subjects have the same symptom on a program, they are
in one group, whose first wrong rung is the lowest of them on the ladder.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from sys import intern
from typing import Any, Final, Protocol

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


def columns_of(records: Sequence[Record]) -> dict[str, list[Any]]:
    """What grouping needs of records, as `results.queries.notable_columns`."""
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

    Takes linear time. The table's other rows show on which rungs a program agrees.
    """
    columns = [list(table[name]) for name in ("suite", "group", "name", "subject", "dtype", "direction")]
    columns += [list(table[name]) for name in ("status", "symptom", "case_id", "is_finding")]
    findings: list[_Finding] = []
    passes: list[tuple[str, str, int]] = []
    for position, (*facts, case_id, is_finding) in enumerate(zip(*columns, strict=True)):
        if is_finding:
            findings.append(_Finding.of(position, case_id, *facts))
        elif facts[6] in _AGREES and (place := _place(facts[3]))[0] == 0:
            passes.append((facts[0], facts[2], place[1]))
    wrong = {(row.suite, row.name) for row in findings}
    agreeing: defaultdict[tuple[str, str], list[int]] = defaultdict(list)  # rungs of LADDER on which a program passes
    for suite, name, rung in passes:
        if (suite, name) in wrong:
            agreeing[suite, name].append(rung)

    # Cases are grouped by program and symptom, then by operator and first wrong rung.
    programs: defaultdict[tuple[Any, ...], list[_Finding]] = defaultdict(list)
    for row in findings:
        programs[(*row.bug, row.name)].append(row)
    places: defaultdict[tuple[str, ...], list[tuple[_Place, list[_Finding]]]] = defaultdict(list)
    for of_program in programs.values():
        of_program.sort(key=lambda row: row.place)
        places[of_program[0].bug].append((of_program[0].place, of_program))
    groups: defaultdict[tuple[Any, ...], list[_Finding]] = defaultdict(list)
    for bug, of_bug in places.items():
        rungs = sorted({place[1] for place, _ in of_bug if place[0] == 0})
        for place, of_program in of_bug:
            first = of_program[0]
            if place[0] == 0:
                # A lower rung without a result for this program (not run, not comparable) may be wrong too, so the program
                # joins the cases that are first wrong there.
                passed = max((rung for rung in agreeing[first.suite, first.name] if rung < place[1]), default=-1)
                place = (0, next(rung for rung in rungs if rung > passed), "")
            groups[(*bug, place)].extend(of_program)
    in_order = sorted((sorted(of_group, key=_position) for of_group in groups.values()), key=lambda of: of[0].position)
    return sorted(map(_group, in_order), key=_order)


def _order(group: FindingGroup) -> tuple[int, int]:
    rank = len(Severity) if group.severity is None else group.severity.rank
    return rank, -group.cases


def _position(row: _Finding) -> int:
    return row.position


_Place = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class _Finding:
    position: int
    case_id: str
    suite: str
    name: str
    subject: str
    place: _Place
    bug: tuple[str, str, str, str]  # suite, operator, status and kind, which cases of one bug share
    kind: str
    symptom: str

    @classmethod
    def of(
        cls,
        position: int,
        case_id: str,
        suite: str,
        group: str,
        name: str,
        subject: str,
        dtype: str,
        direction: str,
        status: str,
        symptom: str,
    ) -> _Finding:
        kind = intern(symptom_of(Verdict(status=Status(status), symptom=symptom)).kind)
        what = _what(group, name, dtype, direction)
        bug = (suite, what, status, intern(kind[:_KIND_LENGTH].rstrip()))
        if Status(status).is_absent:
            bug, kind = ("", "", status, ""), ""  # missing rows are one group, whatever their operators
        place = _place(subject)
        return cls(position, case_id, suite, name, subject, place, bug, kind, symptom)


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


def _group(rows: Sequence[_Finding]) -> FindingGroup:
    first = min(rows, key=lambda row: row.place)
    suite, what, status, _ = first.bug
    subjects = sorted({row.subject for row in rows}, key=lambda subject: (_place(subject), subject))
    return FindingGroup(
        suite=suite,
        what=what,
        status=status,
        kind=first.kind,
        severity=severity_of(status, first.kind),
        subjects=tuple(subjects),
        case_ids=tuple(row.case_id for row in rows),
        example=first.case_id,
        symptom=_short(first.symptom),
    )


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
    Status.FAIL_STATE: "the state of a module or of the process is not as eager leaves it",
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
