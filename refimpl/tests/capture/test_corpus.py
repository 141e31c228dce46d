"""The corpus captured, with the breaks it needs and with one at every second instruction, does what it does in eager mode."""

from __future__ import annotations

from typing import Any

import pytest

from refimpl.tests.capture.capturing import MODES, WHERE_IT_MUST, captured_with
from refimpl.tests.corpus import PROGRAMS, Program, fractional
from refimpl.tests.corpus.compare import assert_agrees

EVERY_SECOND = "every second instruction is run"
# What only computes, or changes geometry or storage in one instruction, is the same to capture wherever it breaks.
ONE_WAY = ("operators", "geometry", "storage")
CASES = [
    pytest.param(program, mode, requires_grad, id=f"{program}-{mode}-{'training' if requires_grad else 'inference'}")
    for program in PROGRAMS.values()
    if "aot" in program.rooms
    for mode in ((WHERE_IT_MUST,) if program.topic in ONE_WAY else (WHERE_IT_MUST, EVERY_SECOND))
    for requires_grad in program.with_gradients[: 2 if mode == WHERE_IT_MUST else 1]
]


@pytest.mark.parametrize(("program", "mode", "requires_grad"), fractional(CASES))
def test_captured_program_agrees_with_eager(program: Program, mode: str, requires_grad: bool) -> None:
    function: Any = program.build()
    captured, _, _ = captured_with(function, breaks_at=MODES[mode], recompile_limit=64)
    assert_agrees(function, captured, lambda: program.make(requires_grad))
