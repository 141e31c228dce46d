"""Since when a bug exists: one program, written as a script that needs only torch, is run by several versions of torch.

`question_about` writes the script, and shows that it tells the bug on the torch of this process. `rows_of_versions` runs it by
each interpreter, `Findings` says in which version the answer changes. For commits of a backend there is `triage.bisect_commits`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuzz.triage.inputs_in_source import inputs_in_source
from fuzz.triage.repro import aspects, text_script
from fuzz.triage.script_parts import tolerances
from oracle.errors import UsageError
from oracle.localisation.search import Questions
from oracle.program import Program
from oracle.program.build import instantiate
from oracle.program.user_file import TARGET
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict
from triage.environments import NoEnvironmentError, environment_folder, interpreter_with, is_ready
from triage.interpreters import Ran, Result, Script, run_script
from triage.target import Target

# Two versions round differently. The judge's tolerances hold for the program that it has judged; a bug that it sees clearly is
# seen with these, too (fuzz.triage.script_parts._PLAIN_LIMIT is larger).
_WIDE = {"rtol": 0.01, "atol": 0.01}
_CALL = re.compile(r"^call (\d+): ")
NEW = "making an environment in "  # a stage that begins so takes long
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A script that tells whether the bug is there, the folders that it imports from, and what the torch of this process says."""

    script: Script
    folders: tuple[str, ...]
    verdict: Verdict
    here: Ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The answer of one version of torch, or of one commit."""

    name: str  # the version of torch, or the commit
    ran: Ran
    interpreter: str = ""
    title: str = ""  # the first line of a commit's message

    def to_json(self) -> dict[str, Any]:
        """The row as JSON; seconds are wall time."""
        found = {"name": self.name, "title": self.title, "torch": self.ran.torch, "python": self.ran.python}
        found |= {"interpreter": self.interpreter, "result": self.ran.result.value}
        return {**found, "seconds": round(self.ran.seconds, 2), "what": self.ran.what}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change of the answer: the last row with the old answer, the first with the new one, rows between without an answer."""

    before: Row
    after: Row
    between: tuple[Row, ...] = ()

    @property
    def text(self) -> str:
        """The change in words: "first bad: 2.12.0 (good: 2.11.0)"."""
        is_bad = self.after.ran.result is Result.BUG
        skipped = f"; no answer: {', '.join(row.name for row in self.between)}" if self.between else ""
        first, last = ("first bad", "good") if is_bad else ("first fixed", "bad")
        return f"{first}: {self.after.name} ({last}: {self.before.name}{skipped})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Rows from the oldest version to the newest one."""

    rows: tuple[Row, ...]

    @property
    def answers(self) -> list[Row]:
        """The rows that say whether the bug is there."""
        return [row for row in self.rows if row.ran.result.is_answer]

    @property
    def changes(self) -> list[Change]:
        """Every place at which the answer changes."""
        found = []
        for before, after in zip(self.answers, self.answers[1:], strict=False):
            if before.ran.result is not after.ran.result:
                between = self.rows[self.rows.index(before) + 1 : self.rows.index(after)]
                found.append(Change(before=before, after=after, between=between))
        return found

    @property
    def conclusion(self) -> str:
        """The answer in one line."""
        if not self.answers:
            return "no answer: none of them could run the program"
        if self.changes:
            return "; ".join(change.text for change in self.changes)
        is_bug = self.answers[0].ran.result is Result.BUG
        if len(self.answers) == 1:
            return f"the bug is {'' if is_bug else 'not '}in {self.answers[0].name}"
        them = "them" if self.answers == [*self.rows] else "those that could run it"
        return f"the bug is in {'all' if is_bug else 'none'} of {them}"

    @property
    def exit_code(self) -> int:
        """1 if the newest answer is the bug, 0 if it is not; 2 without an answer."""
        return int(self.answers[-1].ran.result is Result.BUG) if self.answers else 2


# ---------------------------------------------------------------------------------------------------------------- versions


def rows_of_versions(
    question: Question,
    *,
    versions: Sequence[str] = (),
    pythons: Sequence[str] = (),
    pip: str = "",
    timeout_s: float,
    runs: int = 1,
    progress: Progress = lambda stage: None,
) -> Findings:
    """A row for each version of torch, in an environment that is made for it, and for each interpreter, the oldest torch first.

    The torch of this process answers for its own version, unless there are words for pip.
    """

    def ran_by(python: str) -> Ran:
        progress(python)
        return run_script(python, question.script, folders=question.folders, timeout_s=timeout_s, runs=runs)

    rows = []
    for version in versions:
        if version == question.here.torch.partition("+")[0] and not pip:
            rows.append(Row(name=version, interpreter=sys.executable, ran=question.here))
            continue
        if not is_ready(version, pip):
            progress(f"{NEW}{environment_folder(version, pip)}, once: this takes minutes")
        try:
            python = str(interpreter_with(version, pip=pip))
        except NoEnvironmentError as error:
            rows.append(Row(name=version, ran=Ran(result=Result.CANNOT_RUN, what=f"no environment: {error}")))
            continue
        rows.append(Row(name=version, interpreter=python, ran=ran_by(python)))
    rows += [Row(name="", interpreter=python, ran=ran_by(python)) for python in pythons]
    ordered = sorted(rows, key=lambda row: (_order(row.ran.torch or row.name), _order(row.ran.python)))
    return Findings(rows=tuple(_named(ordered)))


