"""The commands that make something of a wrong program: `torch-oracle minimise | repro`.

`minimise` prints the smallest program that still shows the difference. `repro` writes a script that needs only torch, and the
text of an issue. Exit codes: 0 the program agrees with eager, 1 it differs, 2 bad input, or nothing was judged.
"""

from __future__ import annotations

import json
import re
import shlex
import stat
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from fuzz.draw.inputs.source import shown_inputs
from fuzz.program.render import render_shown
from fuzz.program.structure import FuzzProgram
from fuzz.reduce.interesting import interestingness_script
from fuzz.reduce.minimise import Minimised
from fuzz.reduce.minimise import minimise as minimise_program
from fuzz.triage.bucket import bucket_of
from fuzz.triage.issue_text import environment_text, issue_text, title_of
from fuzz.triage.ledger import known_issue
from fuzz.triage.script_runs import exit_code
from fuzz.triage.short_script import shortest_script
from oracle.errors import UsageError
from oracle.known.ledger import KnownIssue, load_ledger
from oracle.localisation.parts import in_torch
from oracle.localisation.report import Localisation
from oracle.localisation.search import localise_program
from oracle.program import Program
from oracle.program.build import instantiate
from oracle.subjects.registry import resolve
from oracle.subjects.spec import SubjectSpec
from oracle.symptom import symptom_of
from oracle.verdict import Verdict, notes_on
from triage.looking import exit_code_of
from triage.quiet import without_prints
from triage.target import FileOptions, Target, find_target

_BUDGET_S = 60.0
_SCRIPT_RUNS = 3


def minimise(
    *,
    target: str,
    inputs: str,
    subject: str,
    budget: float,
    calls: int,
    seed: int,
    dynamic: bool | None,
    allow_effects: bool,
    db: str,
    interestingness: Path | None,
    as_json: bool,
) -> None:
    """Find the smallest program that shows the same difference."""
    options = FileOptions(inputs=inputs, calls=calls, seed=seed, dynamic=dynamic, allow_effects=allow_effects)
    with without_prints():
        asked = find_target(target, subject=subject, db=db, options=options)
    found = minimised(asked, budget)
    if found.reproduced and interestingness is not None:
        interestingness.write_text(
            interestingness_script(asked.program, asked.subject, found.symptom), encoding="utf-8"
        )
        interestingness.chmod(interestingness.stat().st_mode | stat.S_IXUSR)
        sys.stderr.write(f"{interestingness}: exits with 0 while target.py in its folder shows the difference\n")
    if as_json:
        sys.stdout.write(json.dumps(_json(found), indent=2) + "\n")
    else:
        sys.stdout.write(_text(asked, found))
    raise typer.Exit(1 if found.reproduced else exit_code_of([found.verdict]))


def repro(
    *,
    target: str,
    inputs: str,
    subject: str,
    output: Path | None,
    budget: float,
    calls: int,
    seed: int,
    dynamic: bool | None,
    allow_effects: bool,
    db: str,
    localises: bool,
) -> None:
    """Write the smallest script that needs only torch, and the text of an issue."""
    options = FileOptions(inputs=inputs, calls=calls, seed=seed, dynamic=dynamic, allow_effects=allow_effects)
    with without_prints():
        asked = find_target(target, subject=subject, db=db, options=options)
    folder = _checked(output or Path("repro-" + re.sub(r"\W+", "-", asked.name).strip("-")))
    found = minimised(asked, budget)
    if not found.reproduced:
        sys.stdout.write(_text(asked, found))
        raise typer.Exit(exit_code_of([found.verdict]))
    where = localised(asked, found.source) if localises else None
    paths = _written(folder, _report(asked, found, where))
    for path in paths:
        sys.stdout.write(f"{path}\n")
    if note := _how_to_run(paths[0], asked.subject):
        sys.stderr.write(note)
    sys.stderr.write(time_note(found, budget))
    keeps = "keeps it in a ledger of yours, so that sweeps and CI know it"
    sys.stderr.write(asked.next_step("promote", asked.subject.name, "--to", "known.toml", what=keeps))
    raise typer.Exit(1)


