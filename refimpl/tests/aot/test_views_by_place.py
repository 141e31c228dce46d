"""Gradients of views where the program changes the geometry of what they view, or their own, in place: those of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from refimpl.pipeline import compile_aot

Program = Callable[[Tensor], Any]


def viewed_is_transposed(a: Tensor) -> Any:
    v = a.expand_as(a)
    a.swapaxes_(1, 0)
    return v[1:], a * v.clone().t()


def viewed_becomes_a_part(a: Tensor) -> Any:
    v = a[:, :-1]
    a.as_strided_((3,), (1,), 0)
    return v * 2


def viewed_becomes_a_part_and_is_written(a: Tensor) -> Any:
    v = a.flatten()
    a.as_strided_((3,), (2,), 0)
    a.mul_(3)
    return v.sin(), a


def view_becomes_a_part(a: Tensor) -> Any:
    v = a[0]
    v.as_strided_((2,), (2,), 0)
    v.sub_(1.5)
    return v + 3, a * 2


def view_is_transposed_and_written(a: Tensor) -> Any:
    v = a[:, 1:]
    v.t_()
    v.mul_(2)
    return v, a.cos()


def view_of_a_view(a: Tensor) -> Any:
    v = a.view(-1)
    w = v.unflatten(0, (-1, 2))
    v.unsqueeze_(0)
    w.mul_(3)
    v.squeeze_()
    return w.sin(), v, a


PROGRAMS: tuple[Program, ...] = (
    viewed_is_transposed, viewed_becomes_a_part, viewed_becomes_a_part_and_is_written, view_becomes_a_part,
    view_is_transposed_and_written, view_of_a_view,
)  # fmt: skip


def gradient(program: Program) -> Any:
    leaf = torch.arange(1.0, 9.0).view(2, 4).requires_grad_()
    argument = leaf * 1
    results = program(argument)
    results = results if isinstance(results, tuple) else (results,)
    weights = torch.arange(1.0, 20.0)
    loss = sum((r * weights[: r.numel()].view(r.shape)).sum() for r in (*results, argument))
    assert isinstance(loss, Tensor)
    (found,) = torch.autograd.grad(loss, leaf)
    return found.tolist(), [r.tolist() for r in results], argument.tolist(), argument.stride()


@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_are_those_of_plain_tensors(program: Program) -> None:
    assert gradient(compile_aot(program)) == gradient(program)


def test_a_view_of_a_leaf_cannot_be_changed_in_place() -> None:
    def program(a: Tensor) -> Tensor:
        v = a[0]
        v.unsqueeze_(0)
        return v * 2

    with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
        program(torch.ones(2, 2, requires_grad=True))
    with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
        compile_aot(program)(torch.ones(2, 2, requires_grad=True))


WINDOWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty windows": lambda x: x.unfold(0, 0, 2),
    "windows that overlap": lambda x: x.unfold(0, 2, 1),
    "strides that overlap": lambda x: x.as_strided((2, 2), (1, 1)),
    "windows of columns": lambda x: x.unfold(1, 2, 2),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_what_is_written_by_place_lies_in_memory_as_before(name: str, *, dynamic: bool) -> None:
    """Random numbers are drawn in the order of memory, and results laid out like it."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        WINDOWS[name](x).zero_()
        return torch.rand_like(x), x + 1, torch.randint_like(x, 9)

    found = []
    for function in (program, compile_aot(program, dynamic=dynamic)):
        x = torch.arange(12.0).view(3, 4).t()
        torch.manual_seed(0)
        found.append((*function(x), x))
    for expected, result in zip(*found, strict=True):
        assert result.stride() == expected.stride()
        assert torch.equal(result, expected)
