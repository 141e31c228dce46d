"""Tensors that get more memory or other memory: what shares it, what it holds, and what the caller sees of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from refimpl.aot_entry_points import aot_function
from refimpl.pipeline import compile_aot

Program = Callable[..., Any]


def owners(tensors: Sequence[Tensor]) -> list[int]:
    """Of each tensor, the first that is in the same storage."""
    keys = [tensor.untyped_storage()._cdata for tensor in tensors]
    return [keys.index(key) for key in keys]


def leaves(result: Any) -> list[Tensor]:
    results = result if isinstance(result, tuple) else (result,)
    return [r for r in results if r is not None]


def seen(program: Program, make: Callable[[], tuple[list[Tensor], list[Tensor]]]) -> dict[str, Any]:
    """All that a caller can see of a call: values, who shares memory with whom, and flags. `make` gives roots and arguments."""
    roots, arguments = make()
    results = leaves(program(*arguments))
    tensors = [*roots, *arguments, *results]
    return {
        "values": [t.detach().clone().tolist() for t in tensors],
        "geometry": [(t.shape, t.stride(), t.storage_offset()) for t in tensors],
        "owners": owners(tensors),
        "requires_grad": [t.requires_grad for t in tensors],
        "is_inference": [t.is_inference() for t in tensors],
    }


def assert_as_eager(program: Program, make: Callable[[], tuple[list[Tensor], list[Tensor]]]) -> None:
    __tracebackhide__ = True
    actual, expected = seen(compile_aot(program), make), seen(program, make)
    for what, value in expected.items():
        assert actual[what] == value, f"{what}: {actual[what]}, but should be {value}"


def matrix() -> tuple[list[Tensor], list[Tensor]]:
    return [], [torch.arange(4.0).view(2, 2)]


def row_and_whole() -> tuple[list[Tensor], list[Tensor]]:
    root = torch.arange(6.0).view(3, 2)
    return [root], [root[1], root]


def column() -> tuple[list[Tensor], list[Tensor]]:
    root = torch.arange(8.0).view(4, 2)
    return [root], [root[:, 1]]


# ------------------------------------------------------------------------------------------------------------ more memory


def made_larger(a: Tensor) -> Tensor:
    return a.resize_(6).fill_(3)


def written_then_made_larger(a: Tensor) -> Tensor:
    a.mul_(2)
    return a.resize_(6).fill_(3)[1:]


def made_larger_twice(a: Tensor) -> Tensor:
    a.resize_(3)
    a.resize_(6).fill_(2)
    a.resize_(9).fill_(1)
    return a.as_strided_((3,), (2,), 0)


def made_larger_through_a_view(a: Tensor) -> Tensor:
    a.reshape(1, -1).resize_(14).fill_(1)
    return a + 1


def view_from_before(a: Tensor) -> tuple[Tensor, Tensor]:
    v = a[:, 0]
    a.resize_(10).fill_(-1)
    return v, v * 2


def larger_for_a_while(a: Tensor) -> tuple[Tensor, Tensor]:
    a.resize_(10).fill_(-1)
    v = a[6:]
    a.resize_(2)
    return v, a


def own_memory_made_larger(a: Tensor) -> tuple[Tensor, Tensor]:
    b = a + 1
    v = b[:, 1:]
    w = b.view(-1)
    w.resize_(9).fill_(5)
    b[0, 0] = 0
    return v, w


def put_elsewhere_then_larger(a: Tensor) -> Tensor:
    b = torch.zeros(2)
    b.set_(a.detach().clone())  # pyright: ignore[reportArgumentType]
    b.resize_(8).fill_(7)
    return b


LARGER: tuple[Program, ...] = (
    made_larger, written_then_made_larger, made_larger_twice, made_larger_through_a_view, view_from_before, larger_for_a_while,
    own_memory_made_larger, put_elsewhere_then_larger,
)  # fmt: skip


@pytest.mark.parametrize("program", LARGER)
def test_memory_made_larger_is_larger_for_all_who_see_it(program: Program) -> None:
    assert_as_eager(program, matrix)


def test_a_part_made_larger_reaches_into_the_rest() -> None:
    def within(a: Tensor, b: Tensor) -> Tensor:
        a.resize_(4).fill_(-1)
        return b[:, :1]

    def beyond(a: Tensor, b: Tensor) -> Tensor:
        a.resize_(9).fill_(-1)
        return b * 2

    assert_as_eager(within, row_and_whole)
    assert_as_eager(beyond, row_and_whole)
    assert_as_eager(lambda b: b.resize_(4).fill_(1.5), column)


# ----------------------------------------------------------------------------------------------------------- other memory


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
        actual, expected = seen(in_inference_mode(compiled), make), seen(in_inference_mode(program), make)
        assert actual == expected


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

    assert_as_eager(program, make)


def gradient(program: Program, *, is_leaf: bool) -> list[Any]:
    leaf = torch.arange(1.0, 5.0).view(2, 2).requires_grad_()
    argument = leaf if is_leaf else leaf * 2
    results = leaves(program(argument))
    loss = sum((result * result.detach().cos()).sum() for result in results if result.requires_grad)
    assert isinstance(loss, Tensor)
    loss.backward()
    assert leaf.grad is not None
    return [leaf.grad.tolist(), [r.tolist() for r in results], [r.requires_grad for r in results], argument.tolist()]


def computed_then_put_elsewhere(a: Tensor) -> Tensor:
    v = a.sigmoid()
    v.data = a.detach()
    return v


def put_elsewhere_then_computed(a: Tensor) -> Tensor:
    v = a.sin()
    v.data = a.detach() * 2
    return v * v


def view_of_what_was_put_elsewhere(a: Tensor) -> tuple[Tensor, Tensor]:
    v = a.exp()
    w = v[:1]
    v.data = a.detach() * 2
    return w, v


def put_in_a_part_of_itself(a: Tensor) -> Tensor:
    v = a[1:]
    a.data = v.detach()
    return v


def written_after_a_view_was_put_elsewhere(a: Tensor) -> Tensor:
    b = a * 1
    v = b[:, :1]
    w = v.view(-1)
    v.data = torch.ones(1, 2)
    b.mul_(3)
    return v + w.sum()


def part_of_a_view_that_was_put_elsewhere(a: Tensor) -> tuple[Tensor, Tensor]:
    b = a * 1
    v = b.view_as(b)
    v.data = v[::2].detach()
    w = v[0:]
    w.mul_(3)
    return v, b


def put_elsewhere_after_it_was_saved(a: Tensor) -> Tensor:
    v = a.view(-1)
    w = v.sin()
    v.data = w.detach()
    return w


def put_elsewhere_and_made_larger(a: Tensor) -> tuple[Tensor, Tensor]:
    v = torch.zeros(2)
    v.data = a.detach()
    v.resize_(2, 2).fill_(0.5)
    return v, a * 3


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize(
    "program",
    [
        computed_then_put_elsewhere,
        put_elsewhere_then_computed,
        view_of_what_was_put_elsewhere,
        put_in_a_part_of_itself,
        written_after_a_view_was_put_elsewhere,
        part_of_a_view_that_was_put_elsewhere,
        put_elsewhere_after_it_was_saved,
        put_elsewhere_and_made_larger,
    ],
)
def test_gradients_do_not_notice_that_a_tensor_is_put_elsewhere(program: Program, is_leaf: bool) -> None:
    assert gradient(compile_aot(program), is_leaf=is_leaf) == gradient(program, is_leaf=is_leaf)


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
