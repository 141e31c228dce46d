"""`torch-oracle record`: write the operator calls of a program to a file. Loads torch only when it runs."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer


def record(
    target: Annotated[str, typer.Argument(metavar="FILE.py:NAME", help="A function, or an nn.Module, to run once.")],
    inputs: Annotated[
        str,
        typer.Option(
            help="Its inputs: 'f32[4, 8], i64[4] < 100', or a function of the file that makes them. Without it, the file's "
            "function `inputs` is used."
        ),
    ] = "",
    output: Annotated[Path, typer.Option(help="The recording, a file of JSON lines.")] = Path("recorded.jsonl"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of random inputs and weights.")] = 0,
    allow_effects: Annotated[
        bool, typer.Option("--allow-effects", help="Run a program that writes files, or the like.")
    ] = False,
) -> None:
    """Run a function once and write every operator call that it makes: shapes, strides, dtypes, ranges of values.

    If an input or a parameter requires grad, the function's results are differentiated, and the calls of the backward are written
    too. `torch-oracle sweep --suite recorded --recording FILE` then runs each call on subjects.
    """
    made = import_module("suites.recorded.recorder").make_recording(
        target, inputs=inputs, output=output, seed=seed, allow_effects=allow_effects
    )
    sys.stdout.write(made + "\n")