def time_note(found: Minimised, budget_s: float) -> str:
    """What to tell if the search for a smaller program ended because its time was over; else ""."""
    if found.is_finished or not found.reproduced or (not found.how and found.reasons):
        return ""
    size = f"{found.after.statements} statement{'s' if found.after.statements != 1 else ''}"
    return (
        f"the program may get smaller than {size}: after {found.trials} trials the time was over; "
        f"--budget {max(60, round(5 * budget_s)):d} gives more\n"
    )


def _how_to_run(path: Path, subject: SubjectSpec) -> str:
    """A command that runs the script, if it imports a module of this directory: Python looks in the script's own."""
    module = subject.path.partition(":")[0].partition(".")[0]
    here = Path.cwd()
    if path.name != _SCRIPT or not module or not ((here / module).is_dir() or (here / f"{module}.py").is_file()):
        return ""
    return f"run it with: PYTHONPATH={shlex.quote(str(here))} python {shlex.quote(str(path))}\n"


# --------------------------------------------------------------------------------------------------------------- search


def minimised(asked: Target, budget_s: float) -> Minimised:
    """The smallest program found that shows what the target shows."""
    warnings.simplefilter("ignore")  # of torch and its compilers, about themselves
    with without_prints(), Console(stderr=True).status("") as status:
        return minimise_program(
            asked.program, asked.subject, budget_s=budget_s, progress=lambda stage: status.update(f"minimise: {stage}")
        )


def localised(asked: Target, program: Program) -> Localisation:
    """The place where the target's program, or a smaller one, goes wrong on the target's subject."""
    with without_prints(), Console(stderr=True).status("") as status:
        return localise_program(
            lambda: instantiate(program), asked.subject, name=asked.name,
            progress=lambda stage: status.update(f"localise: {stage}"),
        )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """The text that `repro` writes."""

    script: str
    issue: str


def _report(asked: Target, found: Minimised, where: Localisation | None) -> _Report:
    rung, verdict = found.rung, found.verdict
    if where is not None and where.first_wrong and where.first_wrong != rung.name:
        rung = resolve(where.first_wrong)
    row = next((row for row in where.rungs if row.name == rung.name), None) if where is not None else None
    verdict = row.verdict if row is not None else verdict
    program: FuzzProgram | Program = found.program or found.source
    try:
        script = shortest_script(program, rung, verdict, runs=exit_code)
    except UsageError:  # a subject that torch does not have: the program alone is shown
        script = ""
    runs = [exit_code(script) for _ in range(_SCRIPT_RUNS)] if script else []
    issue = issue_text(
        title="" if where is None else title_of(verdict, rung, program, operator=where.operator),
        script=script,
        verdict=verdict,
        subject=rung,
        program=program,
        located=[] if where is None else _located(where),
        backends=_backends(where),
        ablation=_ablation(where),
        reliability=(sum(code != 0 for code in runs), len(runs)) if runs else (found.shown, found.runs),
        alike=alike_issues(asked, found, rung, verdict, where),
        environment=environment_text(),
    )
    return _Report(script=script, issue=issue)


def _backends(where: Localisation | None) -> list[tuple[str, str]]:
    """The rungs of torch's ladder, with what the program gives there. A maintainer of torch does not know refimpl's."""
    rungs = [] if where is None else [row for row in where.rungs if not row.name.startswith("refimpl.")]
    return [(row.name, "wrong" if row.is_wrong else row.verdict.status.value) for row in rungs]


def _located(where: Localisation) -> list[tuple[str, str]]:
    """The step of the compiler, the value of the program and the part to blame, as far as each was found."""
    value, place = where.value, ""
    if value is not None:
        what = value.operator if value.direction == "forward" else f"gradient of {value.value} by {value.operator}"
        place = f"{what}, in {value.line}" if value.line else what
    rows = [
        ("step of the compiler", "" if where.step is None else where.step.text),
        ("first wrong value", place),
        ("part to blame", where.culprit.text),
    ]
    return [(name, place) for name, place in rows if place]


