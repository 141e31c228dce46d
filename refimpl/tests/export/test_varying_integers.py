"""Integers among the inputs that vary: symbols in both modes, wherever they are, and whatever becomes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from refimpl.capture.public.errors import UserError
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export import Dim, export, register_dataclass
from refimpl.export.errors import InputMismatch
from refimpl.tests.export.forms import STRICT

X = torch.arange(12.0).reshape(4, 3)


class Counting(nn.Module):
    """The integer is a factor, a size, a bound of a slice, and a result."""

    def forward(self, x: torch.Tensor, n: int) -> Any:
        return x[:n] * n + torch.ones(n, 1).sum(), n, n * 2 + x.shape[0]


class Nested(nn.Module):
    """The integers are in containers, and by name."""

    def forward(self, x: torch.Tensor, *rest: Any, last: int, deep: dict[str, Any]) -> torch.Tensor:
        return x * rest[0] + last * deep["k"][1] + deep["fixed"]


@STRICT
def test_what_is_computed_of_an_integer_follows_it(strict: bool) -> None:
    program = export(Counting(), (X, 3), dynamic_shapes={"x": None, "n": Dim("n", min=2, max=4)}, strict=strict)
    for n in (2, 3, 4):
        result, expected = program.module()(X, n), Counting()(X, n)
        assert torch.equal(result[0], expected[0])
        assert result[1:] == expected[1:]
    for wrong, said in ((5, "n <= 4; it is 5"), (2.5, "an int")):
        with pytest.raises(InputMismatch, match=said):
            program.module()(X, wrong)


@STRICT
def test_integers_in_containers_vary_one_by_one(strict: bool) -> None:
    said = {"x": None, "rest": (Dim.AUTO,), "last": Dim.DYNAMIC, "deep": {"k": [None, Dim.AUTO], "fixed": None}}
    program = export(
        Nested(), (X, 5), {"last": 6, "deep": {"k": [7, 8], "fixed": 9}}, dynamic_shapes=said, strict=strict
    )
    for given in ((2, 3, 4), (5, 6, 8), (8, 8, 8)):
        kwargs = {"last": given[1], "deep": {"k": [7, given[2]], "fixed": 9}}
        assert torch.equal(program.module()(X, given[0], **kwargs), Nested()(X, given[0], **kwargs))
    with pytest.raises(InputMismatch, match="== 9; it is 8"):
        program.module()(X, 5, last=6, deep={"k": [7, 8], "fixed": 8})


@STRICT
def test_an_integer_that_only_comes_back_varies(strict: bool) -> None:
    class Handing(nn.Module):
        def forward(self, x: torch.Tensor, n: int, m: int) -> Any:
            return x + 1, n

    program = export(
        Handing(), (X, 3, 4), dynamic_shapes={"x": None, "n": Dim.DYNAMIC, "m": Dim.DYNAMIC}, strict=strict
    )
    assert program.module()(X, 9, 10)[1] == 9


@STRICT
def test_a_branch_on_a_promised_integer_is_refused(strict: bool) -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            return x * n if n > 5 else x

    with pytest.raises(UserError, match=r"n"):
        export(Branching(), (X, 3), dynamic_shapes={"x": None, "n": Dim("n", min=2, max=9)}, strict=strict)
    program = export(Branching(), (X, 3), dynamic_shapes={"x": None, "n": Dim.AUTO}, strict=strict)
    assert torch.equal(program.module()(X, 5), X)
    with pytest.raises(InputMismatch, match="5"):
        program.module()(X, 6)


@dataclass
class Held:
    """An integer in a container of the user's."""

    x: torch.Tensor
    n: int


register_dataclass(Held, serialized_type_name="refimpl.tests.export.test_varying_integers.Held")


class Holding(nn.Module):
    """Reads an integer out of a container."""

    def forward(self, held: Any) -> torch.Tensor:
        return held.x * held.n


@STRICT
def test_an_integer_in_a_dataclass_varies(strict: bool) -> None:
    program = export(Holding(), (Held(X, 3),), dynamic_shapes=([None, Dim.DYNAMIC],), strict=strict)
    assert torch.equal(program.module()(Held(X, 5)), X * 5)


class Packed:
    """A container whose keys are not the way to what it holds."""

    def __init__(self, x: torch.Tensor, n: int) -> None:
        self.inside = (x, n)


def _with_keys(held: Packed) -> tuple[list[tuple[Any, Any]], Any]:
    return [(pytree.MappingKey("x"), held.inside[0]), (pytree.MappingKey("n"), held.inside[1])], None


pytree.register_pytree_node(
    Packed,
    lambda held: (list(held.inside), None),
    lambda leaves, _: Packed(*leaves),
    serialized_type_name="refimpl.tests.export.test_varying_integers.Packed",
    flatten_with_keys_fn=_with_keys,
)


def test_an_integer_that_capture_reads_by_another_way_is_refused() -> None:
    class Unpacking(nn.Module):
        def forward(self, held: Packed) -> torch.Tensor:
            return held.inside[0] * held.inside[1]

    program = export(Unpacking(), (Packed(X, 3),), strict=True)  # a constant
    assert torch.equal(program.module()(Packed(X, 3)), X * 3)
    with pytest.raises(UnsupportedByRefimpl, match=r"L\['args'\]\[0\].inside\[1\] is an integer and no leaf"):
        export(Unpacking(), (Packed(X, 3),), dynamic_shapes=([None, Dim.DYNAMIC],), strict=True)


class Asking(nn.Module):
    """Its result depends on what it asks of the integer."""

    def __init__(self, asked: Any) -> None:
        super().__init__()
        self.asked = asked

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x + 1 if self.asked(n) else x - 1


@STRICT
@pytest.mark.parametrize(
    ("asked", "others", "zero"),
    [
        (lambda n: n >= 0, (-1,), (0,)),
        (lambda n: n >= 1, (0, -2), ()),
        (lambda n: n not in (0, 1), (0, 1), ()),
        (lambda n: abs(n) == n, (-1,), (0,)),
        (lambda n: n % 2 == 1 or n < 0, (4, -2), ()),
    ],
    ids=["not_negative", "positive", "other_numbers", "size", "odd"],
)
def test_an_integer_may_be_any_and_branches_on_it_are_checked(asked: Any, others: Any, zero: Any, strict: bool) -> None:
    module = Asking(asked)
    program = export(module, (X, 3), dynamic_shapes=(None, Dim.AUTO), strict=strict)
    for runnable in (program.module(), program.run_decompositions().module()):
        for n in (3, 5, *zero):
            assert torch.equal(runnable(X, n), module(X, n))
        for n in others:
            with pytest.raises(InputMismatch):
                runnable(X, n)


@STRICT
def test_a_negative_integer_is_computed_with(strict: bool) -> None:
    class Computing(nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> Any:
            return x * (n // 2), n % 3, n - 5, abs(n), n * n

    program = export(Computing(), (X, 3), dynamic_shapes=(None, Dim.DYNAMIC), strict=strict)
    for n in (-7, -1, 0, 1, 8):
        result, expected = program.module()(X, n), Computing()(X, n)
        assert torch.equal(result[0], expected[0])
        assert result[1:] == expected[1:]
