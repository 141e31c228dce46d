"""Measures localise and minimise on models with a bug hidden in each: whether the line is right, the size, and the time.

    python -m benchmarks.measurements.localisation_models [--budget 60] [--only TEXT] [--csv FILE]

The models and their wrong backends are those of `triage/tests/models`. They are run as the commands run them: three calls, with a
backward and at last a double backward, and three runs. `cpu_s` is the processor time of all processes, which does not depend on
how busy the machine is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.measurements.frame import options_of, shown
from fuzz.reduce.minimise import minimise
from oracle.localisation.search import localise_program
from oracle.program.build import instantiate
from oracle.program.user_file import program_of_file
from oracle.subjects.registry import resolve
from triage.tests.models import BACKENDS, MODELS, WrongModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result on one model."""

    model: str
    backend: str
    found: str  # the first wrong rung, without the backend's module
    rung_is: str  # "right" or "wrong"
    value: str  # the first wrong value: module, line, operator
    value_is: str  # "right", "wrong" or "not found"
    localise_cpu_s: float
    localise_wall_s: float
    before: int  # statements
    after: int
    how: str  # the form that was reduced
    finished: bool  # nothing can be reduced further
    minimise_cpu_s: float
    minimise_wall_s: float


def measured(model: WrongModel, *, budget_s: float) -> Row:
    """One model, localised, and minimised within `budget_s` seconds."""
    program = program_of_file(model.path, inputs=model.inputs)
    subject = resolve(f"{BACKENDS}:{model.backend}")
    times = [_times()]
    found = localise_program(lambda: instantiate(program), subject, name=model.name)
    times.append(_times())
    smaller = minimise(program, subject, budget_s=budget_s)
    times.append(_times())
    (localise_wall, localise_cpu), (minimise_wall, minimise_cpu) = (
        (round(later[0] - earlier[0], 1), round(later[1] - earlier[1], 1)) for earlier, later in pairwise(times)
    )
    value = found.value
    expected = (model.module, model.source, model.operator, model.direction)
    is_right = value is not None and (value.module, value.source, value.operator, value.direction) == expected
    return Row(
        model=model.name,
        backend=model.backend,
        found=found.first_wrong.rpartition(":")[2],
        rung_is="right" if found.first_wrong == subject.name else "wrong",
        value="" if value is None else value.describe(),
        value_is="not found" if value is None else "right" if is_right else "wrong",
        localise_cpu_s=localise_cpu,
        localise_wall_s=localise_wall,
        before=smaller.before.statements,
        after=smaller.after.statements,
        how=smaller.how,
        finished=smaller.is_finished,
        minimise_cpu_s=minimise_cpu,
        minimise_wall_s=minimise_wall,
    )


def _times() -> tuple[float, float]:
    """The time on the wall, and the processor time of this process and of those that have ended."""
    times = os.times()
    return time.monotonic(), times.user + times.system + times.children_user + times.children_system


def rows(only: str, *, budget_s: float) -> Iterator[Row]:
    """A row for each model whose name contains `only`."""
    for model in MODELS:
        if only in model.name:
            yield measured(model, budget_s=budget_s)


def main() -> None:
    """Measure, print a line for each model, and write the table."""
    parser = options_of(__doc__, only=True)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for minimising each model")
    asked = parser.parse_args()
    shown(rows(asked.only, budget_s=asked.budget), asked.csv)


if __name__ == "__main__":
    main()
