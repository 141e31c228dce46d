"""A traced graph does what the function does, and holds the ops that torch's own make_fx records."""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import refimpl

MODES = ("real", "fake", "symbolic")


_SIZE_QUERIES = (
    "aten.sym_size.int",
    "aten.sym_stride.int",
    "aten.sym_numel.default",
    "aten.sym_storage_offset.default",
)


def _ops(graph: torch.fx.Graph) -> collections.Counter[str]:
    """What computes. How often a size is read, and from which tensor, is a matter of taste."""
    targets = (str(node.target) for node in graph.nodes if node.op == "call_function")
    return collections.Counter(target for target in targets if target not in _SIZE_QUERIES)


def test_every_node_says_what_its_value_is() -> None:
    for mode in MODES:
        x, weight = torch.randn(3, 4), torch.randn(5, 4)
        graph = refimpl.make_fx(lambda x, w: F.linear(x, w).topk(2), tracing_mode=mode)(x, weight).graph
        shapes = {
            n.name: tuple(n.meta["val"].shape) for n in graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)
        }
        assert shapes == {
            "x_1": (3, 4), "w_1": (5, 4), "t": (4, 5), "mm": (3, 5), "getitem": (3, 2), "getitem_1": (3, 2)
        }  # fmt: skip
        t = next(n for n in graph.nodes if n.name == "t")
        assert t.meta["tensor_meta"].stride == (1, 4)


def test_val_is_a_snapshot() -> None:
    def program(x):
        y = x * 2
        y.t_()
        return y

    for mode in MODES:
        graph = refimpl.make_fx(program, tracing_mode=mode)(torch.randn(2, 3)).graph
        shapes = [tuple(n.meta["val"].shape) for n in graph.nodes if n.op == "call_function"]
        assert shapes == [(2, 3), (3, 2)]


class _Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return F.relu(self.norm(self.conv(x))) + self.seen


class _Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("make", "shape"), [(_Block, (2, 3, 6, 6)), (_Encoder, (2, 5, 8))])
def test_a_module_keeps_its_parameters_and_buffers(
    make: Callable[[], torch.nn.Module], shape: tuple[int, ...], mode: str
) -> None:
    torch.manual_seed(0)
    module = make()
    expected_module = copy.deepcopy(module)
    graph_module = refimpl.make_fx(module, tracing_mode=mode, _allow_non_fake_inputs=True)(torch.randn(shape))
    assert type(graph_module).__name__ == make.__name__
    module.load_state_dict(expected_module.state_dict())  # what real mode changed while tracing
    x = torch.randn(shape)
    actual, expected = graph_module(x), expected_module(x)
    assert torch.equal(actual, expected)
    actual.sum().backward()
    expected.sum().backward()
    for (name, parameter), other in zip(module.named_parameters(), expected_module.parameters(), strict=True):
        assert parameter.grad is not None, name
        assert torch.equal(parameter.grad, other.grad), name  # pyright: ignore[reportArgumentType]
    for (name, buffer), other in zip(module.named_buffers(), expected_module.buffers(), strict=True):
        assert torch.equal(buffer, other), name


def test_captured_tensors_are_the_same_objects() -> None:
    captured, parameter = torch.randn(3), torch.nn.Parameter(torch.randn(3))
    graph_module = refimpl.make_fx(lambda x: x * captured + parameter + captured)(torch.randn(3))
    assert graph_module._tensor_constant0 is captured
    assert graph_module._param_constant0 is parameter
    assert len(graph_module.graph.find_nodes(op="get_attr")) == 2


def test_random_ops_draw_anew() -> None:
    x = torch.ones(64)
    for mode in MODES:
        graph_module = refimpl.make_fx(lambda x: F.dropout(x) + torch.rand(64), tracing_mode=mode)(x)
        first, second = graph_module(x), graph_module(x)
        assert not torch.equal(first, second)
        torch.manual_seed(3)
        actual = graph_module(x)
        torch.manual_seed(3)
        assert torch.equal(actual, F.dropout(x) + torch.rand(64))


def test_a_generator_is_the_caller_s_own() -> None:
    generator = torch.Generator().manual_seed(0)
    graph_module = refimpl.make_fx(lambda x: x + torch.rand(3, generator=generator))(torch.zeros(3))
    generator.manual_seed(5)
    assert torch.equal(graph_module(torch.zeros(3)), torch.rand(3, generator=torch.Generator().manual_seed(5)))


