"""Dynamic shapes found from several examples, shapes of integers, fixes applied to shapes, and sizes of 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental import _config as symbolic_settings

from refimpl.export import AdditionalInputs, Dim, ShapesCollection, draft_export, export, register_dataclass
from refimpl.export.errors import InputMismatch
from refimpl.export.shapes.additional_inputs import IntWrapper
from refimpl.export.shapes.refining import refine_dynamic_shapes_from_suggested_fixes
from refimpl.tests.export.forms import STRICT


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, n: Any, k: torch.Tensor | None = None) -> torch.Tensor:
        return x * n


@STRICT
def test_sizes_and_integers_that_differ_are_dynamic(strict: bool) -> None:
    more = AdditionalInputs()
    more.add((torch.randn(5, 4), 7))
    given = torch.randn(3, 4), 6
    assert more.dynamic_shapes(Scaled(), given) == {"x": (Dim.DYNAMIC, None), "n": Dim.DYNAMIC}
    program = export(Scaled(), given, dynamic_shapes=more, strict=strict)
    x = torch.randn(8, 4)
    torch.testing.assert_close(program.module()(x, 9), x * 9)
    more.verify(program)
    more.add((torch.randn(5, 3), 7))
    with pytest.raises(RuntimeError, match=r"x.size\(\)\[1\] == 4"):
        more.verify(program)


def test_export_refuses_a_program_that_does_not_take_an_additional_example() -> None:
    more = AdditionalInputs()
    more.add((torch.randn(3), torch.randn(12)))
    given = torch.randn(8), torch.randn(12)
    with pytest.raises(InputMismatch, match=r"x.size\(\)\[0\] >= 6; it is 3"):
        export(Bounded(), given, dynamic_shapes=more)
    with pytest.raises(InputMismatch, match="it is 3"):
        draft_export(Bounded(), given, dynamic_shapes=more)


def test_additional_examples_may_order_and_pass_arguments_as_calls_may() -> None:
    more = AdditionalInputs()
    more.add((torch.randn(5),), {"y": torch.randn(9)})
    by_place = export(Related(), (torch.randn(4), torch.randn(8)), dynamic_shapes=more).module()
    more = AdditionalInputs()
    more.add((), {"y": torch.randn(9), "x": torch.randn(5)})
    named = export(Related(), (), {"x": torch.randn(4), "y": torch.randn(8)}, dynamic_shapes=more).module()
    x, y = torch.randn(6), torch.randn(10)
    assert torch.equal(by_place(x, y=y), Related()(x, y))
    assert torch.equal(named(x=x, y=y), Related()(x, y))


def test_examples_that_differ_otherwise_are_refused() -> None:
    more = AdditionalInputs()
    more.add((torch.randn(3), "b"))
    with pytest.raises(ValueError, match=r"they cannot be marked as dynamic: \('a', 'b'\)"):
        more.dynamic_shapes(Scaled(), (torch.randn(3), "a"))
    with pytest.raises(ValueError, match=r"differing types, so they cannot be marked as dynamic: \(1, 'b'\)"):
        more.dynamic_shapes(Scaled(), (torch.randn(3), 1))
    with pytest.raises(AssertionError, match="a tuple"):
        more.add(torch.randn(3))  # type: ignore[arg-type]


def test_an_integer_has_a_shape_by_its_wrapper() -> None:
    wrapped = IntWrapper(5)
    shapes = ShapesCollection()
    shapes[wrapped] = Dim.DYNAMIC
    program = export(Scaled(), (torch.ones(3), wrapped), dynamic_shapes=shapes)
    torch.testing.assert_close(program.module()(torch.ones(3), 9), torch.full((3,), 9.0))


@dataclass
class Settings:
    is_on: bool
    count: int
    values: torch.Tensor


class Set(nn.Module):
    def forward(self, settings: Settings) -> torch.Tensor:
        return settings.values * settings.count


def test_the_shapes_of_an_object_s_children_are_a_list() -> None:
    register_dataclass(Settings)
    given = Settings(True, 3, torch.ones(3))
    more = AdditionalInputs()
    more.add((Settings(True, 4, torch.ones(4)),))
    assert more.dynamic_shapes(Set(), (given,)) == {"settings": [None, Dim.DYNAMIC, (Dim.DYNAMIC,)]}
    program = export(Set(), (given,), dynamic_shapes=more)
    assert program.module()(Settings(True, 7, torch.ones(5))).tolist() == [7.0] * 5
    shapes = ShapesCollection()
    shapes[given.values] = {0: Dim.DYNAMIC}
    assert shapes.dynamic_shapes(Set(), (given,)) == {"settings": [None, None, {0: Dim.DYNAMIC}]}


class Bounded(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] >= 6 and y.shape[0] <= 16 else x


class Related(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y[4:]


class Halved(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 2).sum(1) + y


class Tripled(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 3)


class Fixed(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.view(6) + y[1:]


@pytest.mark.parametrize(
    ("module", "sizes"),
    [(Bounded(), (16, 12)), (Related(), (6, 10)), (Tripled(), (15, 4)), (Halved(), (8, 4)), (Fixed(), (6, 7))],
)
def test_refined_shapes_are_exported(module: nn.Module, sizes: tuple[int, int]) -> None:
    given = tuple(map(torch.randn, sizes))
    shapes: Any = {"x": (Dim("dx"),), "y": (Dim("dy"),)}
    if isinstance(module, Fixed):
        root = Dim("dx")
        shapes = {"x": (root,), "y": (root + 1,)}
    with pytest.raises(RuntimeError, match="Suggested fixes") as raised:
        export(module, given, dynamic_shapes=shapes)
    refined = refine_dynamic_shapes_from_suggested_fixes(str(raised.value), shapes)
    program = export(module, given, dynamic_shapes=refined)
    torch.testing.assert_close(program.module()(*given), module(*given))
    with pytest.raises(AssertionError, match="suggested fixes"):
        refine_dynamic_shapes_from_suggested_fixes("no message", shapes)


def test_sizes_of_0_and_1_are_dynamic_if_torch_is_told_so() -> None:
    class Sliced(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.stack([x[:-1]] * 3, 0).reshape(-1, 3, 4)

    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    shapes = {"x": {0: Dim.DYNAMIC}, "y": {0: Dim.DYNAMIC}}
    with pytest.raises(ValueError, match=r"hint of 1 for dimension inputs\['x'\].shape\[0\]"):
        export(Sum(), (torch.randn(1, 4), torch.randn(1, 4)), dynamic_shapes=shapes)
    settings: Any = symbolic_settings
    with settings.patch(backed_size_oblivious=True):
        total = export(Sum(), (torch.randn(1, 4), torch.randn(1, 4)), dynamic_shapes=shapes).module()
        sliced = export(Sliced(), (torch.randn(10, 4), torch.randn(3, 4)), dynamic_shapes=shapes).module()
        assert settings.backed_size_oblivious
    for size in (0, 1, 2):
        x = torch.randn(size, 4)
        torch.testing.assert_close(total(x, x), x + x)
    for size in (2, 7):
        x = torch.randn(size, 4)
        torch.testing.assert_close(sliced(x, x), Sliced()(x, x))
    with pytest.raises(InputMismatch):
        total(torch.randn(2, 4), torch.randn(3, 4))


def test_kernels_of_torch_take_sizes_of_1_that_vary() -> None:
    class Writing(nn.Module):
        buffer: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("buffer", torch.zeros(10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.buffer[: x.shape[0]] = x
            return self.buffer * 2

    class Product(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.baddbmm(torch.ones(3, 1, 4), x.expand(3, -1, 2), torch.ones(3, 2, 4))

    settings: Any = symbolic_settings
    sizes = Dim("n", min=1, max=10)
    with settings.patch(backed_size_oblivious=True):
        writing = export(Writing(), (torch.randn(10),), dynamic_shapes={"x": {0: sizes}})
        product = export(Product(), (torch.randn(3, 1, 2),), dynamic_shapes={"x": {1: sizes}})
        decomposed = product.run_decompositions()
    for size in (1, 9):
        x = torch.randn(size)
        torch.testing.assert_close(writing.module()(x), Writing()(x))
        x = torch.randn(3, size, 2)
        for program in (product, decomposed):
            torch.testing.assert_close(program.module()(x), Product()(x))


def test_a_draft_describes_operators_without_fake_kernels() -> None:
    with torch.library._scoped_library("refimpl_profiles", "FRAGMENT") as library:
        library.define("combined(Tensor a, Tensor b) -> Tensor")
        library.impl("combined", lambda a, b: a + b, "CPU")

        class Calling(nn.Module):
            def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
                return torch.ops.refimpl_profiles.combined(a, b) * 2

        program = draft_export(Calling(), (torch.ones(2, 3), torch.ones(2, 3)))
        assert program.report is not None
        ((name, (profile,)),) = program.report.op_profiles.items()
        assert name == "refimpl_profiles.combined.default"
        assert [argument.rank for argument in profile.args_profile] == [2, 2]
        assert profile.out_profile.dtype == torch.float32
