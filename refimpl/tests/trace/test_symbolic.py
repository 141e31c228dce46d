"""Tracing with symbolic sizes (rows PX of docs/contracts.md): one graph that is right at every size its guards admit."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv as TorchShapeEnv
from torch.fx.experimental.symbolic_shapes import bind_symbols, eval_guards

import refimpl
from refimpl.symbolic.fake_inputs import symbolic_fake_mode
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.tests.graphs import targets_of

aten = torch.ops.aten


def _trace(f: Callable[..., Any], *args: Any, **options: Any) -> torch.fx.GraphModule:
    return refimpl.make_fx(f, tracing_mode="symbolic", **options)(*args)


def _node(graph_module: torch.fx.GraphModule, target: object) -> torch.fx.Node:
    return next(node for node in graph_module.graph.nodes if node.target is target)


def test_a_size_that_nothing_uses_has_no_node() -> None:
    """PX-08"""
    assert targets_of(_trace(lambda x: x + 1, torch.ones(3, 4))) == [aten.add.Tensor]


def test_a_size_is_read_once_where_it_is_first_used() -> None:
    """PX-08, PX-12, PX-24"""
    graph_module = _trace(lambda x: (x.sin(), x.new_zeros(x.shape[0] * 2), x.view(x.shape[0], -1)), torch.ones(3, 4))
    assert targets_of(graph_module) == [
        aten.sin.default, aten.sym_size.int, operator.mul, aten.new_zeros.default, aten.view.default
    ]  # fmt: skip
    assert _node(graph_module, aten.view.default).args[1] == [_node(graph_module, aten.sym_size.int), -1]


def test_strides_and_offsets_are_read_from_the_tensor_that_has_them() -> None:
    """PX-09"""
    x = torch.ones(8, 11)[3:, ::2]  # no two of its sizes, strides and offset are equal
    graph_module = _trace(lambda x: (x.stride(0) + x.stride(0), x.storage_offset() + x.sin().sum()), x)
    assert [t for t in targets_of(graph_module) if t in (aten.sym_stride.int, aten.sym_storage_offset.default)] == [
        aten.sym_storage_offset.default, aten.sym_stride.int
    ]  # fmt: skip
    y = torch.ones(20, 30)[5:, :28:2]
    stride, total = graph_module(y)
    assert stride == 2 * y.stride(0)
    torch.testing.assert_close(total, y.sin().sum() + y.storage_offset())


def test_sizes_of_inputs_are_preferred_to_those_of_later_tensors() -> None:
    """PX-05: in the backward part of a joint graph, sizes come from the inputs of the forward part."""

    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        loss = (x @ weight).expand(2, -1, -1).sum()
        return torch.autograd.grad(loss, (x, weight))

    x, weight = torch.ones(3, 4, requires_grad=True), torch.ones(4, 5, requires_grad=True)
    graph_module = _trace(program, x, weight)
    readers = [n for n in graph_module.graph.nodes if n.target is aten.sym_size.int]
    assert {n.args[0].op for n in readers} <= {"placeholder"}
    x, weight = torch.randn(6, 7, requires_grad=True), torch.randn(7, 2, requires_grad=True)
    for actual, expected in zip(graph_module(x, weight), program(x, weight), strict=True):
        torch.testing.assert_close(actual, expected)


def test_a_number_made_while_tracing_was_disabled_cannot_be_used() -> None:
    """PX-05, PX-11, PX-31: nothing in the graph could say what it is."""
    env = ShapeEnv()
    foreign = env.create_unbacked_symint()
    with pytest.raises(RuntimeError, match="is not tracked with proxy"):
        _trace(lambda x: x + foreign, torch.ones(3))


def test_a_number_that_folded_is_an_argument_as_it_is() -> None:
    """PX-11"""

    def program(x: torch.Tensor) -> torch.Tensor:
        assert x.shape[0] == 3
        return x.new_zeros(x.shape[0])

    graph_module = _trace(program, torch.ones(3))
    assert _node(graph_module, aten.new_zeros.default).args[1] == [3]


def test_arithmetic_on_sizes_is_recorded_by_its_operators_and_times_one_is_not() -> None:
    """PX-32"""
    graph_module = _trace(lambda x: x.new_ones(x.shape[0] * 1 + 2), torch.ones(3))
    assert targets_of(graph_module) == [aten.sym_size.int, operator.add, aten.new_ones.default]
    assert not getattr(graph_module.shape_env, "guards")
    assert graph_module(torch.ones(6)).shape == (8,)


def test_kernels_compute_with_sizes_and_none_of_it_is_in_the_graph() -> None:
    """PX-29"""
    image, weight = torch.ones(2, 3, 8, 9), torch.ones(4, 3, 3, 3)
    graph_module = _trace(lambda x, w: F.conv2d(torch.cat([x, x]), w, padding=1), image, weight)
    assert targets_of(graph_module) == [aten.cat.default, aten.convolution.default]


def test_nodes_of_numbers_are_told_from_nodes_of_tensors() -> None:
    """PX-04"""
    graph_module = _trace(lambda x: x.new_ones(x.shape[0]), torch.ones(3))
    kinds = [isinstance(n.meta["val"], torch.SymInt) for n in graph_module.graph.nodes if n.op != "output"]
    assert kinds == [False, True, False]


def test_an_int_among_the_inputs_is_a_symbol() -> None:
    """PX-41"""
    graph_module = _trace(lambda x, n: x * n, torch.ones(2), 3)
    assert graph_module(torch.ones(2), 5).tolist() == [5.0, 5.0]
    flag = _trace(lambda x, is_doubled: x * 2 if is_doubled else x, torch.ones(2), True)
    assert flag(torch.ones(2), True).tolist() == [2.0, 2.0]


def test_the_graph_carries_its_symbols_and_their_guards() -> None:
    """PX-40"""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.cos() if x.shape[0] < 20 else x.sin()

    graph_module = _trace(program, torch.ones(3, 4))
    assert isinstance(graph_module.shape_env, ShapeEnv)
    assert eval_guards(graph_module, torch.ones(4, 5))
    assert not eval_guards(graph_module, torch.ones(25, 5))
    assert {str(symbol): value for symbol, value in bind_symbols(graph_module, torch.ones(4, 5)).items()} == {
        "s0": 4,
        "s1": 5,
    }


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_the_mode_of_fake_inputs_is_joined(mode: str) -> None:
    """PX-40, XC-01"""
    fake_mode = symbolic_fake_mode()
    x = fake_mode.from_tensor(torch.ones(3, 4), static_shapes=True)
    graph_module = refimpl.make_fx(lambda x: x @ x.t(), tracing_mode=mode)(x)
    modes = [n.meta["val"].fake_mode for n in graph_module.graph.nodes if n.op != "output"]
    assert all(found is fake_mode for found in modes)
    assert graph_module(torch.ones(3, 4)).tolist() == [[4.0] * 3] * 3


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_captured_tensors_are_described_in_the_mode_of_the_trace(mode: str) -> None:
    """XC-01"""
    weight = torch.ones(4, 5)
    graph = refimpl.make_fx(lambda x: x @ weight, tracing_mode=mode, _allow_non_fake_inputs=True)(
        torch.ones(3, 4)
    ).graph
    values = [n.meta["val"] for n in graph.nodes if n.op != "output"]
    assert len({id(value.fake_mode) for value in values}) == 1
    (constant,) = (n.meta["val"] for n in graph.nodes if n.op == "get_attr")
    assert (constant.shape, constant.stride(), constant.device.type) == ((4, 5), (5, 1), "cpu")


def test_symbols_of_torch_s_own_environment_are_understood() -> None:
    """PX-40, XC-01: capture by another tool hands over fake inputs with symbols of its own."""
    fake_mode = FakeTensorMode(shape_env=TorchShapeEnv())
    x = fake_mode.from_tensor(torch.ones(3, 4))
    assert isinstance(x.shape[0], torch.SymInt)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x]).view(-1, 2 * x.shape[1]).new_zeros(x.shape[0] + 1, x.shape[1] // 2)

    graph_module = _trace(program, x)
    assert graph_module.shape_env is fake_mode.shape_env
    for shape in ((3, 4), (5, 6)):
        assert graph_module(torch.ones(shape)).shape == program(torch.ones(shape)).shape


def test_a_mode_without_symbols_cannot_be_traced_symbolically() -> None:
    """PX-40"""
    x = FakeTensorMode().from_tensor(torch.ones(3))
    with pytest.raises(AssertionError, match="shape_env should be set"):
        _trace(torch.sin, x)


def test_fake_inputs_of_two_modes_do_not_mix() -> None:
    """XC-01"""
    x, y = (FakeTensorMode().from_tensor(torch.ones(3)) for _ in range(2))
    with pytest.raises(AssertionError, match="2 different FakeTensorModes"):
        refimpl.make_fx(torch.add, tracing_mode="fake")(x, y)


def test_a_branch_on_data_is_refused_with_the_user_s_line() -> None:
    """PX-16"""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x

    with pytest.raises(RuntimeError, match="data-dependent") as raised:
        _trace(program, torch.ones(3))
    assert f"{Path(__file__).name}:{program.__code__.co_firstlineno + 1}" in str(raised.value)


def test_results_of_unknown_size_have_symbols_that_later_nodes_read() -> None:
    """PX-47"""

    def program(x: torch.Tensor) -> Any:
        chosen = x[x > 0]
        return chosen.new_ones(chosen.shape[0] + 1), chosen * 2

    graph_module = _trace(program, torch.tensor([1.0, -1.0, 2.0]))
    for x in (torch.tensor([1.0, -1.0, 2.0]), torch.tensor([-1.0, -2.0]), torch.randn(50)):
        for actual, expected in zip(graph_module(x), program(x), strict=True):
            assert torch.equal(actual, expected)


def test_tracing_runs_no_kernel_of_the_user() -> None:
    """XC-16"""
    calls = []
    library = torch.library.Library("refimpl_test_symbolic", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: calls.append(1) or x * 2, "CPU")
    library.impl("double", torch.empty_like, "Meta")
    graph_module = _trace(lambda x: torch.ops.refimpl_test_symbolic.double(x), torch.ones(3))
    assert calls == []
    assert graph_module(torch.ones(5)).tolist() == [2.0] * 5
    assert calls == [1]


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_tracing_draws_no_random_numbers_and_the_graph_draws_eager_s(mode: str) -> None:
    """XC-15"""

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + torch.rand_like(x)

    before = torch.get_rng_state()
    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.ones(50))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    actual = graph_module(torch.ones(50))
    torch.manual_seed(3)
    assert torch.equal(actual, program(torch.ones(50)))
    assert not torch.equal(actual, graph_module(torch.ones(50)))


def test_quotients_of_sizes_that_became_constants_are_numbers() -> None:
    def program(x: torch.Tensor) -> Any:
        assert x.shape[0] == 4
        return x.new_zeros(3) + 3 / x.shape[0], x.numel() / x.shape[0], 2 ** x.shape[0], x.shape[0] ** -1

    graph_module = _trace(program, torch.ones(4, 6))
    for actual, expected in zip(graph_module(torch.ones(4, 9)), program(torch.ones(4, 9)), strict=True):
        torch.testing.assert_close(actual, expected)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[list[tuple[int, ...]]]]] = {
    "linear layers": (lambda x, w: F.relu(x @ w.t()).sum(-1), [[(3, 4), (5, 4)], [(2, 9), (7, 9)]]),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        [[(2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8)], [(4, 2, 7, 8), (4, 2, 7, 8), (4, 2, 7, 8)]],
    ),
    "norms": (lambda x: F.layer_norm(x, x.shape[-1:]) + F.group_norm(x.unsqueeze(1), 1)[:, 0], [[(3, 4)], [(5, 6)]]),
    "images": (
        lambda x, w: F.interpolate(F.max_pool2d(F.conv2d(x, w, padding=1), 2), scale_factor=2.0),
        [[(2, 3, 8, 8), (4, 3, 3, 3)], [(3, 3, 12, 12), (4, 3, 3, 3)]],
    ),
    "windows": (lambda x: x.unfold(0, 3, 1).sum(-1).flip(0), [[(9,)], [(13,)]]),
    "pieces": (lambda x: torch.cat(x.chunk(3)[::-1]) + x[: x.shape[0] // 2].sum(), [[(9,)], [(12,)]]),
    "broadcast": (
        lambda x, y: (x + y).expand(3, -1, -1).permute(2, 0, 1).reshape(-1),
        [[(4, 1), (1, 5)], [(6, 1), (1, 3)]],
    ),
    "indexing": (lambda x: x[torch.arange(x.shape[0] - 1), 0] + x[1:, -1], [[(4, 5)], [(7, 3)]]),
    "in place": (lambda x: x.clone().mul_(x.shape[0]).view(-1).add_(1).view(x.shape), [[(2, 3)], [(4, 5)]]),
    "numbers": (lambda x: (x * x.numel() ** 0.5, x.shape[0] / 3, max(x.shape), x.shape[1] % 3), [[(4, 5)], [(6, 8)]]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_graph_is_right_at_other_sizes(name: str) -> None:
    """PX-40, PX-51, XC-17"""
    program, shapes = PROGRAMS[name]
    torch.manual_seed(0)
    graph_module = _trace(program, *(torch.randn(shape) for shape in shapes[0]))
    for sizes in shapes:
        inputs = [torch.randn(shape) for shape in sizes]
        assert eval_guards(graph_module, *inputs)
        actual, expected = graph_module(*inputs), program(*inputs)
        torch.testing.assert_close(actual, expected)


def test_a_joint_program_is_right_at_another_batch_size() -> None:
    """PX-51"""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def program(x: torch.Tensor) -> Any:
        loss = layer(x).square().mean()
        return loss.detach(), *torch.autograd.grad(loss, tuple(layer.parameters()))

    graph_module = _trace(program, torch.randn(2, 5, 8), _allow_non_fake_inputs=True)
    for batch in (2, 3, 7):
        x = torch.randn(batch, 5, 8)
        for actual, expected in zip(graph_module(x), program(x), strict=True):
            torch.testing.assert_close(actual, expected)


def test_the_values_of_nodes_follow_an_equality_found_later() -> None:
    """PX-06"""

    def program(x: torch.Tensor) -> torch.Tensor:
        assert x.shape[0] == 3
        return x.cos()

    graph_module = _trace(program, torch.ones(3))
    sizes = [n.meta["val"].shape[0] for n in graph_module.graph.nodes if isinstance(n.meta.get("val"), FakeTensor)]
    assert [int(size.node.expr) if isinstance(size, torch.SymInt) else size for size in sizes] == [3, 3]


to_float: Callable[[Any], Any] = torch.sym_float
NUMBERS_OF_KERNELS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: to_float(a) + to_float(b),
    "difference": lambda a, b: to_float(a) - to_float(b),
    "product": lambda a, b: to_float(a) * 1.5,
    "negation": lambda a, b: -to_float(a),
    "absolute": lambda a, b: abs(to_float(a) - to_float(b)),
    "remainder": lambda a, b: to_float(a) % to_float(b),
    "floored": lambda a, b: to_float(a) // to_float(b),
    "distance": lambda a, b: abs(a - b),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "exclusive or": lambda a, b: a ^ b,
    "shifted left": lambda a, b: a << b,
    "shifted right": lambda a, b: a >> b,
}


@pytest.mark.parametrize("compute", NUMBERS_OF_KERNELS.values(), ids=NUMBERS_OF_KERNELS)
def test_a_number_that_a_kernel_computed_of_sizes_is_computed_again_in_the_graph(
    compute: Callable[[Any, Any], Any],
) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        sizes: Any = x.shape
        a, b = sizes
        with a.node.shape_env.origins_off():
            number = compute(a, b)
        return x * number

    graph_module = _trace(program, torch.ones(3, 5))
    for shape in ((3, 5), (6, 4), (9, 2)):
        x = torch.ones(shape)
        torch.testing.assert_close(graph_module(x), x * compute(*shape))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_composite_kernel_computes_with_sizes_in_inference_mode(*, dynamic: bool) -> None:
    compiled = refimpl.compile(torch.linalg.matrix_rank, backend="aot_eager", dynamic=dynamic)
    with torch.inference_mode():
        for shape in ((3, 2), (4, 5)):
            x = torch.arange(float(shape[0] * shape[1])).reshape(shape)
            assert compiled(x) == torch.linalg.matrix_rank(x)


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_a_deviation_of_what_a_mask_selects_asks_nothing_of_its_size(dim: int | None) -> None:
    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.std(x[mask], dim)

    x, mask = torch.randn(6, 4), torch.tensor([True, False, True, True, False, True])
    graph_module = _trace(program, x, mask, decomposition_table=dict(refimpl.decomposition_table))
    assert aten.std.correction not in targets_of(graph_module)
    for selected in (mask, ~mask):
        torch.testing.assert_close(graph_module(x, selected), program(x, selected))