def test_a_literal_is_fresh_at_every_run() -> None:
    def program(x):
        counter = torch.tensor(1.0)
        counter.add_(2)
        return x + counter

    for mode in MODES:
        graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.zeros(2))
        assert [graph_module(torch.zeros(2)).tolist() for _ in range(2)] == [[3.0, 3.0]] * 2
        assert torch.ops.aten.lift_fresh_copy.default in [n.target for n in graph_module.graph.nodes]


_READS = [
    lambda x: x * x[0].item(),
    lambda x: torch.zeros(int(x[0])) + x.sum(),
    lambda x: x * torch.tensor([1.0, 2.0]).sum().item(),  # more than one element is not kept as a constant
]
_BRANCHES = [
    lambda x: x * 2 if x.sum() > 0 else x,
    lambda x: x if torch.equal(x, x * 2) else x + 1,
]


@pytest.mark.parametrize("read", _READS + _BRANCHES)
def test_reading_a_value_that_depends_on_the_input_is_refused(read: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)reads a value out of a tensor.*data-dependent") as raised:
        refimpl.make_fx(read)(torch.ones(3))
    assert f"{Path(__file__).name}:{read.__code__.co_firstlineno}" in str(raised.value)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("read", [_READS[0], _READS[2]])
def test_without_data_a_value_read_stays_a_symbol(read: Callable[..., Any], mode: str) -> None:
    graph_module = refimpl.make_fx(read, tracing_mode=mode)(torch.full((3,), 2.0))
    for x in (torch.full((3,), 2.0), torch.full((3,), 5.0)):
        assert torch.equal(graph_module(x), read(x))


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("branch", [*_BRANCHES, _READS[1]])
def test_without_data_a_branch_on_a_value_is_refused(branch: Callable[..., Any], mode: str) -> None:
    with pytest.raises(RuntimeError, match="data-dependent"):
        refimpl.make_fx(branch, tracing_mode=mode)(torch.ones(3))


@pytest.mark.parametrize("mode", MODES)
def test_reading_a_constant_is_allowed(mode: str) -> None:
    captured = torch.tensor(4.0)

    def program(x):
        three = torch.tensor(3.0)
        view = three.view(1)
        three.mul_(2)
        return x * (three + 1).item() + view.item() + captured.item()

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.ones(2))
    assert torch.equal(graph_module(torch.ones(2)), torch.full((2,), 17.0))


@pytest.mark.parametrize("mode", MODES)
def test_a_constant_overwritten_with_data_is_no_constant(mode: str) -> None:
    def reads_a_view(x):
        slot = torch.tensor([1.0])
        view = slot.view(())
        slot.copy_(x[:1])
        return x * view.item()

    captured = torch.zeros(())

    def reads_a_captured_tensor(x):
        captured.copy_(x[0])
        return x * captured.item()

    for program in (reads_a_view, reads_a_captured_tensor):
        trace = refimpl.make_fx(program, tracing_mode=mode, _allow_non_fake_inputs=True)
        if mode == "real" or program is reads_a_captured_tensor:
            with pytest.raises(refimpl.DataDependentRead):
                trace(torch.ones(2))
        else:  # the value read is a symbol
            assert torch.equal(trace(torch.ones(2))(torch.full((2,), 3.0)), torch.full((2,), 9.0))


def test_reading_can_be_allowed() -> None:
    graph_module = refimpl.make_fx(lambda x: x * x.sum().item(), _error_on_data_dependent_ops=False)(torch.ones(2))
    assert torch.equal(graph_module(torch.full((2,), 3.0)), torch.full((2,), 6.0))  # the 2 of the trace is burned in


def test_decompositions_are_traced_in_place_of_the_op_recursively() -> None:
    aten = torch.ops.aten
    table = {
        aten.silu.default: lambda x: x * aten.sigmoid.default(x),
        aten.sigmoid.default: lambda x: 1 / (1 + (-x).exp()),
    }
    x = torch.randn(5)
    for mode in MODES:
        graph_module = refimpl.make_fx(F.silu, decomposition_table=table, tracing_mode=mode)(x)
        assert not {n.target for n in graph_module.graph.nodes} & set(table)
        torch.testing.assert_close(graph_module(x), F.silu(x))


