"""The commands that look at a wrong program: `torch-oracle check | localise`.

Exit codes: 0 the program agrees with eager, 1 it differs, 2 bad input, or nothing was judged: eager itself fails, or gives other
results when it runs twice, or there was nothing to compare (`pass_due_to_skip`).
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace

import typer
from rich.console import Console

from oracle.errors import UsageError
from oracle.limits import check_positive
from oracle.localisation.parts import EXPORT_KINDS, FRONT_KINDS, Part, parse_part
from oracle.localisation.search import Questions, localise_program
from oracle.localisation.steps.passes import BACKENDS
from oracle.program.build import instantiate
from oracle.subjects.registry import check_requirements, resolve, split_names
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict, describe
from triage.quiet import without_prints
from triage.target import FileOptions, find_target


def check(
    *,
    target: str,
    inputs: str,
    subject: str,
    without: list[str],
    calls: int,
    seed: int,
    dynamic: bool | None,
    timeout: float,
    allow_effects: bool,
    db: str,
    as_json: bool,
) -> None:
    """Run one program on subjects, and say whether it agrees with eager."""
    warnings.simplefilter("ignore")  # of torch and its compilers, about themselves
    parts = [parse_part(text) for text in without]
    options = FileOptions(inputs=inputs, calls=calls, seed=seed, dynamic=dynamic, allow_effects=allow_effects)
    first, *others = split_names(subject) or [""]
    check_positive({"--timeout": timeout})
    with without_prints(), Console(stderr=True).status("check: one run in eager") as status:
        asked = find_target(target, subject=first, db=db, options=options)
        subjects = [asked.subject, *(resolve(name) for name in others)]
        for spec in subjects:
            check_requirements(spec)
            _check_parts(spec, parts)
        status.update("check: two runs in eager")
        questions = replace(Questions.about(lambda: instantiate(asked.program)), timeout_s=timeout)
        judged: dict[str, tuple[Verdict, list[str]]] = {}
        for number, spec in enumerate(subjects, start=1):
            status.update(
                f"check: running {spec.name}, and eager in float64 and under noise ({number} of {len(subjects)})"
            )
            judged[spec.name] = questions.verdict_without(spec, parts)
    verdicts = {name: verdict for name, (verdict, _) in judged.items()}
    for name, (verdict, absent) in judged.items():
        if verdict.status is Status.TIMEOUT:
            sys.stderr.write(f"{name} was given {timeout:g} s of CPU time for the program: --timeout gives it more\n")
        if absent:
            sys.stderr.write(f"{name} does not use {', '.join(map(repr, absent))} for this program\n")
    if as_json:
        sys.stdout.write(json.dumps({name: verdict.to_json() for name, verdict in verdicts.items()}, indent=2) + "\n")
    else:
        for name, verdict in verdicts.items():
            sys.stdout.write(describe(name, verdict) + "\n")
        wrong = next((name for name, verdict in verdicts.items() if verdict.status.is_finding), None)
        if wrong is not None and not parts:
            sys.stderr.write(
                asked.next_step("localise", wrong, what="finds the stage, the part and the line that go wrong")
            )
    raise typer.Exit(exit_code_of(verdicts.values()))


def exit_code_of(verdicts: Iterable[Verdict]) -> int:
    """1 if a verdict is a difference, 0 if all say that the program agrees; 2 if one says neither, which stderr tells."""
    judged = list(verdicts)
    if any(verdict.status.is_finding for verdict in judged):
        return 1
    silent = next((verdict for verdict in judged if verdict.status is not Status.PASS), None)
    if silent is None:
        return 0
    reason = ": ".join(filter(None, (silent.status.value, silent.symptom)))
    sys.stderr.write(f"nothing was judged: {reason} (exit code 2)\n")
    return 2


def _check_parts(spec: SubjectSpec, parts: Sequence[Part]) -> None:
    """Raises UsageError for a part that the subject does not have."""
    for part in parts:
        if part.kind in EXPORT_KINDS:
            has, expected = spec.kind == "export", "export"
        elif part.kind in FRONT_KINDS:
            has, expected = spec.kind == "torch_compile", "torch.compile"
        else:
            has = spec.options.get("backend") in BACKENDS
            expected = f"torch.compile with the backend {' or '.join(BACKENDS)}"
        if not has:
            raise UsageError(
                seen=f"--without {str(part)!r} for subject {spec.name!r}",
                expected=f"{expected}, whose parts can be left out",
                do="name such a subject, or leave --without out",
            )


def localise(
    *,
    target: str,
    inputs: str,
    subject: str,
    calls: int,
    seed: int,
    dynamic: bool | None,
    allow_effects: bool,
    db: str,
    as_json: bool,
) -> None:
    """Find where a program goes wrong: the first wrong stage, the part of it, the first wrong value."""
    warnings.simplefilter("ignore")  # of torch and its compilers, about themselves
    options = FileOptions(inputs=inputs, calls=calls, seed=seed, dynamic=dynamic, allow_effects=allow_effects)
    with without_prints(), Console(stderr=True).status("") as status:
        status.update("localise: one run in eager")
        asked = find_target(target, subject=subject, db=db, options=options)
        found = localise_program(
            lambda: instantiate(asked.program),
            asked.subject,
            name=asked.name,
            progress=lambda stage: status.update(f"localise: {stage}"),
        )
    if as_json:
        sys.stdout.write(json.dumps(found.to_json(), indent=2) + "\n")
    else:
        sys.stdout.write(found.text(check=asked.command("check")))
        if found.shown:
            what = "writes the smallest script that shows it, and the text of an issue"
            sys.stderr.write(asked.next_step("repro", asked.subject.name, what=what))
    raise typer.Exit(1 if found.shown else exit_code_of([found.verdict]))
