"""The command `torch-oracle advise`: what changes for a program between two versions of torch.

Exit codes: 0 nothing got worse, 1 something did, 2 bad input.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
import typer
from rich.console import Console

from fuzz.triage.bucket import spelled
from oracle.case import EagerState
from oracle.errors import UsageError
from oracle.explaining import captured_by_dynamo
from oracle.hygiene import snapshot
from oracle.in_fork import settle_in_fork
from oracle.isolate.forked import ChildDiedError, ChildLateError, in_child
from oracle.known.ledger import load_ledger
from oracle.observe.outcome import Raised
from oracle.program import Program
from oracle.program.build import instantiate
from results.render import show
from triage.advise.asking import Request, ask_both, check_subject, names_of
from triage.advise.aspects import aspects_of, is_time_called
from triage.advise.bugs import touched_bugs
from triage.advise.judged import judge_both
from triage.advise.report import Advice
from triage.bisect import folders_of
from triage.environments import NoEnvironmentError, interpreter_with, is_version
from triage.interpreters import check_interpreter
from triage.quiet import without_prints
from triage.target import FileOptions, Target, find_target

Progress = Callable[[str], None]


def advise(
    *,
    target: str,
    inputs: str,
    subject: str,
    old: str,
    new: str,
    pip: str,
    rounds: int,
    timeout: float,
    calls: int,
    seed: int,
    dynamic: bool | None,
    allow_effects: bool,
    db: str,
    as_json: bool,
) -> None:
    """Tell what changes for a program between two versions of torch."""
    warnings.simplefilter("ignore")  # of torch and its compilers, about themselves
    if pip and not (is_version(old) or is_version(new)):
        raise UsageError(
            seen="--pip without a version to install", expected="a version of torch in --from or --to",
            do="leave --pip out",
        )  # fmt: skip
    named = {text: check_interpreter(text) for text in (old, new) if text and not is_version(text)}
    options = FileOptions(inputs=inputs, calls=calls, seed=seed, dynamic=dynamic, allow_effects=allow_effects)
    with without_prints(), Console(stderr=True).status("") as status:

        def progress(stage: str) -> None:
            status.update(f"advise: {stage}")

        asked = find_target(target, subject=subject, db=db, options=options)
        check_subject(asked.subject)
        pythons = [
            named.get(text) or _interpreter(option, text, pip, progress)
            for option, text in (("from", old), ("to", new))
        ]
        advice = _advice(asked, pythons[0], pythons[1], rounds=rounds, timeout_s=timeout, progress=progress)
    if as_json:
        sys.stdout.write(json.dumps(advice.to_json(), indent=2) + "\n")
    else:
        show(Console(), advice.parts())
    raise typer.Exit(advice.exit_code)


def _interpreter(option: str, version: str, pip: str, progress: Progress) -> str:
    """The interpreter with this version; that of this process if it has it, or if no version is named."""
    if not version or (version == torch.__version__.partition("+")[0] and not pip):
        return sys.executable
    progress(f"an environment with torch {version}")
    try:
        return str(interpreter_with(version, pip=pip))
    except NoEnvironmentError as error:
        raise UsageError(
            seen=f"--{option} {version}: no environment: {error}", expected="a version that pip can install",
            do="name another version, or the path of an interpreter that has torch",
        ) from error  # fmt: skip


def _advice(target: Target, old: str, new: str, *, rounds: int, timeout_s: float, progress: Progress) -> Advice:
    progress("eager")
    eager = _eager(target)
    program, spec = eager.instance().program, target.subject
    request = Request(program=program, subject=spec, folders=folders_of(target), timeout_s=timeout_s)
    sides = ask_both(request, old, new, rounds=rounds, is_called=is_time_called, progress=progress)
    progress("the judge")
    judged = judge_both(*sides, eager, spec)
    progress("known bugs")
    operators = _operators(program, timeout_s)
    verdicts = judged.compiled_old.verdict, judged.compiled_new.verdict
    versions = sides[0].first.torch, sides[1].first.torch
    bugs = touched_bugs(
        load_ledger(), program, spec, operators=operators or (), verdicts=verdicts, versions=versions
    )  # fmt: skip
    return Advice(
        target=target.name,
        subject=spec.name,
        names=names_of(sides),
        sides=sides,
        judged=judged,
        aspects=aspects_of(*sides, judged),
        bugs=tuple(bugs),
        knows_operators=operators is not None,
    )


def _eager(target: Target) -> EagerState:
    """Eager's runs with the torch of this process. The plan has no double backward, which no compiler of torch does."""
    calls = tuple(replace(call, double_backward=False) for call in target.program.calls if not call.outside)
    program = replace(target.program, calls=calls)
    eager = EagerState(make=lambda: instantiate(program))
    eager.run(lambda stage: None, snapshot())
    if isinstance(eager.first, Raised) and not program.expects_raise:
        error = eager.first.exception
        raise UsageError(
            seen=f"{target.name}: eager raises {error.type_name}: {error.message}", expected="a program that eager runs",
            do="correct the program or its inputs",
        )  # fmt: skip
    return eager


def _operators(program: Program, timeout_s: float) -> frozenset[str] | None:
    """The operators of the graphs that Dynamo captures here, in the spelling of `fuzz.triage.bucket`; None if that fails."""

    def work() -> list[str]:
        settle_in_fork()
        return [*captured_by_dynamo(lambda: instantiate(program)).operators]

    try:
        return frozenset(map(spelled, in_child(work, timeout_s=timeout_s)))
    except (ChildDiedError, ChildLateError):
        return None
