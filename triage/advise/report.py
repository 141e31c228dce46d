"""The advice as text and as JSON: a line for each aspect, a table of old and new, and what is behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from results.render import Part, TextTable, shorten
from triage.advise.asking import Side
from triage.advise.aspects import TIMES, Aspect, Change, ending_of, spread
from triage.advise.bugs import Reason, Touched
from triage.advise.judged import Comparison, Judged

_SHOWN = 5  # known bugs; the rest is counted
_LONGEST = 300  # characters of a detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Everything that was found about one program and two versions of torch."""

    target: str
    subject: str
    names: tuple[str, ...]  # of the versions, the old one first
    sides: tuple[Side, Side]
    judged: Judged
    aspects: tuple[Aspect, ...]
    bugs: tuple[Touched, ...]
    knows_operators: bool

    @property
    def exit_code(self) -> int:
        """1 if something got worse, else 0. Known bugs do not count: they are measured on other programs."""
        return int(any(aspect.change is Change.WORSE for aspect in self.aspects))

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "subject": self.subject,
            "versions": [
                {"name": name, "torch": side.first.torch, "python": side.first.python, "interpreter": side.python}
                for name, side in zip(self.names, self.sides, strict=True)
            ],
            "aspects": [aspect.to_json() for aspect in self.aspects],
            "comparisons": [
                {"what": name, "text": one.text, "verdict": one.verdict.to_json() if one.verdict else None}
                for name, one in self.judged.rows
            ],
            "captures": [side.first.capture.to_json() for side in self.sides],
            "seconds": {name: [list(side.times(name)) for side in self.sides] for name in TIMES},
            "inputs that differ": list(self.judged.inputs),
            "known bugs": [bug.to_json() for bug in self.bugs],
            "exit code": self.exit_code,
        }

    def parts(self) -> list[Part]:
        """The text: aspects, the table of old and new, details, known bugs."""
        old, new = self.names
        rows = [(aspect.name, aspect.change.value, aspect.text) for aspect in self.aspects]
        rows.append(("known bugs", *self._bugs_line()))
        title = f"{self.target} on {self.subject}: from torch {old} to {new}"
        parts: list[Part] = [
            TextTable(title=title, columns=("aspect", "change", "what"), rows=tuple(rows), prose=frozenset([2]))
        ]
        parts.append(self._table())
        parts += [shorten(detail, _LONGEST) for aspect in self.aspects for detail in aspect.details]
        return parts + self._bugs_parts()

    def _table(self) -> TextTable:
        old, new = (side.first for side in self.sides)
        rows = [
            ("eager ends", *(_ends(ending_of(answer.eager, answer.death)) for answer in (old, new))),
            ("compiled ends", *(_ends(ending_of(answer.compiled, answer.death)) for answer in (old, new))),
            ("compiled against eager", *map(_in_short, (self.judged.compiled_old, self.judged.compiled_new))),
            ("graphs", _number(old.capture.graphs), _number(new.capture.graphs)),
            ("graph breaks", _length(old.capture.breaks), _length(new.capture.breaks)),
            ("recompiles", _length(old.capture.recompiles), _length(new.capture.recompiles)),
        ]
        rows += [(what, *(spread(side.times(name)) for side in self.sides)) for name, what in TIMES.items()]
        rounds = len(self.sides[0].answers)
        note = f"times: median and spread of {rounds} {'process' if rounds == 1 else 'processes'} of each version"
        return TextTable(
            title="old and new", columns=("", *self.names), rows=tuple(rows), prose=frozenset([1, 2]), note=note
        )

    def _bugs_line(self) -> tuple[str, str]:
        if not self.bugs and not self.knows_operators:
            return Change.UNKNOWN.value, "the program could not be captured here"
        if not self.bugs:
            return "none", "no entry of the ledger has its operators"
        sure = sum(bug.reason is not Reason.OPERATORS for bug in self.bugs)
        return "told", f"{sure} by more than operators, {len(self.bugs) - sure} by operators alone"

    def _bugs_parts(self) -> list[Part]:
        if not self.bugs:
            return []
        shown = self.bugs[:_SHOWN]
        rows = [
            (bug.issue.id, bug.issue.severity.value, bug.standing, bug.why, bug.issue.title, bug.issue.link or "-")
            for bug in shown
        ]
        left = len(self.bugs) - len(shown)
        notes = [f"... and {left} more with such operators (--json lists all)"] if left else []
        if any(bug.reason is Reason.OPERATORS for bug in shown):
            notes.append("Where only operators are named, only these were compared: the program need not show the bug.")
        notes.append("To try an entry's own program: torch-oracle bisect issue:ID --torch VERSIONS")
        columns = ("known bug", "severity", "versions", "why", "title", "link")
        table = TextTable(
            title="known bugs", columns=columns, rows=tuple(rows), prose=frozenset([3, 4]), note="\n".join(notes)
        )  # fmt: skip
        return [table]


def _ends(ending: str) -> str:
    return shorten(ending, 80) if ending else "returns"


def _in_short(one: Comparison) -> str:
    return "differs" if one.is_other else one.text.partition(" (")[0].partition(":")[0]


def _number(value: int | None) -> str:
    return "not told" if value is None else str(value)


def _length(values: tuple[Any, ...] | None) -> str:
    return _number(None if values is None else len(values))
