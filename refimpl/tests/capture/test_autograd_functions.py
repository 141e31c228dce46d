"""Tests of `torch.autograd.Function` in captured code where nothing is differentiated: its forward is in the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from refimpl.tests.capture.capturing import IN_EVERY_MODE, MODES, captured_with, each_of, same


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        x, by = args
        ctx.save_for_backward(x)
        ctx.by = by
        return x * by, torch.is_grad_enabled(), ctx.needs_input_grad

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.by * 10, None


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        return args[0]


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        ctx.mark_dirty(*args)
        return args[0].add_(1)


def _written(ctx: Any, x: Any) -> Any:
    ctx.mark_dirty(x)
    return x.add_(1)


class DirtyElsewhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        return _written(ctx, args[0]), args[1]


class OfClass(torch.autograd.Function):
    @classmethod
    def forward(cls, ctx: Any, *args: Any) -> Any:
        return args[0] * len(cls.__name__)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 3


def scaled(x: Any) -> Any:
    y, is_on, needs = Scaled.apply(x, 3)
    return y + 1, is_on, needs, torch.is_grad_enabled()


def identity(x: Any) -> Any:
    y: Any = Same.apply(x)
    return y is x, y + 1


def dirty_elsewhere(x: Any) -> Any:
    y = x.detach() * 1
    z: Any = DirtyElsewhere.apply(y, y * 2)
    return y is z[0], z, y


def of_class(x: Any) -> Any:
    y: Any = OfClass.apply(x)
    return y, y.requires_grad


def of_instance(x: Any) -> Any:
    y: Any = OfClass().apply(x)
    return y, y.requires_grad


def dirty(x: Any) -> Any:
    y: Any = Dirty.apply(x)
    return y, x * 2


@IN_EVERY_MODE
@pytest.mark.parametrize("grad", [True, False])
def test_without_gradients_forward_is_in_the_graph(grad: bool, mode: str) -> None:
    captured, recorder, options = captured_with(scaled, breaks_at=MODES[mode])
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            assert same(captured(torch.ones(2)), scaled(torch.ones(2)))
    if MODES[mode] is None:
        assert not options.breaks
        assert "mul" in recorder.targets


@each_of(scaled, identity, dirty, dirty_elsewhere, of_class)
@pytest.mark.parametrize("requires_grad", [True, False])
def test_arguments_that_are_given_back_or_written(program: Any, requires_grad: bool) -> None:
    captured, _, _ = captured_with(program)
    for _ in range(2):
        ours, theirs = (torch.ones(2, requires_grad=requires_grad) * 1 for _ in range(2))
        assert same(captured(ours), program(theirs))


def test_gradients_are_those_of_its_backward() -> None:
    captured, _, options = captured_with(scaled)
    x = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(captured(x)[0].sum(), x)
    assert gradient.tolist() == [30, 30]
    assert not options.breaks


def test_an_instance_has_its_classs_apply() -> None:
    captured, _, _ = captured_with(of_instance, fullgraph=True)
    for requires_grad in (True, False):
        ours, theirs = (torch.ones(2, requires_grad=requires_grad) for _ in range(2))
        assert same(captured(ours), of_class(theirs))
