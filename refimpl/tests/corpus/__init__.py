"""Programs that the tests of several rooms run, and the one comparison of a compiled program with the program itself.

A topic is a module. A room's `test_corpus.py` runs the programs that name the room. To add a program, decorate a function of the
topic it belongs to with how its inputs are made; what it computes needs no word, eager mode says it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import pytest

from refimpl.tests.corpus import containers, drawn, geometry, gradients, mutation, operators, randomness, storage, views
from refimpl.tests.corpus.program import Program

TOPICS = (containers, drawn, geometry, gradients, mutation, operators, randomness, storage, views)
PROGRAMS: dict[str, Program] = {program.name: program for topic in TOPICS for program in topic.TOPIC.programs}


def programs_of(room: str) -> list[Program]:
    """The programs that a room runs."""
    return [program for program in PROGRAMS.values() if room in program.rooms]


def case(program: Program, way: str, *values: Any, name: str = "") -> Any:
    """Parameters of a test: the program, the way it is run (`"aot.dynamic"` is a way of the room aot), other values."""
    short = way.partition(".")[2]
    return pytest.param(program, short, *values, id="-".join([program.name, name or short]))


def fractional(rows: Iterable[Any], step: int = 2) -> list[Any]:
    """Rows of parameters, the program first: one way in `step` of a program is quick, of the next program the ways after these.

    So each program is run in some ways and each way runs many programs. A program that some way refuses is run in all.
    `make check` runs everything.
    """
    programs: dict[str, list[Any]] = {}
    for given in rows:
        row: Any = given if hasattr(given, "marks") else pytest.param(*given)
        programs.setdefault(row.values[0].name, []).append(row)
    return [
        row
        if row.values[0].refused or i % step == turn % min(step, len(ways))
        else pytest.param(*row.values, id=row.id, marks=pytest.mark.slow)
        for turn, ways in enumerate(programs.values())
        for i, row in enumerate(ways)
    ]


def refusal(program: Program, way: str) -> contextlib.AbstractContextManager[Any]:
    """Expects the error with which a way refuses the program, where it does."""
    message = program.refused.get(way)
    return contextlib.nullcontext() if message is None else pytest.raises(Exception, match=message)
