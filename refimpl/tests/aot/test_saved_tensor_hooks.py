"""Hooks on saved tensors around and inside of compiled calls: values, gradients, errors and how often the hooks run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import refimpl
from refimpl.tests.capture.capturing import each_of


def _compiled(function: Any, **options: Any) -> Callable[..., Any]:
    return refimpl.compile(function, backend="aot_eager", **options)


def _of_aot(function: Any) -> Callable[..., Any]:
    return refimpl.aot_function(function, lambda graph, _: graph, lambda graph, _: graph)


WAYS = pytest.mark.parametrize("way", [_compiled, _of_aot], ids=["compile", "aot_function"])


def _leaf(*shape: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(*shape, requires_grad=True)


def _run(function: Any, x: Tensor, hooks: Any = None) -> tuple[Tensor, Tensor]:
    with contextlib.nullcontext() if hooks is None else hooks:
        y = function(x)
    return y.detach(), torch.autograd.grad(y.sum(), x)[0]


def _assert_same(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)


def body(x: Tensor) -> Tensor:
    return (x.sin() * x).exp()


class Counted:
    """Hooks that count, and change what is saved and change it back."""

    def __init__(self) -> None:
        self.packed: list[tuple[int, ...]] = []
        self.unpacked = 0

    def __call__(self) -> saved_tensors_hooks:
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> Tensor:
        self.packed.append(tuple(tensor.shape))
        return tensor * 2

    def _unpack(self, tensor: Tensor) -> Tensor:
        self.unpacked += 1
        return tensor / 2


@WAYS
def test_what_is_packed_is_what_backward_computes_with(way: Any) -> None:
    x = _leaf(4)
    counted = Counted()
    _assert_same(_run(way(body), x, counted()), _run(body, x))
    assert counted.packed
    assert counted.unpacked == len(counted.packed)
    zeroed = saved_tensors_hooks(lambda t: t, torch.zeros_like)
    assert not _run(way(lambda x: x * x), x, zeroed)[1].any()


def test_hooks_that_lose_digits_change_the_gradient_alone() -> None:
    x = _leaf(4)
    expected = _run(body, x)
    hooks = saved_tensors_hooks(lambda t: t.to(torch.float16), lambda t: t.to(torch.float32))
    value, gradient = _run(_compiled(body), x, hooks)
    torch.testing.assert_close(value, expected[0])
    assert not torch.equal(gradient, expected[1])
    torch.testing.assert_close(gradient, expected[1], rtol=1e-2, atol=1e-2)


@WAYS
def test_a_product_saves_its_two_operands(way: Any) -> None:
    counted, x = Counted(), _leaf(4)
    with counted():
        way(lambda x, y: x * y)(x, _leaf(4))
    assert counted.packed == [(4,), (4,)]


def test_objects_may_take_the_place_of_tensors() -> None:
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> int:
        kept[len(kept)] = tensor.clone()
        return len(kept) - 1

    x = _leaf(4)
    _assert_same(_run(_compiled(body), x, saved_tensors_hooks(pack, kept.__getitem__)), _run(body, x))


def test_hooks_may_be_graphs() -> None:
    pack = refimpl.make_fx(lambda t: t.to(torch.float64))(torch.ones(4))
    unpack = refimpl.make_fx(lambda t: t.to(torch.float32))(torch.ones(4, dtype=torch.float64))
    x = _leaf(4)
    _assert_same(_run(_compiled(body), x, saved_tensors_hooks(pack, unpack)), _run(body, x))


def test_the_innermost_hooks_run() -> None:
    outer, inner, x = Counted(), Counted(), _leaf(4)
    with outer(), inner():
        y = _compiled(body)(x)
    _assert_same(torch.autograd.grad(y.sum(), x), _run(body, x)[1:])
    assert not outer.packed
    assert inner.packed


def test_hooks_of_a_later_call_run_in_it() -> None:
    counted, x = Counted(), _leaf(4)
    compiled = _compiled(body)
    _assert_same(_run(compiled, x), _run(body, x))
    _assert_same(_run(compiled, x, counted()), _run(body, x))
    assert counted.packed
    before = len(counted.packed)
    _assert_same(_run(compiled, x), _run(body, x))
    assert len(counted.packed) == before


def test_without_gradients_nothing_is_packed() -> None:
    counted, x = Counted(), _leaf(4)
    with torch.no_grad(), counted():
        torch.testing.assert_close(_compiled(body)(x), body(x))
    assert not counted.packed


@pytest.mark.parametrize("where", ["pack", "unpack"])
@WAYS
def test_an_error_of_a_hook_is_raised(way: Any, where: str) -> None:
    def fails(tensor: Tensor) -> Tensor:
        raise ValueError("not this one")

    hooks = {"pack": lambda t: t, "unpack": lambda t: t, where: fails}
    with pytest.raises(ValueError, match="not this one"):
        _run(way(body), _leaf(4), saved_tensors_hooks(hooks["pack"], hooks["unpack"]))


def changed_and_back(x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        return body(x)


def lost_in_a_part(x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t, torch.zeros_like):
        y = x * x
    return y + x.sin()


def on_the_processor(x: Tensor) -> Tensor:
    with save_on_cpu():
        return body(x)


def disabled(x: Tensor) -> Tensor:
    with disable_saved_tensors_hooks("not here"):
        return body(x)


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


def saved_by_a_function(x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t + 1, lambda t: t - 1):
        return _Cube.apply(x)


@each_of(changed_and_back, lost_in_a_part, on_the_processor, disabled, saved_by_a_function)
def test_hooks_inside_of_a_program_are_eager_s(program: Any) -> None:
    x = _leaf(4)
    _assert_same(_run(_compiled(program), x), _run(program, x))


@pytest.mark.parametrize(
    "make",
    [
        lambda: body,
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)),
        lambda: lambda x: checkpoint(body, x, use_reentrant=False) * 2,
        lambda: lambda x: body(x).view(-1) * x.shape[0],
    ],
    ids=["function", "module", "checkpoint", "sizes"],
)
@pytest.mark.parametrize("hooks", [lambda: Counted()(), save_on_cpu], ids=["counted", "save_on_cpu"])
def test_hooks_around_programs(make: Any, hooks: Any) -> None:
    function, x = make(), _leaf(3, 4)
    _assert_same(_run(_compiled(function), x, hooks()), _run(function, x))


def test_hooks_and_sizes_that_change() -> None:
    compiled = _compiled(lambda x: body(x).view(-1) * x.shape[0], dynamic=True)
    for size in (3, 5):
        x = _leaf(size, 2)
        _assert_same(_run(compiled, x, Counted()()), _run(lambda x: body(x).view(-1) * x.shape[0], x))
