"""The submodule `_guards_fn` of an exported program's module: what it checks, in whose words, and what tracers make of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from refimpl.export import Dim, export
from refimpl.export.errors import InputMismatch
from refimpl.tests.export.forms import STRICT

aten = torch.ops.aten


class Add(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Halves(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y[1::2]


def batched(low: int | None = None, high: int | None = None) -> Any:
    batch = Dim("batch", min=low, max=high)
    return {0: batch}, {0: batch}


@STRICT
def test_the_graph_calls_the_guards_after_its_inputs(strict: bool) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    program = export(Scaled(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("n")},), strict=strict)
    module: Any = program.module()
    assert [(node.op, node.name) for node in module.graph.nodes][:3] == [
        ("get_attr", "scale"), ("placeholder", "x"), ("call_module", "_guards_fn"),
    ]  # fmt: skip
    unchecked: Any = program.module(check_guards=False)
    assert "_guards_fn" not in [node.name for node in unchecked.graph.nodes]
    x = torch.randn(5, 4)
    torch.testing.assert_close(module(x), x)
    torch.testing.assert_close(copy.deepcopy(module)(x), x)


@pytest.mark.parametrize(
    ("shapes", "given", "said"),
    [
        (batched(3, 9), ((10, 4), (10, 4)), "Guard failed: x.size()[0] <= 9"),
        (batched(3, 9), ((2, 4), (2, 4)), "Guard failed: x.size()[0] >= 3"),
        (batched(), ((4, 4), (5, 4)), "Guard failed: y.size()[0] == x.size()[0]"),
        (batched(), ((4, 5), (4, 5)), "Guard failed: x.size()[1] == 4"),
        (None, ((4, 4), (3, 4)), "Guard failed: x.size()[0] == 3"),
    ],
)
def test_a_size_that_does_not_fit_is_named(shapes: Any, given: Any, said: str) -> None:
    module = export(Add(), (torch.randn(3, 4), torch.randn(3, 4)), dynamic_shapes=shapes).module()
    with pytest.raises(AssertionError) as raised:
        module(*map(torch.randn, given))
    assert str(raised.value).startswith(said)


def test_derived_sizes_are_compared_in_terms_of_the_inputs() -> None:
    root = Dim("root", min=3, max=6)
    direct = export(Halves(), (torch.randn(5), torch.randn(11)), dynamic_shapes=({0: root}, {0: 2 * root + 1})).module()
    assert direct(torch.randn(4), torch.randn(9)).shape == (4,)
    with pytest.raises(InputMismatch, match=r"Guard failed: 1 \+ 2 \* x.size\(\)\[0\] == y.size\(\)\[0\]"):
        direct(torch.randn(4), torch.randn(8))

    class Shifted(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x[1:] + y[1::2]

    hidden = export(
        Shifted(), (torch.randn(6), torch.randn(11)), dynamic_shapes=({0: root + 1}, {0: 2 * root + 1})
    ).module()
    assert hidden(torch.randn(5), torch.randn(9)).shape == (4,)
    with pytest.raises(InputMismatch, match=r"Guard failed: x.size\(\)\[0\] <= 7"):
        hidden(torch.randn(8), torch.randn(15))
    with pytest.raises(InputMismatch, match=r"Guard failed: -1 \+ 2 \* x.size\(\)\[0\] == y.size\(\)\[0\]"):
        hidden(torch.randn(5), torch.randn(8))


def test_a_derived_size_is_compared_with_the_first_of_the_same_form() -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return x + y[1:] + z

    root = Dim("root", min=5, max=7)
    shapes = ({0: root - 1}, {0: root}, {0: root + 2 - 3})
    module = export(Sum(), (torch.ones(5), torch.ones(6), torch.ones(5)), dynamic_shapes=shapes).module()
    assert module(torch.ones(6), torch.ones(7), torch.ones(6)).shape == (6,)
    with pytest.raises(InputMismatch, match=r"Guard failed: z.size\(\)\[0\] == x.size\(\)\[0\]; it is 5"):
        module(torch.ones(6), torch.ones(7), torch.ones(5))


def test_another_dtype_or_constant_is_refused() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, factor: float, mode: str) -> torch.Tensor:
            return x * factor

    module = export(Scaled(), (torch.ones(2), 1.5, "a")).module()
    for wrong, said in (
        ((torch.ones(2).double(), 1.5, "a"), "x.dtype"),
        ((torch.ones(2), 2.5, "a"), "factor == 1.5"),
        ((torch.ones(2), 1.5, "b"), "mode == 'a'"),
    ):
        with pytest.raises(InputMismatch, match=said):
            module(*wrong)


def test_a_compiler_of_torch_traces_the_guards() -> None:
    module = export(Add(), (torch.randn(3, 4), torch.randn(3, 4)), dynamic_shapes=batched()).module()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    x = torch.randn(5, 4)
    torch.testing.assert_close(compiled(x, x), x + x)
    torch._dynamo.reset()


def test_a_smaller_slice_may_be_assigned() -> None:
    class Filled(nn.Module):
        def forward(self, x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            x[:, : part.shape[1]] = part
            return x

    program = export(
        Filled(), (torch.randn(2, 4), torch.randn(2, 3)), dynamic_shapes=({1: Dim("whole")}, {1: Dim("part")})
    )
    x, part = torch.randn(2, 9), torch.randn(2, 2)
    torch.testing.assert_close(program.module()(x, part), Filled()(x, part))
    torch.testing.assert_close(program.run_decompositions().module()(x, part), Filled()(x, part))
    with pytest.raises(InputMismatch, match=r"b?part.size\(\)\[1\] <= x.size\(\)\[1\]"):
        program.module()(part, x)


@pytest.mark.parametrize(("extreme", "fitting", "other"), [(torch.sym_max, 9, 8), (torch.sym_min, 2, 3)])
def test_a_guard_compares_the_extreme_of_three_sizes(extreme: Any, fitting: int, other: int) -> None:
    class Extreme(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            torch._check(w.shape[0] == extreme(extreme(x.shape[0], y.shape[0]), z.shape[0]))
            return w + 1

    sizes = [{0: Dim.DYNAMIC}] * 4
    inputs = tuple(torch.ones(size) for size in (4, 3, 5, extreme(extreme(4, 3), 5)))
    runnable = export(Extreme(), inputs, dynamic_shapes=tuple(sizes)).module()
    given = [torch.ones(size) for size in (2, 9, 7)]
    assert runnable(*given, torch.ones(fitting)).tolist() == [2.0] * fitting
    with pytest.raises((InputMismatch, RuntimeError)):
        runnable(*given, torch.ones(other))


def test_a_convolution_does_not_bound_its_batch() -> None:
    program = export(nn.Conv2d(3, 4, 3), (torch.randn(2, 3, 8, 8),), dynamic_shapes=({0: Dim.DYNAMIC},))
    assert program.module()(torch.randn(17, 3, 8, 8)).shape == (17, 4, 6, 6)


def test_conversions_assert_what_they_convert() -> None:
    class Converted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.to(torch.float32)
            return y.add_(1)

    program = export(Converted(), (torch.ones(2),))
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets == [aten._assert_tensor_metadata.default, aten.to.dtype, aten.add_.Tensor]
    for made in (program, program.run_decompositions()):
        x = torch.zeros(2)
        torch.testing.assert_close(made.module()(x), torch.ones(2))
        torch.testing.assert_close(x, torch.ones(2))
        with pytest.raises(RuntimeError, match="Tensor dtype mismatch"):
            made.module()(torch.zeros(2).double())
    with pytest.raises(RuntimeError, match="Tensor dtype mismatch"):  # the assertion of the graph itself
        program.module(check_guards=False)(torch.zeros(2).double())


def test_nodes_say_where_they_are_from() -> None:
    program = export(nn.Linear(2, 2), (torch.ones(1, 2),))
    module: Any = program.module()
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_function"):
            source = node.meta["from_node"][-1]
            copied = source.from_node[-1] if node.op == "get_attr" else source
            assert (copied.pass_name, copied.graph_id) == ("ExportedProgram.module()", id(program.graph))
