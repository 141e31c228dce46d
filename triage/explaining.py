"""The command `torch-oracle explain`: what a compiler makes of a program that passes. Always exits with 0.

It is apart from the other commands since it loads refimpl's capture, which takes seconds.
"""

from __future__ import annotations

import sys
import warnings

from oracle.explaining import explain as explain_program
from oracle.explanation import explained
from oracle.program.build import instantiate
from triage.quiet import without_prints
from triage.target import FileOptions, find_target


def explain(
    *,
    target: str,
    inputs: str,
    calls: int,
    seed: int,
    dynamic: bool | None,
    allow_effects: bool,
    db: str,
) -> None:
    """Show what a compiler makes of a program that passes: graphs, breaks, guards, recompiles, memory."""
    warnings.simplefilter("ignore")  # of torch and its compilers, about themselves
    options = FileOptions(inputs=inputs, calls=calls, seed=seed, dynamic=dynamic, allow_effects=allow_effects)
    with without_prints():
        asked = find_target(target, subject="dynamo", db=db, options=options)
        found = explain_program(lambda: instantiate(asked.program))
    sys.stdout.write(explained(found) + "\n")
