"""The commands about one program: `torch-oracle check | localise | explain | minimise | repro | bisect | advise | promote`.

This module loads no torch, so that help is quick. What a command does is in the module that it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from triage.options import (
    DEFAULT_BUDGET_S,
    DEFAULT_DB,
    BudgetOption,
    CallsOption,
    DbOption,
    DynamicOption,
    EffectsOption,
    InputsOption,
    JsonOption,
    SeedOption,
    SubjectOption,
    TargetArgument,
)


def _run(module: str, name: str, options: Mapping[str, Any]) -> None:
    getattr(import_module(module), name)(**options)


def check(
    target: TargetArgument,
    inputs: InputsOption = "",
    subject: Annotated[str, typer.Option(help="Subjects, separated by commas.")] = "",
    without: Annotated[
        list[str],
        typer.Option(metavar="PART", help="Leave out a part of torch's compiler, such as 'lowering: aten.argmin'."),
    ] = [],  # noqa: B006  typer copies it
    calls: CallsOption = 3,
    seed: SeedOption = 0,
    dynamic: DynamicOption = None,
    timeout: Annotated[
        float,
        typer.Option(help="CPU seconds to judge one subject, eager's reruns in float64 and under noise included."),
    ] = 300.0,
    allow_effects: EffectsOption = False,
    db: DbOption = DEFAULT_DB,
    as_json: JsonOption = False,
) -> None:
    """Run one program on subjects, and say whether it agrees with eager."""
    _run("triage.looking", "check", locals())


def localise(
    target: TargetArgument,
    inputs: InputsOption = "",
    subject: SubjectOption = "",
    calls: CallsOption = 3,
    seed: SeedOption = 0,
    dynamic: DynamicOption = None,
    allow_effects: EffectsOption = False,
    db: DbOption = DEFAULT_DB,
    as_json: JsonOption = False,
) -> None:
    """Find where a program goes wrong: the first wrong stage, the part of it, the first wrong value."""
    _run("triage.looking", "localise", locals())


def explain(
    target: TargetArgument,
    inputs: InputsOption = "",
    calls: CallsOption = 3,
    seed: SeedOption = 0,
    dynamic: DynamicOption = None,
    allow_effects: EffectsOption = False,
    db: DbOption = DEFAULT_DB,
) -> None:
    """Show what a compiler makes of a program that passes: graphs, breaks, guards, recompiles, memory."""
    _run("triage.explaining", "explain", locals())


def minimise(
    target: TargetArgument,
    inputs: InputsOption = "",
    subject: SubjectOption = "",
    budget: BudgetOption = DEFAULT_BUDGET_S,
    calls: CallsOption = 3,
    seed: SeedOption = 0,
    dynamic: DynamicOption = None,
    allow_effects: EffectsOption = False,
    db: DbOption = DEFAULT_DB,
    interestingness: Annotated[
        Path | None,
        typer.Option(
            "--interestingness-script", help="Write a test for another reducer, such as shrinkray, to this file."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the smallest program that shows the same difference."""
    _run("triage.reports", "minimise", locals())


def repro(
    target: TargetArgument,
    inputs: InputsOption = "",
    subject: SubjectOption = "",
    output: Annotated[Path | None, typer.Option(help="Folder to write to; by default repro-NAME.")] = None,
    budget: BudgetOption = DEFAULT_BUDGET_S,
    calls: CallsOption = 3,
    seed: SeedOption = 0,
    dynamic: DynamicOption = None,
    allow_effects: EffectsOption = False,
    db: DbOption = DEFAULT_DB,
    localises: Annotated[
        bool, typer.Option("--localise/--no-localise", help="Say in the issue which part of the compiler is to blame.")
    ] = True,
) -> None:
    """Write the smallest script that needs only torch, and the text of an issue."""
    _run("triage.reports", "repro", locals())


