"""Programs without a structured form lose the statements that their difference does not need."""

from __future__ import annotations

import math
import time

from fuzz.reduce.from_source import without_statements
from fuzz.reduce.minimise import minimise
from oracle.program import Program
from oracle.subjects.registry import resolve

_SOURCE = '''"""A text."""
import torch
UNUSED = 3
class Net(torch.nn.Module):
    """Another text."""
    def __init__(self):
        super().__init__()
        self.kept = torch.nn.Parameter(torch.ones(2))
        self.gone = 3
    def helper(self):
        return 1
    def forward(self, x):
        if x.sum() > 100:
            x = x + 1
        else:
            x = x * 1
        for number in range(2):
            y = x + number
        return x * self.kept
program = Net
def inputs(call):
    many = 1
    return (torch.ones(2),), {}
'''


def _lines(program: Program) -> list[str]:
    return [line.strip() for line in program.source.splitlines() if line.strip()]


def test_only_statements_that_are_needed_stay_and_those_of_the_inputs() -> None:
    program = Program(name="net", source=_SOURCE, is_module=True)

    def shows(candidate: Program) -> bool:
        compile(candidate.source, "candidate", "exec")
        return all(text in candidate.source for text in ("self.kept = ", "return x * self.kept", "program = Net"))

    found, is_finished = without_statements(program, shows, deadline=math.inf)
    assert is_finished
    assert _lines(found) == [
        "class Net(torch.nn.Module):",
        "def __init__(self):",
        "self.kept = torch.nn.Parameter(torch.ones(2))",
        "def forward(self, x):",
        "return x * self.kept",
        "program = Net",
        "def inputs(call):",
        "many = 1",
        "return ((torch.ones(2),), {})",
    ]


def test_a_body_without_statements_is_still_a_body() -> None:
    program = Program(
        name="p", source="def program(x):\n    if x:\n        y = 1\n    else:\n        y = 2\n    return x\n"
    )
    found, _ = without_statements(program, lambda candidate: "if x" in candidate.source, deadline=math.inf)
    assert _lines(found) == ["def program(x):", "if x:", "pass"]


def test_the_search_ends_in_time() -> None:
    found, is_finished = without_statements(
        Program(name="net", source=_SOURCE, is_module=True), lambda candidate: True, deadline=time.monotonic() - 1
    )
    assert (found.source, is_finished) == (_SOURCE, False)


def test_a_module_that_only_export_gets_wrong_is_reduced_as_source() -> None:
    source = (
        "import torch\n"
        "NOTHING = 3\n"
        "class Scaling(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('scale', torch.ones(3))\n"
        "        self.other = torch.nn.Linear(2, 2)\n"
        "    def forward(self, x):\n"
        "        y = x + 1\n"
        "        return self.scale.data * x\n"
        "program = Scaling\n"
        "def inputs(call): return (torch.ones(3),), {}\n"
    )
    program = Program(name="scaling", source=source, is_module=True)
    found = minimise(program, resolve("export"), budget_s=60.0)
    assert found.reproduced
    assert (found.program, found.how, found.is_finished) == (None, "statements", True)
    assert found.verdict.status.is_finding
    assert found.after.statements < found.before.statements
    for gone in ("NOTHING", "other", "x + 1"):
        assert gone not in found.source.source
    assert "self.scale.data * x" in found.source.source