def _ablation(where: Localisation | None) -> list[tuple[str, str]]:
    """Single parts that were left out, with the outcome. Lists of many parts say little to a reader."""
    trials = [] if where is None else where.culprit.trials
    return [(in_torch(trial.parts[0]), trial.outcome) for trial in trials if len(trial.parts) == 1]


def alike_issues(
    asked: Target, found: Minimised, rung: SubjectSpec, verdict: Verdict, where: Localisation | None
) -> Sequence[KnownIssue]:
    """The ledger's entry that explains the minimised program, if there is one."""
    if found.program is None:
        return []
    reduced = {
        "program": found.program.to_json(), "source": found.source.source, "rung": rung.name,
        "symptom": symptom_of(verdict).to_json(), "culprit": where.culprit.text if where is not None else "",
    }  # fmt: skip
    bucket = bucket_of(reduced, subject=asked.subject.name)
    issue = known_issue(bucket, load_ledger().issues)
    return [] if issue is None else [issue]


_SCRIPT, _ISSUE = "repro.py", "issue.md"


def _checked(folder: Path) -> Path:
    """The folder, if the files can be written there. Raises UsageError if it holds files of another kind."""
    others = [path.name for path in folder.iterdir() if path.name not in (_SCRIPT, _ISSUE)] if folder.is_dir() else []
    if others or (folder.exists() and not folder.is_dir()):
        raise UsageError(
            seen=f"{folder}, which holds {', '.join(sorted(others)[:3])}" if others else f"the file {folder}",
            expected="a new folder, or that of an earlier repro",
            do="name another one with --output",
        )
    return folder


def _written(folder: Path, report: _Report) -> list[Path]:
    """Writes the files; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in ((_SCRIPT, report.script), (_ISSUE, report.issue)):
        path = folder / name
        path.unlink(missing_ok=True)
        if text:
            path.write_text(text, encoding="utf-8")
            paths.append(path)
    return paths


def _text(asked: Target, found: Minimised) -> str:
    if not found.reproduced:
        head = f"{asked.name} on {asked.subject.name}: {found.verdict.status.value}"
        reasons = [*filter(None, [found.verdict.symptom]), *notes_on(found.verdict)]
        return f"{head}, {found.shown} of {found.runs} runs differ from eager\n" + "".join(f"  {r}\n" for r in reasons)
    before, after = found.before, found.after
    state = "" if found.is_finished else "; the time given was over"
    lines = [
        f"{asked.name} on {asked.subject.name}: {found.verdict.status.value}",
        f"  {found.verdict.symptom}",
        f"{before.statements} statements to {after.statements}, {after.elements} elements of inputs, "
        f"{found.trials} trials, {found.seconds:.0f} s{state}",
    ]
    if found.program is None and found.how:
        return "\n".join(lines) + f"\n\n{found.source.source.strip()}\n"
    if found.program is None:
        reasons = found.reasons or ("the time was over; --budget gives more",)
        lines += ["no smaller program was found:", *(f"  {reason}" for reason in reasons)]
        return "\n".join(lines) + "\n"
    calls = ["\n".join(call) for call in shown_inputs(found.program)]
    return "\n".join(lines) + f"\n\n{render_shown(found.program).strip()}\n\n" + "\n\n".join(calls) + "\n"


def _json(found: Minimised) -> dict[str, object]:
    return {
        "reproduced": found.reproduced,
        "shown": found.shown,
        "runs": found.runs,
        "source": found.source.source,
        "program": found.source.to_json(),
        "rung": found.rung.name,
        "verdict": found.verdict.to_json(),
        "symptom": found.symptom.to_json(),
        "statements": [found.before.statements, found.after.statements],
        "trials": found.trials,
        "seconds": found.seconds,
        "finished": found.is_finished,
        "reasons": list(found.reasons),
    }
