"""The measurement of minimising: programs that are made larger compute the same, and the table says what was reached."""

from __future__ import annotations

import torch

from benchmarks.measurements.minimisation import inflated, rows
from fuzz.reduce.from_source import statement_count
from oracle.known.ledger import load_ledger
from oracle.program import Program
from oracle.program.build import instantiate


def _program(body: str) -> Program:
    return Program(name="p", source=f"import torch\n\ndef program(x, y):\n    {body}\n")


def _results(program: Program) -> tuple[torch.Tensor, ...]:
    found = instantiate(program).target(torch.ones(2), torch.arange(2.0))
    return found if isinstance(found, tuple) else (found,)


def test_an_inflated_program_returns_the_same_and_one_more_value() -> None:
    for body in ("return x + y", "z = x * y; return z, x", "x.add_(y); return"):
        small, large = _program(body), inflated(_program(body))
        assert large is not None
        assert statement_count(large) >= statement_count(small) + 20
        before, after = _results(small), _results(large)
        assert len(after) == (len(before) + 1 if "return\n" not in small.source else 1)
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=False) if a is not None)
        assert after[-1].isfinite().all()


def test_a_program_of_another_form_is_not_inflated() -> None:
    assert inflated(_program("if x.sum() > 0: return x\n    return y")) is None
    module = "import torch\nclass M(torch.nn.Module):\n    def forward(self, x): return x\nprogram = M\n"
    assert inflated(Program(name="m", source=module, is_module=True)) is None


def test_an_issue_and_the_same_inflated_reach_one_size() -> None:
    (issue,) = [issue for issue in load_ledger().issues if issue.id == "addcdiv-near-overflow-real"]
    plain, larger = rows([issue], more=1, budget_s=60.0)
    assert (plain.inflated, larger.inflated, larger.status) == (False, True, "fail_accuracy")
    assert (plain.after, larger.after, larger.reached) == (1, 1, "yes")
    assert larger.before >= plain.before + 20
    assert plain.cpu_s > 0
