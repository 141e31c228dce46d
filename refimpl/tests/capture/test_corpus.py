"""The corpus captured, with the breaks it needs and with one at every second instruction, does what it does in eager mode."""

from __future__ import annotations

from typing import Any

import pytest

from refimpl.tests.capture.capturing import MODES, captured_with
from refimpl.tests.corpus import PROGRAMS, Program
from refimpl.tests.corpus.compare import assert_agrees

WHERE_IT_MUST, EVERY_SECOND, _ = MODES
# What only computes is the same to capture wherever it breaks.
CASES = [
    pytest.param(program, mode, requires_grad, id=f"{program}-{mode}-{'training' if requires_grad else 'inference'}")
    for program in PROGRAMS.values()
    for mode in ((WHERE_IT_MUST,) if program.topic == "operators" else (WHERE_IT_MUST, EVERY_SECOND))
    for requires_grad in program.with_gradients
]


@pytest.mark.parametrize(("program", "mode", "requires_grad"), CASES)
def test_captured_program_agrees_with_eager(program: Program, mode: str, requires_grad: bool) -> None:
    function: Any = program.build()
    captured, _, _ = captured_with(function, breaks_at=MODES[mode], recompile_limit=64)
    assert_agrees(function, captured, lambda: program.make(requires_grad), is_exact=True)
