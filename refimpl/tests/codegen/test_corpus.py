"""The corpus by kernels on the emulator, which looks for races, does what it does in eager mode."""

from __future__ import annotations

import pytest

from refimpl.codegen.levels.emulated import EmulatorLevel
from refimpl.tests.codegen.checks import compiled_with_graphs
from refimpl.tests.corpus import PROGRAMS, Program
from refimpl.tests.corpus.compare import assert_agrees

# Writes and changes of geometry or storage are gone from the graphs that kernels are made of. The middle row of batch_norm's
# result is 0 but for rounding, where the absolute value in the loss has no gradient to compare.
LEFT_OUT = {"mutation", "geometry", "storage", "batch_norm"}
CASES = [
    program for program in PROGRAMS.values() if "aot" in program.rooms and not {program.topic, program.name} & LEFT_OUT
]


@pytest.mark.parametrize("program", CASES, ids=str)
def test_program_by_kernels_agrees_with_eager(program: Program) -> None:
    function = program.build()
    compiled, _ = compiled_with_graphs(function, level=EmulatorLevel(races=True, asserts=True))
    assert_agrees(function, compiled, lambda: program.make(program.with_gradients[0]))
