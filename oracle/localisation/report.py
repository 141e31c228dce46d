"""The result of a localisation, as data and as text."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from oracle.localisation.culprit import IN_EAGER, Culprit
from oracle.localisation.parts import OPERATOR_KINDS
from oracle.localisation.steps.passes import Step
from oracle.localisation.values.first_wrong import WrongValue
from oracle.verdict import Verdict, notes_on

_LIST = 3  # a longer list of parts is not written out


@dataclass(frozen=True, slots=True, kw_only=True)
class RungRow:
    """The verdict on one rung of the ladder, or on a stage of refimpl beside it."""

    name: str
    verdict: Verdict
    is_wrong: bool  # shows the symptom of the subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Localisation:
    """The place where a program goes wrong on a subject."""

    program: str
    subject: str
    verdict: Verdict
    shown: int  # runs that showed a difference, of `runs`
    runs: int
    seconds: float
    rungs: tuple[RungRow, ...] = ()
    first_wrong: str = ""
    shown_by: str = ""  # the rung on which the culprit was searched, if that is a higher one; "" if it is `first_wrong`
    second_opinion: str = ""
    step: Step | None = None  # the first wrong one of torch's compiler; None: not found, or another compiler
    value: WrongValue | None = None  # the first wrong one; None: not found
    culprit: Culprit = Culprit()
    unanswered: tuple[str, ...] = ()  # questions whose process died or took too long, and how

    @property
    def operator(self) -> str:
        """The operator to name in a title: of the first wrong value, else of the only part to blame; "" if neither is known."""
        if self.value is not None:
            return self.value.operator
        parts = [part for part in self.culprit.parts if part.kind in ("call", *OPERATOR_KINDS)]
        return parts[0].name.removeprefix("aten.").partition(".")[0] if len(parts) == 1 else ""

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["verdict"] = self.verdict.to_json()
        if self.value is not None:
            data["value"]["verdict"] = self.value.verdict.to_json()
        data["rungs"] = [{**asdict(row), "verdict": row.verdict.to_json()} for row in self.rungs]
        return data

    def text(self, *, check: str = "") -> str:
        """The report. `check` is the command that judges the program; each row shows the options that repeat it."""
        times = f"{self.shown} of {self.runs} runs"
        head = f"{self.program or 'the program'} on {self.subject}: {self.verdict.status.value}, {times}"
        if not self.shown:
            reasons = [*filter(None, [self.verdict.symptom]), *notes_on(self.verdict)]
            return f"{head} differ from eager\n" + "".join(f"  {reason}\n" for reason in reasons)
        parts = [f"{head}\n  {self.verdict.symptom}\n", self._conclusion(), *self._tables()]
        if check:
            parts.append(f"To repeat a row: {check} OPTIONS\n")
        return "\n".join(parts)

    def _tables(self) -> list[str]:
        rungs = [
            (
                row.name,
                row.verdict.status.value + ("  <- first wrong" if row.name == self.first_wrong else ""),
                f"--subject {shlex.quote(row.name)}",
            )
            for row in self.rungs
        ]
        tables = [table(("rung", "verdict", "options"), rungs)]
        trials = [
            (
                _listed(trial.parts),
                trial.outcome,
                _repeat(self.shown_by or self.first_wrong, trial.parts),
            )
            for trial in self.culprit.trials
        ]
        return [*tables, table(("without", "outcome", "options"), trials)] if trials else tables

    def _conclusion(self) -> str:
        culprit = self.culprit.text
        if not culprit and not self.culprit.is_finished:
            culprit = "not found in the time given"
        elif not culprit and self.culprit.trials:  # without trials there was nothing to leave out
            culprit = "not found"
        rows = [
            ("first wrong rung", self.first_wrong),
            ("same part", f"{self.shown_by} differs in another way" if self.shown_by else ""),
            ("refimpl", self.second_opinion.removeprefix("refimpl ")),
            ("first wrong step", _step_text(self.step)),
            ("first wrong value", _value_text(self.value)),
            ("culprit", f"{culprit} ({self.culprit.detail})" if self.culprit.detail else culprit),
            ("not answered", "; ".join(self.unanswered)),
        ]
        lines = [f"{name + ':':19} {value}" for name, value in rows if value]
        return "\n".join([*lines, f"{'time:':19} {self.seconds:.0f} s"]) + "\n"


def _step_text(step: Step | None) -> str:
    return "" if step is None else f"{step.text}\n{'':20}{step.difference}"


def _value_text(value: WrongValue | None) -> str:
    if value is None:
        return ""
    line = f"\n{'':20}{value.line}" if value.line else ""
    return f"{value.describe()}{line}\n{'':20}{value.symptom}"


def _listed(parts: Sequence[str]) -> str:
    if len(parts) <= _LIST:
        return ", ".join(parts) or "nothing left out"
    return f"{len(parts)} parts: {parts[0]} to {parts[-1]}"


def _repeat(subject: str, parts: Sequence[str]) -> str:
    """The options of `torch-oracle check` that repeat a trial; "" for long lists, which the JSON has, and for given options."""
    if len(parts) > _LIST or any(part == IN_EAGER or part.startswith("option: ") for part in parts):
        return ""
    return " ".join([f"--subject {shlex.quote(subject)}", *(f"--without {shlex.quote(part)}" for part in parts)])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned columns under a header; columns without text are left out."""
    kept = [at for at in range(len(header)) if any(row[at] for row in rows)]
    cells = [[row[at] for at in kept] for row in (header, *rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(kept))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]]) + "\n"
