"""The corpus compiled ahead of time: values, gradients, mutation, aliases and random numbers are those of eager mode."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from refimpl.pipeline import compile_aot
from refimpl.tests.corpus import PROGRAMS, Program, case, fractional, programs_of, refusal
from refimpl.tests.corpus.compare import Seen, assert_same_or_more, observe

WAYS: dict[str, dict[str, Any]] = {
    "default": {"partition": "default"},
    "min_cut": {"partition": "min_cut"},
    "joint": {"partition": None},
    "dynamic": {"partition": "default", "dynamic": True},
    "scatter": {"partition": "min_cut", "functionalization": "scatter"},
}


def _cases(program: Program) -> list[Any]:
    """Every way where there is a backward; where there is none, there is no partition to make either."""
    backward = program.ways or WAYS if True in program.with_gradients else []
    inference = program.ways or ("dynamic", "scatter") if False in program.with_gradients else ()
    return [
        *[case(program, f"aot.{way}", True) for way in backward],
        *[case(program, f"aot.{way}", False, name=f"inference-{way}") for way in inference],
    ]


@functools.lru_cache(maxsize=32)
def _eager(name: str, requires_grad: bool, writes: bool, calls: int = 1) -> Seen:
    program = PROGRAMS[name]
    return observe(program.build(), lambda: program.make(requires_grad), writes=writes, calls=calls)


CASES = fractional((one for program in programs_of("aot") for one in _cases(program)), step=3)


@pytest.mark.parametrize(("program", "way", "requires_grad"), CASES)
def test_program_agrees_with_eager(program: Program, way: str, requires_grad: bool) -> None:
    """This holds for the first call, and for a second one whose results are written to."""
    compiled = compile_aot(program.build(), **WAYS[way])
    with refusal(program, f"aot.{way}"):
        for writes in (False, True):
            actual = observe(compiled, lambda: program.make(requires_grad), writes=writes)
            assert_same_or_more(_eager(program.name, requires_grad, writes), actual, what="written: " if writes else "")


def test_every_program_and_every_way_has_a_quick_case() -> None:
    quick = [row.values for row in CASES if "slow" not in [mark.name for mark in row.marks]]
    assert {values[0].name for values in quick} == {program.name for program in programs_of("aot")}
    assert {values[1:] for values in quick} == {row.values[1:] for row in CASES}


@pytest.mark.parametrize("program", [program for program in programs_of("aot") if program.calls_again], ids=str)
def test_second_call_with_the_same_arguments_agrees_with_eager(program: Program) -> None:
    actual = observe(compile_aot(program.build()), lambda: program.make(True), calls=2)
    assert_same_or_more(_eager(program.name, True, False, 2), actual)