def test_composite_ops_are_decomposed_in_inference_mode_too() -> None:
    with torch.inference_mode():
        graph_module = refimpl.make_fx(F.linear)(torch.randn(2, 3), torch.randn(4, 3))
    assert torch.ops.aten.linear.default not in [n.target for n in graph_module.graph.nodes]


def test_the_inner_of_two_traces_is_invisible_to_the_outer() -> None:
    def outer(x):
        refimpl.make_fx(torch.cos)(torch.ones(2))
        return x.sin()

    assert _ops(refimpl.make_fx(outer)(torch.ones(2)).graph) == {"aten.ones.default": 1, "aten.sin.default": 1}


def test_subclasses_desugar_to_plain_ops() -> None:
    value = TwoTensor(torch.randn(2), torch.randn(2))
    captured = refimpl.make_fx(lambda x: x + getattr(value.sin(), "a"))(torch.randn(2))
    assert _ops(captured.graph)["aten.sin.default"] == 2  # once per inner tensor

    class Tagged(torch.Tensor):
        pass

    x = torch.randn(3).as_subclass(Tagged)
    assert _ops(refimpl.make_fx(lambda x: x.sin())(x).graph) == {"aten.sin.default": 1}


def test_one_tensor_passed_twice() -> None:
    x = torch.randn(2)
    graph_module = refimpl.make_fx(lambda a, b: a.add_(1) + b)(x, x)
    y = torch.randn(2)
    expected = 2 * (y + 1)
    assert torch.equal(graph_module(y, y), expected)


@dataclasses.dataclass
class _Pair:
    left: torch.Tensor
    right: torch.Tensor


pytree.register_dataclass(_Pair)


def test_any_registered_container_goes_in_and_comes_out() -> None:
    graph_module = refimpl.make_fx(lambda pair, more: _Pair(pair.right, more["x"]))(
        _Pair(torch.ones(1), torch.ones(2)), {"x": torch.ones(3)}
    )
    result = graph_module(_Pair(torch.zeros(1), torch.full((2,), 2.0)), {"x": torch.full((3,), 3.0)})
    assert isinstance(result, _Pair)
    assert (result.left.tolist(), result.right.tolist()) == ([2, 2], [3, 3, 3])


def test_a_tuple_beside_a_dict_is_not_taken_for_keyword_arguments() -> None:
    graph_module = refimpl.make_fx(lambda xs, named: xs[0] + named["y"])((torch.ones(1),), {"y": torch.ones(1)})
    assert graph_module((torch.tensor([2.0]),), {"y": torch.tensor([3.0])}).item() == 5


class _Opaque:
    pass


@pytest.mark.parametrize(
    ("error", "make", "text"),
    [
        (AssertionError, lambda: refimpl.make_fx(torch.sin, tracing_mode="imaginary"), "tracing_mode='imaginary'"),
        (TypeError, lambda: refimpl.make_fx(lambda x: _Opaque())(torch.ones(2)), "_Opaque"),
    ],
)
def test_a_wrong_tracing_mode_or_result_raises_a_refimpl_error(
    error: type[Exception], make: Callable[[], Any], text: str
) -> None:
    with pytest.raises(error, match=text) as raised:
        make()
    assert isinstance(raised.value, refimpl.RefimplError)


def test_nothing_is_left_behind_after_a_failure() -> None:
    def failing(x):
        raise ZeroDivisionError

    for mode in MODES:
        with pytest.raises(ZeroDivisionError):
            refimpl.make_fx(failing, tracing_mode=mode)(torch.ones(2))
        assert torch._C._len_torch_dispatch_stack() == 0
        assert torch.is_autocast_cache_enabled()
        assert type(torch.ones(2)) is torch.Tensor


def test_each_call_traces_anew() -> None:
    tracer = refimpl.make_fx(lambda x: x * x.shape[0])
    assert tracer(torch.ones(2))(torch.ones(2)).tolist() == [2, 2]
    assert tracer(torch.ones(3))(torch.ones(3)).tolist() == [3, 3, 3]
