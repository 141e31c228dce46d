"""Tensors that get more memory or other memory: what shares it, what it holds, and what the caller sees of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from refimpl.aot.aot_function import aot_function
from refimpl.pipeline import compile_aot

Program = Callable[..., Any]


def owners(tensors: Sequence[Tensor]) -> list[int]:
    """Of each tensor, the first that is in the same storage."""
    keys = [tensor.untyped_storage()._cdata for tensor in tensors]
    return [keys.index(key) for key in keys]


def leaves(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


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