def _order(version: str) -> tuple[Any, ...]:
    """A key that sorts versions: a nightly build or a candidate is before its release; no version is after all."""
    found = re.match(r"^(\d+(?:\.\d+)*)([^+]*)", version)
    if found is None:
        return (1,)
    release = [int(part) for part in found[1].split(".")]
    return (0, *release, *[0] * (4 - len(release)), not found[2], [int(part) for part in re.findall(r"\d+", found[2])])


def _named(rows: Sequence[Row]) -> list[Row]:
    """The rows with the shortest names by which they differ."""

    def names(row: Row) -> list[str]:
        torch = row.ran.torch or row.name
        python = f"{torch} on Python {row.ran.python}"
        return [torch.partition("+")[0], torch, python, row.interpreter] if torch else [row.interpreter]

    found = []
    for row in rows:
        others = {name for other in rows if other is not row for name in names(other)}
        found.append(replace(row, name=next((name for name in names(row) if name not in others), row.interpreter)))
    return found


# ---------------------------------------------------------------------------------------------------------------- question


def question_about(target: Target, *, timeout_s: float, runs: int = 1, python: str = sys.executable) -> Question:
    """The script about a target, tried with `python`, which should have the torch of this process.

    Raises UsageError if the program or the subject cannot be written as a script, or if the script does not agree with the judge.
    """
    questions = Questions.about(lambda: instantiate(target.program))
    verdict = questions.verdict(target.subject)
    for _ in range(runs - 1):
        if verdict.status is not Status.PASS:
            break
        verdict = questions.verdict(target.subject)
    if not verdict.status.is_finding and verdict.status not in (Status.PASS, Status.PASS_DUE_TO_SKIP):
        raise UsageError(
            seen=f"{target.name}: {verdict.status.value}: {verdict.symptom}",
            expected="a program that eager runs, twice with the same results", do="correct the program or its inputs",
        )  # fmt: skip
    folders = folders_of(target)
    tried: list[Ran] = []
    for script in _scripts(target.program, target.subject, verdict):
        ran = run_script(python, script, folders=folders, timeout_s=timeout_s, runs=runs)
        if ran.result is (Result.BUG if verdict.status.is_finding else Result.GONE):
            return Question(
                script=replace(script, eager_raises=len(ran.eager_raises)), folders=folders, verdict=verdict, here=ran
            )
        tried.append(ran)
    seen = verdict.symptom or verdict.status.value
    raise UsageError(
        seen=f"{target.name} on {target.subject.name}: the judge says {verdict.status.value} ({seen}), and a script that needs "
        f"only torch says: {tried[0].result.value} {tried[0].what}".rstrip(),
        expected="a difference that such a script can tell",
        do="look at it with `torch-oracle localise`; with --runs N a difference by chance is tried several times",
    )


def _scripts(program: Program, subject: SubjectSpec, verdict: Verdict) -> list[Script]:
    """The scripts to try. Only the calls up to the wrong one are made."""
    found = _CALL.match(verdict.symptom)
    wrong = verdict.call if verdict.call is not None else int(found[1]) if found else None
    calls = program.calls if wrong is None else program.calls[: wrong + 1]
    calls = calls if verdict.status.is_finding else tuple(call for call in calls if not call.outside)
    written = inputs_in_source(replace(program, calls=calls))
    module = subject.path.partition(":")[0] if subject.kind == "backend" else ""
    own = tolerances(verdict)
    choices = [own] if own else [_WIDE, {}] if verdict.status.is_finding else [_WIDE]
    texts = [text_script(written, subject, verdict, limits=limits) for limits in choices]
    every = len(calls)  # eager may refuse each of them: here nothing else is known about it
    return [
        Script(text=text, asked=aspects(verdict.status), module=module, env=subject.env, eager_raises=every)
        for text in texts
    ]


def folders_of(target: Target) -> tuple[str, ...]:
    """Folders of the user's own code, which other interpreters have not installed."""
    found = []
    if (named := TARGET.match(target.words[0])) is not None:
        found.append(str(Path(named["file"]).resolve().parent))
    if target.subject.path and (folder := folder_of_module(target.subject.path.partition(":")[0])):
        found.append(folder)
    return tuple(dict.fromkeys(found))


def folder_of_module(name: str) -> str:
    """The folder from which this process has imported a module's package; "" if it is installed among other packages."""
    package = sys.modules.get(name.partition(".")[0])
    places = [*getattr(package, "__path__", [])] or [getattr(package, "__file__", None) or ""]
    folder = Path(places[0]).resolve().parent if places[0] else None
    return "" if folder is None or {"site-packages", "dist-packages"} & set(folder.parts) else str(folder)
