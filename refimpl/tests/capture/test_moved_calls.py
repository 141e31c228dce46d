"""Tests of `reorderable_logging_functions`: their calls are made after the graph, with the output of eager mode."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import refimpl
from refimpl.capture.config import config
from refimpl.tests.capture.capturing import captured_with, each_of, same


def values(x: Any) -> Any:
    y = x + 1
    print("a", y.sum().detach(), 3, sep="-")
    return y * 2


def _inner(x: Any) -> Any:
    print("in", x.shape[0])
    return x * 2


def in_called_functions(x: Any) -> Any:
    for _ in range(2):
        x = _inner(x)
    print()
    return x


def of_a_changed_object(x: Any) -> Any:
    items = [1]
    print(len(items))
    items.append(2)
    print(len(items))
    return x + 1, items


def a_list(x: Any) -> Any:
    print([1, 2])
    return x + 1


def before_a_write(x: Any) -> Any:
    y = x * 1
    print(y.detach())
    y.add_(1)
    return y


def before_a_break(x: Any) -> Any:
    print("before")
    if x.sum() > 0:
        print("positive")
    return x


def in_a_branch(x: Any) -> Any:
    def chosen(a: Any) -> Any:
        print("chosen")
        return a * 2

    return torch.cond(x.sum() > 0, chosen, lambda a: a * 1, (x,)), _inner(x)


WHOLE = (values, in_called_functions, of_a_changed_object)


@contextlib.contextmanager
def printed() -> Iterator[io.StringIO]:
    out = io.StringIO()
    with config.patch(reorderable_logging_functions={print}), contextlib.redirect_stdout(out):
        yield out


@pytest.mark.fractional
@each_of(*WHOLE, a_list, before_a_write, before_a_break)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_output_is_that_of_eager(program: Callable[..., Any], backend: str) -> None:
    outputs, results = [], []
    for function in (program, refimpl.compile(program, backend=backend)):
        with printed() as out:
            results.append([function(torch.ones(2)), function(torch.ones(2))])
        outputs.append(out.getvalue())
    assert outputs[0] == outputs[1] != ""
    assert same(*results)


@each_of(*WHOLE)
def test_there_is_one_graph(program: Callable[..., Any]) -> None:
    captured, recorder, _ = captured_with(program, fullgraph=True)
    with printed():
        captured(torch.ones(2))
    assert len(recorder.graphs) == 1


@each_of(a_list, before_a_write)
def test_what_would_print_something_else_breaks_the_graph(program: Callable[..., Any]) -> None:
    captured, _, options = captured_with(program)
    with printed():
        captured(torch.ones(2))
    assert options.breaks


def test_a_branch_that_may_not_run_is_refused() -> None:
    captured, _, options = captured_with(in_a_branch)
    with printed() as out, contextlib.suppress(Exception):
        captured(torch.ones(2))
    assert [reason.kind.name for reason in options.breaks] == ["effect_in_branch"]
    assert out.getvalue().count("chosen") <= 1
