"""Tensors that get more memory or other memory: what shares it, what it holds, and what the caller sees of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from refimpl.aot_entry_points import aot_function
from refimpl.pipeline import compile_aot
from refimpl.tests.corpus.compare import EVERYTHING, MakeFresh, assert_same, observe
from refimpl.tests.corpus.program import MakeInputs, computed, leaves

Program = Callable[..., Any]


def assert_as_eager(program: Program, make: MakeFresh, **options: Any) -> None:
    __tracebackhide__ = True
    assert_same(observe(program, make), observe(compile_aot(program), make), **options)


def two() -> tuple[list[Tensor], list[Tensor]]:
    return [], [torch.arange(4.0).view(2, 2), torch.arange(3.0)]


def parts() -> tuple[list[Tensor], list[Tensor]]:
    root = torch.arange(6.0)
    return [root], [root[:4].view(2, 2), root[3:]]


def set_to_the_other(a: Tensor, b: Tensor) -> None:
    a.set_(b.detach())  # pyright: ignore[reportArgumentType]
    a.mul_(2)


def exchanged(a: Tensor, b: Tensor) -> Tensor:
    kept = a.detach()
    a.data = b.detach()
    b.data = kept
    a.add_(10)
    b.sub_(10)
    return b.view(-1)


def written_before_it_moves(a: Tensor, b: Tensor) -> None:
    a.mul_(3)
    a.data = b.clone()


def written_after_it_has_moved(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    v = a[0]
    a.set_((b + 1).detach())  # pyright: ignore[reportArgumentType]
    v.fill_(7)
    a.fill_(8)
    return v, a


def result_and_argument_in_new_memory(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    v = a * 2
    b.set_(v.detach())  # pyright: ignore[reportArgumentType]
    return v[1:], b


def result_in_an_arguments_memory(a: Tensor, b: Tensor) -> Tensor:
    v = b.sin()
    v.data = a.detach()
    v.add_(1)
    return v


def set_to_one_number(a: Tensor, b: Tensor) -> Tensor:
    v = a[..., 1:].squeeze()
    a.set_(b.sum().detach())  # pyright: ignore[reportArgumentType]
    return v[::2]


def set_to_inference_memory_and_assigned(a: Tensor, b: Tensor) -> None:
    b.set_(a.detach().clone())  # pyright: ignore[reportArgumentType]
    a.data = b.detach()


MOVED: tuple[Program, ...] = (
    set_to_the_other, exchanged, written_before_it_moves, written_after_it_has_moved, result_and_argument_in_new_memory,
    result_in_an_arguments_memory, set_to_one_number, set_to_inference_memory_and_assigned,
)  # fmt: skip


@pytest.mark.fractional
@pytest.mark.parametrize("make", [two, parts])
@pytest.mark.parametrize("program", MOVED)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_tensors_in_other_memory_share_it_and_leave_the_old(program: Program, make: Any, mode: Any) -> None:
    with mode():
        arguments = make
        assert_as_eager(program, arguments)


@pytest.mark.parametrize("program", MOVED)
def test_normal_tensors_are_put_into_inference_memory(program: Program) -> None:
    """`.data = y` makes of a tensor what y is, `set_` does not."""

    def in_inference_mode(function: Program) -> Program:
        return torch.inference_mode()(function)

    compiled = compile_aot(program)
    for make in (two, parts):
        assert_same(observe(in_inference_mode(program), make), observe(in_inference_mode(compiled), make))


@pytest.mark.parametrize("is_put_by_set", [False, True])
def test_views_in_inference_mode_that_are_put_elsewhere_keep_their_flags(is_put_by_set: bool) -> None:
    def program(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        v = a.view(-1)
        w = b.view(-1)
        for t in (v, w):
            other = (b * 2).detach()
            if is_put_by_set:
                t.set_(other)  # pyright: ignore[reportArgumentType]
            else:
                t.data = other
        return v, w

    compiled = compile_aot(program)

    def flags(function: Program) -> list[Any]:
        a, b = torch.ones(2, 2, requires_grad=True), torch.ones(2)
        with torch.inference_mode():
            return [(t.requires_grad, t.is_inference(), t.tolist()) for t in function(a, b)]

    assert flags(compiled) == flags(program)


def test_a_view_of_an_argument_that_is_an_argument_is_put_elsewhere() -> None:
    def program(a: Tensor, b: Tensor, c: Tensor) -> None:
        a.data = b.detach()
        c.set_(a.detach().clone())  # pyright: ignore[reportArgumentType]
        a.add_(b)

    def make() -> tuple[list[Tensor], list[Tensor]]:
        root = torch.arange(4.0).view(2, 2).requires_grad_()
        base = root * 1
        return [root], [base, base[1:], base[:1]]

    # Both refuse the backward, in other words.
    parts = [part for part in EVERYTHING if part not in ("gradients", "refusals")]
    assert_as_eager(program, make, parts=parts)


@pytest.mark.parametrize("make", [leaves((2, 2)), computed((2, 2))], ids=["leaf", "computed"])
def test_a_tensor_is_put_elsewhere_after_autograd_has_saved_it(make: MakeInputs) -> None:
    """Only where nobody writes to the result: in eager mode such a write reaches what was saved."""

    def program(a: Tensor) -> Tensor:
        v = a.view(-1)
        w = v.sin()
        v.data = w.detach()
        return w

    assert_same(observe(program, lambda: make(True)), observe(compile_aot(program), lambda: make(True)))


def test_an_argument_that_got_a_history_and_another_shape_keeps_both() -> None:
    def reshaped(a: Tensor, b: Tensor) -> Tensor:
        a.as_strided_((4,), (2,), 0)
        a.data = b.detach()
        return a

    def written(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(3)
        v = a[1:]
        v.sin_()
        a.data = b.detach()[:1, :1]
        return v

    def run(function: Program) -> list[Any]:
        leaf = torch.arange(8.0).view(4, 2).requires_grad_()
        argument = leaf * 1
        result = function(argument, torch.arange(8.0).view(2, 4))
        (result * result.detach()).sum().backward()
        assert leaf.grad is not None
        return [leaf.grad.tolist(), argument.tolist(), result.tolist()]

    for program in (reshaped, written):
        assert run(compile_aot(program)) == run(program)


def test_a_view_of_a_leaf_is_put_elsewhere_beside_a_change_of_geometry() -> None:
    def program(a: Tensor, b: Tensor) -> Tensor:
        v = a * 1.5
        v.as_strided_((2,), (2,), 0)
        b.data = a.detach()
        return v

    def run(function: Program) -> list[Any]:
        leaf = torch.arange(8.0).view(4, 2).requires_grad_()
        a, b = leaf[2:], leaf[:2]
        function(a, b).sum().backward()
        assert leaf.grad is not None
        return [leaf.grad.tolist(), a.tolist(), b.tolist(), b.requires_grad]

    assert run(compile_aot(program)) == run(program)


def test_geometry_that_changes_without_gradients_is_written_without() -> None:
    def program(a: Tensor) -> None:
        a.mul_(0.5)
        a.as_strided_((2,), (2,), 0)

    compiled = compile_aot(program)

    def run(function: Program) -> list[Any]:
        leaf = torch.arange(4.0).view(2, 2).requires_grad_()
        a = leaf.unsqueeze(0)
        with torch.no_grad():
            function(a)
        return [a.tolist(), leaf.tolist()]

    assert run(compiled) == run(program)


def test_a_result_beside_one_with_a_history_in_the_same_memory_has_none() -> None:
    def program(a: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            v = a * 2
        w = a.exp()
        w.data = v
        return v, w

    leaf = torch.ones(2, requires_grad=True)
    v, w = compile_aot(program)(leaf)
    assert (v.requires_grad, w.requires_grad) == (False, True)
    assert v.untyped_storage()._cdata == w.untyped_storage()._cdata


def test_positions_are_right_where_other_writes_are_kept_in_the_graph() -> None:
    def program(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
        a.mul_(2)
        b.mul_(3)
        b.as_strided_((2,), (2,), 1)
        b.add_(1)
        c.resize_(5).fill_(4)
        return [a + 1]

    def run(function: Program) -> list[Any]:
        arguments = [torch.arange(2.0), torch.arange(4.0), torch.zeros(2)]
        whole = arguments[1].view(2, 2)
        return [t.tolist() for t in (*function(*arguments), *arguments, whole)]

    compiled = aot_function(program, fw_compiler=lambda gm, _: gm, keep_inference_input_mutations=True)
    assert run(compiled) == run(program)
