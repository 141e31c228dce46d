"""Graph breaks say what, where and what to do, and their ids stay."""

from __future__ import annotations

import string

import pytest
import torch

from refimpl.capture.breaks import REGISTRY, BreakKind, GraphBreak, UserLine
from refimpl.capture.public.errors import Unsupported
from refimpl.tests.capture.capturing import captured_with


def fields(kind: BreakKind) -> set[str]:
    """Names of the details that the explanation has places for."""
    return {name for _, name, _, _ in string.Formatter().parse(kind.explanation) if name}


@pytest.mark.parametrize("name", REGISTRY)
def test_a_break_prints_its_reason_hints_and_place(name: str) -> None:
    kind = REGISTRY[name]
    raised = GraphBreak(name, **dict.fromkeys(fields(kind), "<detail>"))
    raised.stack = (UserLine("a.py", 1, "f"), UserLine("b.py", 22, "g"))
    text = str(raised)
    assert text.startswith(f"graph break {kind.id} ({name})\n  Explanation: ")
    assert text.count("<detail>") == len(fields(kind))
    assert all(f"Hint: {hint}" in text for hint in kind.hints)
    assert text.endswith('from user code:\n  File "a.py", line 1, in f\n  File "b.py", line 22, in g')


def test_every_kind_has_a_hint_and_a_stable_id() -> None:
    assert all(kind.hints for kind in REGISTRY.values())
    assert [kind.id for kind in REGISTRY.values()] == sorted(kind.id for kind in REGISTRY.values())
    # Ids that were given: a row may be added, none may change its meaning.
    assert {kind.id: kind.name for kind in REGISTRY.values()} | {
        "RC0001": "branch_on_tensor", "RC0010": "call_of_native_code", "RC0013": "user_break", "RC0032": "recompile_limit",
    } == {kind.id: kind.name for kind in REGISTRY.values()}  # fmt: skip


def test_a_kind_that_is_not_registered_is_an_error_of_ours() -> None:
    with pytest.raises(KeyError):
        GraphBreak("no_such_kind")


def test_an_op_that_asks_its_data_on_the_way_is_refused_by_name() -> None:
    captured, _, _ = captured_with(lambda x: torch.combinations(x.sin()), fullgraph=True)
    with pytest.raises(Unsupported, match="combinations reads a value out of a tensor"):
        captured(torch.randn(4))