def bisect(
    target: TargetArgument,
    inputs: InputsOption = "",
    subject: SubjectOption = "",
    torch: Annotated[str, typer.Option(metavar="VERSIONS", help="Versions of torch, such as 2.12.0,2.13.0.")] = "",
    python: Annotated[
        list[str], typer.Option(metavar="PATH", help="An interpreter that has torch. May be given several times.")
    ] = [],  # noqa: B006  typer copies it
    pip: Annotated[
        str, typer.Option(help="With --torch: more options for `pip install`, such as an --index-url.")
    ] = "",
    repo: Annotated[str, typer.Option(metavar="PATH", help="The git checkout of your backend.")] = "",
    good: Annotated[str, typer.Option(metavar="REV", help="With --repo: an older commit.")] = "",
    bad: Annotated[str, typer.Option(metavar="REV", help="With --repo: a newer commit, by default HEAD.")] = "",
    build: Annotated[str, typer.Option(help="With --repo: a command that builds a commit, in its top folder.")] = "",
    runs: Annotated[int, typer.Option(min=1, help="Runs of each version, for a bug that is not always seen.")] = 1,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds for one run.")] = 300.0,
    calls: CallsOption = 3,
    seed: SeedOption = 0,
    dynamic: DynamicOption = None,
    allow_effects: EffectsOption = False,
    db: DbOption = DEFAULT_DB,
    as_json: JsonOption = False,
) -> None:
    """Find since which version of torch, or which commit of your backend, a program goes wrong."""
    _run("triage.bisecting", "bisect", locals())


def advise(
    target: TargetArgument,
    old: Annotated[
        str,
        typer.Option("--from", metavar="TORCH", help="A version of torch, such as 2.12.0, or an interpreter's path."),
    ],
    inputs: InputsOption = "",
    subject: SubjectOption = "",
    new: Annotated[
        str, typer.Option("--to", metavar="TORCH", help="The same for the newer torch; by default the running one.")
    ] = "",
    pip: Annotated[str, typer.Option(help="More options for `pip install` of a version, such as an --index-url.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Processes of each version, which take turns.")] = 3,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds for one process.")] = 600.0,
    calls: CallsOption = 3,
    seed: SeedOption = 0,
    dynamic: DynamicOption = None,
    allow_effects: EffectsOption = False,
    db: DbOption = DEFAULT_DB,
    as_json: JsonOption = False,
) -> None:
    """Tell what changes for a program between two versions of torch."""
    _run("triage.advise.command", "advise", locals())


def promote(
    target: TargetArgument,
    to: Annotated[Path, typer.Option(metavar="FILE", help="The ledger, a TOML file. It is made if there is none.")],
    inputs: InputsOption = "",
    subject: SubjectOption = "",
    id: Annotated[str, typer.Option(help="Name of the entry; by default made from the program's.")] = "",
    title: Annotated[
        str, typer.Option(help="What goes wrong, in one sentence; by default made from the verdict.")
    ] = "",
    link: Annotated[str, typer.Option(metavar="URL", help="The report that you filed.")] = "",
    expires: Annotated[
        str, typer.Option(metavar="DAY", help="After this day it counts as new again; by default in 180 days.")
    ] = "",
    fixed: Annotated[
        bool, typer.Option("--fixed", help="The program agrees with eager now: keep it as a test that must agree.")
    ] = False,
    as_it_is: Annotated[
        bool, typer.Option("--as-it-is", help="Keep the program as it is: do not minimise it.")
    ] = False,
    budget: BudgetOption = DEFAULT_BUDGET_S,
    calls: CallsOption = 3,
    seed: SeedOption = 0,
    dynamic: DynamicOption = None,
    allow_effects: EffectsOption = False,
    db: DbOption = DEFAULT_DB,
    localises: Annotated[
        bool, typer.Option("--localise/--no-localise", help="Write which part of the compiler is to blame.")
    ] = True,
) -> None:
    """Keep a wrong program as a known issue of your own ledger, or a fixed one as a regression test."""
    _run("triage.promoting", "promote", locals())
