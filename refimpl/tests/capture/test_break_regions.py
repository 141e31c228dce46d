"""Regions in which a graph break is an error, or is allowed: `error_on_graph_break`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import refimpl
from refimpl.capture.breaks import BREAK_SETTING
from refimpl.capture.entry_points.decorators import error_on_graph_break, graph_break
from refimpl.capture.public.errors import Unsupported
from refimpl.tests.documentation.example import Graphs

Program = Callable[[torch.Tensor], torch.Tensor]


def _broken(x: torch.Tensor) -> torch.Tensor:
    x = x + 3
    graph_break()
    return x * 5


def _in_a_block(is_error: bool, inner: Program) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x - 1
        with error_on_graph_break(is_error):
            x = inner(x)
        return x / 2

    return program


def _after_a_block(is_error: bool) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        with error_on_graph_break(is_error):
            x = x - 1
        return _broken(x)

    return program


def _leaving_by_an_error(x: torch.Tensor) -> torch.Tensor:
    try:
        with error_on_graph_break(True):
            x = x + 1
            raise ValueError("of the program")
    except ValueError:
        x = x * 2
    return _broken(x)


def _breaking_with_the_same_block_twice(x: torch.Tensor) -> torch.Tensor:
    region = error_on_graph_break(False)
    with region:
        x = _broken(x)
        with region:
            x = _broken(x)
        x = _broken(x)
    return x


def _going_on_in_the_block(x: torch.Tensor) -> torch.Tensor:
    with error_on_graph_break(False):
        graph_break()
        x = x + 1
        with error_on_graph_break(True):
            x = x * 2
    graph_break()
    return x


_ALLOWED = {
    "a block": _in_a_block(False, _broken),
    "a decorated function": lambda x: error_on_graph_break(False)(_broken)(x) + 1,
    "in a forbidding block": _in_a_block(True, _in_a_block(False, _broken)),
    "a forbidding block without a break": _in_a_block(True, torch.sin),
    "the same block twice": _breaking_with_the_same_block_twice,
}
_FORBIDDEN = {
    "a block": _in_a_block(True, _broken),
    "a decorated function": lambda x: error_on_graph_break(True)(_broken)(x) + 1,
    "in an allowing block": _in_a_block(False, _in_a_block(True, _broken)),
    "two functions further in": _in_a_block(True, lambda x: (lambda y: _broken(y) + 1)(x)),
    "behind an allowed break": lambda x: _in_a_block(True, _broken)(_broken(x)),
    "data": _in_a_block(True, lambda x: x + 1 if x.sum() > 0 else x),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", _ALLOWED)
def test_a_break_is_allowed_in_a_forbidding_call(name: str, backend: str) -> None:
    program, x = _ALLOWED[name], torch.randn(4)
    compiled = error_on_graph_break(True)(refimpl.compile(program, backend=backend))
    for _ in range(2):
        torch.testing.assert_close(compiled(x), program(x))
        assert not BREAK_SETTING.is_error


@pytest.mark.parametrize("name", _FORBIDDEN)
def test_a_break_is_an_error_in_a_forbidding_region(name: str) -> None:
    compiled = refimpl.compile(_FORBIDDEN[name], backend="eager")
    for _ in range(2):
        with pytest.raises(Unsupported):
            compiled(torch.ones(4))
        assert not BREAK_SETTING.is_error


@pytest.mark.parametrize(
    "program",
    [_after_a_block(True), _leaving_by_an_error, _going_on_in_the_block],
    ids=["left", "left by an error", "within"],
)
def test_a_region_ends_with_its_block(program: Program) -> None:
    compiled = refimpl.compile(program, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(4)), program(torch.ones(4)))


def test_a_region_without_a_break_is_no_part_of_the_graph() -> None:
    graphs = Graphs()
    refimpl.compile(_in_a_block(True, torch.sin), backend=graphs, fullgraph=True)(torch.ones(3))
    assert len(graphs) == 1


def test_fullgraph_takes_precedence_over_a_region_that_allows_breaks() -> None:
    with pytest.raises(Unsupported):
        refimpl.compile(_ALLOWED["a block"], backend="eager", fullgraph=True)(torch.ones(3))


def test_the_setting_is_guarded_where_the_program_reads_it() -> None:
    seen: list[Any] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        with error_on_graph_break(False):
            x = x + 1
        return x

    def backend(module: Any, examples: Any) -> Any:
        seen.append(module)
        return module

    compiled = refimpl.compile(program, backend=backend)
    compiled(torch.ones(2))
    with error_on_graph_break(True):
        compiled(torch.ones(2))
        assert BREAK_SETTING.is_error
    assert not BREAK_SETTING.is_error
    compiled(torch.ones(2))
    assert len(seen) == 2
