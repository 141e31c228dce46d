"""Options that the commands of triage share."""

from __future__ import annotations

from typing import Annotated

import typer

from results.commands import DEFAULT_DB as DEFAULT_DB
from results.files import DB_VARIABLE

DEFAULT_SUBJECT = "inductor"
DEFAULT_BUDGET_S = 60.0

TargetArgument = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="FILE.py:NAME, RUN:CASE, issue:ID, or the .json file of a finding."),
]
InputsOption = Annotated[
    str,
    typer.Option(
        help="Inputs of FILE.py:NAME: 'f32[4, 8], i64[4] < 100, scale=0.5', or a function of the file that makes them. "
        "Without it, the file's function `inputs` is used."
    ),
]
CallsOption = Annotated[int, typer.Option(min=1, help="Calls of FILE.py:NAME; later ones have other values.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of random inputs and weights.")]
DynamicOption = Annotated[bool | None, typer.Option("--dynamic/--static", help="Compile for dynamic or static sizes.")]
EffectsOption = Annotated[bool, typer.Option("--allow-effects", help="Run a program that writes files, or the like.")]
SubjectOption = Annotated[str, typer.Option(help=f"Subject; by default the record's, or {DEFAULT_SUBJECT}.")]
DbOption = Annotated[
    str,
    typer.Option(help="Results, for RUN:CASE: a SQLite file or a database URL.", envvar=DB_VARIABLE, show_envvar=True),
]
BudgetOption = Annotated[float, typer.Option(min=1.0, help="Seconds for the search for a smaller program.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
