"""README's table of what other checks miss: each row is tried on a program and a wrong compiled version of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.debug_utils import same_two_models

import oracle
from oracle.known.ledger import load_ledger
from oracle.verdict import Status

README = Path(__file__).resolve().parents[3] / "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A program, and what a compiler made of it."""

    eager: Callable[[torch.Tensor], torch.Tensor]
    compiled: Callable[[torch.Tensor], torch.Tensor]
    x: torch.Tensor


def ones(*shape: int, requires_grad: bool = False) -> torch.Tensor:
    return torch.ones(shape, requires_grad=requires_grad)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def one_in_a_million(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[7] = 2.02
    return y


def write(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def draw_and_double(x: torch.Tensor) -> torch.Tensor:
    torch.rand(1)
    return x * 2


def fail(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("the compiled program raises")


ROWS = {
    "one element of a million, by 1 %": Wrong(eager=double, compiled=one_in_a_million, x=ones(1_000_000)),
    "the shape of a result, where it broadcasts": Wrong(eager=double, compiled=lambda x: x[:1] * 2, x=ones(3)),
    "a gradient": Wrong(eager=double, compiled=lambda x: x * 3 - x.detach(), x=ones(3, requires_grad=True)),
    "what it writes into an argument": Wrong(eager=write, compiled=lambda x: (x + 1) * 2, x=ones(3)),
    "which results share memory with an argument": Wrong(
        eager=lambda x: x.view(-1), compiled=lambda x: x.clone().view(-1), x=ones(3)
    ),
    "the strides of a result": Wrong(eager=double, compiled=lambda x: (x.t().contiguous() * 2).t(), x=ones(2, 3)),
    "the sign of a zero": Wrong(eager=lambda x: x - 1, compiled=lambda x: -(x - 1), x=ones(3)),
    "the random generator after the call": Wrong(eager=double, compiled=draw_and_double, x=ones(3)),
    "an error that the compiled program raises": Wrong(eager=double, compiled=fail, x=ones(3)),
}
LATER_CALL = "a later call, after a global or an attribute has changed"  # the others compare one call only


def copy_of(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad)


def assert_close_misses(wrong: Wrong) -> bool:
    eager = wrong.eager(copy_of(wrong.x))
    try:
        torch.testing.assert_close(wrong.compiled(copy_of(wrong.x)), eager)
    except (AssertionError, RuntimeError):
        return False
    return True


def minifier_misses(wrong: Wrong) -> bool:
    class Compiled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return wrong.compiled(x)

    return same_two_models(torch.fx.symbolic_trace(wrong.eager), Compiled(), [copy_of(wrong.x)])  # pyright: ignore[reportArgumentType]


def oracle_misses(wrong: Wrong) -> bool:
    def backend(graph_module: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., tuple[torch.Tensor]]:
        return lambda x: (wrong.compiled(x),)

    (verdict,) = oracle.check(wrong.eager, copy_of(wrong.x), subjects=[backend]).values()
    return verdict.status.value == "pass"


def table() -> dict[str, list[str]]:
    rows = re.findall(
        r"^\| (.+?) \| (sees|misses|not asked) \| (sees|misses|not asked) \| (sees|misses) \|$",
        README.read_text(),
        re.M,
    )
    return {row[0]: list(row[1:]) for row in rows}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_every_row_of_the_table_is_tried() -> None:
    assert [*table()] != []
    assert set(table()) == {*ROWS, LATER_CALL}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table_is_so(row: str) -> None:
    wrong = ROWS[row]
    misses = [assert_close_misses(wrong), minifier_misses(wrong), oracle_misses(wrong)]
    assert ["misses" if missed else "sees" for missed in misses] == table()[row]


def test_bugs_of_a_later_call_are_among_the_known_ones() -> None:
    ledger = load_ledger()
    endings = [
        ending
        for issue in ledger.issues
        for ending in ledger.newest_endings(issue).get(issue.subject, ())
        if ending.symptom.startswith("call 1: output")
    ]
    assert endings != []


def test_the_judges_page_explains_each_word_of_a_verdict_and_says_whether_it_is_a_finding() -> None:
    text = (README.parent / "docs" / "judge.md").read_text()
    section = text.partition("## The words of a verdict")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \| .* \|( yes)? \|$", section, re.MULTILINE)
    told = {word: bool(is_finding) for words, is_finding in rows for word in re.findall(r"`(\w+)`", words)}
    assert told == {status.value: status.is_finding for status in Status}
