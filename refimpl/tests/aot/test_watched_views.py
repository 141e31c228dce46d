"""Views with hooks or `retain_grad` in programs that write to their memory: hooks see gradients of uses before the write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.aot_entry_points import aot_function
from refimpl.backends import aot_eager
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.pipeline import compile_aot

Tensor = torch.Tensor
Program = Callable[..., Any]


def _without_gradients(write: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
    return torch.no_grad()(write)


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "in place": lambda base, view: view.mul_(2),
    "without gradients": _without_gradients(lambda base, view: view.mul_(2)),
    "through detach": lambda base, view: view.detach().mul_(2),
    "through data": lambda base, view: view.data.mul_(2),
    "an element": _without_gradients(lambda base, view: view.__setitem__(0, 2.0)),
    "to the base": _without_gradients(lambda base, view: base.mul_(2)),
    "to another view": lambda base, view: base[2:].mul_(2),
    "to another view without gradients": _without_gradients(lambda base, view: base[2:].mul_(2)),
}


def _hooked(view: Tensor) -> None:
    view.register_hook(lambda gradient: gradient * 10)


def _retained(view: Tensor) -> None:
    view.retain_grad()


def _unwatched(view: Tensor) -> None:
    pass


def _gradients(program: Program, watch: Callable[[Tensor], None], *, of_base: bool = False) -> list[Tensor | None]:
    """The gradients of a leaf, of a view and of its base; None for a view or base that does not retain its gradient."""
    leaf = torch.arange(1.0, 5, requires_grad=True)
    base = leaf * 3
    view = base[1:]
    watch(base if of_base else view)
    program(base, view).backward()
    return [leaf.grad, view.grad if view.retains_grad else None, base.grad if base.retains_grad else None]


def _compiled_by_shape(program: Program) -> Program:
    return aot_function(program, lambda graph, examples: graph)


def _captured(program: Program) -> Program:
    return with_options(program, CaptureOptions(backend=aot_eager))


@pytest.mark.fractional
@pytest.mark.parametrize("compiler", [compile_aot, _captured, _compiled_by_shape])
@pytest.mark.parametrize("watch", [_hooked, _retained, _unwatched])
@pytest.mark.parametrize("write", WRITES)
def test_uses_before_a_write_pass_the_hook_and_uses_after_it_do_not(
    write: str, watch: Callable[[Tensor], None], compiler: Callable[[Program], Program]
) -> None:
    def program(base: Tensor, view: Tensor) -> Tensor:
        before = (view + 1).sum() * 5
        WRITES[write](base, view)
        return before + (view + 2).sum() * 7

    compiled = compiler(program)
    for _ in range(2):
        for expected, found in zip(_gradients(program, watch), _gradients(compiled, watch), strict=True):
            assert (expected is None) == (found is None)
            assert expected is None or found is None or torch.equal(expected, found)


def test_hooks_come_and_go_between_calls() -> None:
    def program(base: Tensor, view: Tensor) -> Tensor:
        before = view.sum()
        view.detach().mul_(2)
        return before + (view + 2).sum() * 7

    compiled = compile_aot(program)
    for watch in (_unwatched, _hooked, _unwatched):
        found, expected = _gradients(compiled, watch)[0], _gradients(program, watch)[0]
        assert found is not None
        assert expected is not None
        assert torch.equal(found, expected)


def _scaled(view: Tensor) -> Tensor:
    with torch.no_grad():
        view.mul_(2)
    return (view * view).sum()


@pytest.mark.parametrize("watch", [_hooked, _unwatched])
def test_a_view_that_a_function_closes_over_is_looked_at_too(watch: Callable[[Tensor], None]) -> None:
    found: list[Tensor] = []
    for compiler in (lambda program: program, compile_aot):
        leaf = torch.arange(1.0, 5, requires_grad=True)
        view = (leaf * 3)[1:]
        watch(view)
        compiler(lambda x, view=view: _scaled(view) + x.sum())(torch.ones(2)).backward()
        assert leaf.grad is not None
        found.append(leaf.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize(("watch", "count"), [(_hooked, 0), (_retained, 0), (_unwatched, 1)])
def test_graphs_run_where_nothing_is_watched(watch: Callable[[Tensor], None], count: int) -> None:
    calls: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, examples: Any) -> Callable[..., Any]:
        return lambda *args: (calls.append(graph), graph(*args))[1]

    view = (torch.arange(1.0, 5, requires_grad=True) * 3)[1:]
    watch(view)
    aot_function(_scaled, compiler)(view)
    assert len(calls) == count
