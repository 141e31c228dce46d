"""Recording above autograd and autocast: make_fx(pre_dispatch=True)."""

from __future__ import annotations

import collections
import contextlib
import copy
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor

import refimpl
from refimpl._torch import TorchDispatchMode, pytree
from refimpl.errors import UnsupportedByRefimpl
from refimpl.tests.graphs import targets_of
from refimpl.trace.pre_dispatch import without_pre_dispatch_functions

aten = torch.ops.aten
Program = Callable[..., Any]


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def linear_and_matmul(x, weight, bias):
    return F.linear(x, weight, bias).matmul(weight), x.matmul(weight.t())


def without_gradients(x):
    with torch.no_grad():
        constant = x.sin()
        with torch.enable_grad():
            inner = constant.cos() * x
    return constant * x, inner


def switched_by_hand(x):
    torch.set_grad_enabled(False)
    y = x.exp()
    torch.set_grad_enabled(True)
    return y + x


def mixed_precision(x, weight):
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):  # a cached cast adds up gradients otherwise
        y = F.linear(x, weight)
        with torch.autocast("cpu", enabled=False):
            z = F.linear(x, weight)
        y = y @ weight
    return y, z


def attention(x):
    q, k, v = x.chunk(3, dim=-1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(1)


def dropout(x):
    return F.dropout(x, 0.5, training=True)


def batch_norm(x, weight, mean, var):
    return F.relu(F.batch_norm(x, mean, var, weight, training=True))


def in_place(x):
    y = x.clone()
    y.add_(1)
    y[0] = 3
    return y.view(-1).relu_()


def factories(x):
    return x + torch.ones(3) + torch.zeros_like(x) + torch.tensor(2.0) + torch.arange(3)


def views_and_casts(x):
    y = x.reshape(-1).to(torch.float64).type_as(x).expand(2, -1).contiguous()
    return y.split(3, dim=1), x.T, torch.atleast_3d(x), y.flatten()


def convolution(x, weight):
    return F.max_pool2d(F.conv2d(x, weight, padding=1), 2), F.adaptive_avg_pool2d(x, 1)


def losses(x, target):
    return F.cross_entropy(x, target), F.layer_norm(x, (3,)), F.silu(F.gelu(x)), F.softmax(x, -1), F.one_hot(target, 3)


PROGRAMS: dict[str, tuple[Program, Callable[[], tuple[Any, ...]]]] = {
    "linear and matmul": (linear_and_matmul, lambda: (_x(2, 3), _x(4, 3), _x(4))),
    "no_grad": (without_gradients, lambda: (_x(2, 3),)),
    "set_grad_enabled": (switched_by_hand, lambda: (_x(2, 3),)),
    "autocast": (mixed_precision, lambda: (_x(3, 3), _x(3, 3))),
    "attention": (attention, lambda: (_x(2, 2, 4, 24),)),
    "dropout": (dropout, lambda: (_x(4, 3),)),
    "batch norm": (batch_norm, lambda: (_x(2, 3, 4, 4), _x(3), torch.zeros(3), torch.ones(3))),
    "in place": (in_place, lambda: (_x(2, 3),)),
    "factories": (factories, lambda: (_x(2, 3),)),
    "views and casts": (views_and_casts, lambda: (_x(2, 3),)),
    "convolution": (convolution, lambda: (_x(2, 3, 4, 4), _x(5, 3, 3, 3))),
    "losses": (losses, lambda: (_x(4, 3), torch.tensor([0, 2, 1, 1]))),
}
Mode = Literal["real", "fake", "symbolic"]
MODES: tuple[Mode, ...] = ("real", "fake", "symbolic")


def _multiset(graph_module: torch.fx.GraphModule) -> collections.Counter[str]:
    return collections.Counter(str(getattr(target, "__name__", target)) for target in targets_of(graph_module))


def _run(program: Program, arguments: tuple[Any, ...]) -> tuple[list[Any], list[torch.Tensor | None]]:
    """Results, and the gradients of the inputs where the results have any."""
    torch.manual_seed(1)
    results = pytree.tree_leaves(program(*arguments))
    differentiable = [result for result in results if result.requires_grad]
    inputs = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    if not differentiable:
        return results, []
    total = torch.stack([result.double().pow(2).sum() for result in differentiable]).sum()
    return results, list(torch.autograd.grad(total, inputs, allow_unused=True))


@pytest.mark.fractional
@pytest.mark.parametrize("mode", ["real", "symbolic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_graph_has_the_ops_of_torch_above_autograd(name: str, mode: Mode) -> None:
    """PX-14, PX-28, PX-29"""
    program, make = PROGRAMS[name]
    torch.manual_seed(0)
    ours = refimpl.make_fx(program, tracing_mode=mode, pre_dispatch=True)(*make())
    torch.manual_seed(0)
    theirs = torch_make_fx(program, tracing_mode=mode, pre_dispatch=True)(*make())
    assert _multiset(ours) == _multiset(theirs)


@pytest.mark.fractional
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_graph_does_and_differentiates_what_the_program_does(name: str, mode: Mode) -> None:
    """PX-28, XC-14"""
    program, make = PROGRAMS[name]
    torch.manual_seed(0)
    arguments = make()
    graph_module = refimpl.make_fx(program, tracing_mode=mode, pre_dispatch=True)(*copy.deepcopy(arguments))
    expected, expected_gradients = _run(program, copy.deepcopy(arguments))
    actual, gradients = _run(graph_module, copy.deepcopy(arguments))
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert [a.requires_grad for a in actual] == [e.requires_grad for e in expected]
    torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=0)


def test_a_decomposition_table_is_used_above_autograd_too() -> None:
    """PX-03, PX-14"""
    table = {aten.linear.default: lambda x, weight, bias=None: x.matmul(weight.t())}
    graph_module = refimpl.make_fx(F.linear, decomposition_table=table, pre_dispatch=True)(_x(2, 3), _x(4, 3))
    assert targets_of(graph_module) == [aten.t.default, aten.matmul.default]


def test_what_switches_gradients_is_a_node_with_no_value_that_dead_code_elimination_keeps() -> None:
    """PX-28"""
    graph_module = refimpl.make_fx(without_gradients, pre_dispatch=True)(_x(2))
    switches = [node for node in graph_module.graph.nodes if "_set_grad_enabled" in node.name]
    assert [node.args for node in switches] == [(False,), (True,), (False,), (True,)]
    assert [node.meta["val"] for node in switches] == [None] * 4
    graph_module.graph.eliminate_dead_code()
    assert [node for node in graph_module.graph.nodes if "_set_grad_enabled" in node.name] == switches
    assert "_set_grad_enabled" not in refimpl.make_fx(without_gradients)(_x(2)).code


def test_an_autocast_region_is_left_by_the_node_that_entered_it() -> None:
    """PX-28"""
    nodes = refimpl.make_fx(mixed_precision, pre_dispatch=True)(_x(3, 3), _x(3, 3)).graph.nodes
    entered = [node for node in nodes if node.name.startswith("_enter_autocast")]
    left = [node for node in nodes if node.name.startswith("_exit_autocast")]
    assert [node.args for node in entered] == [("cpu", torch.bfloat16, on, False) for on in (True, False)]
    assert [node.args for node in left] == [(entered[1],), (entered[0],)]
    assert {node.meta["val"] for node in (*entered, *left)} == {None}


def test_regions_side_by_side_are_told_apart_by_their_state() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = x @ x
        with torch.autocast("cpu", dtype=torch.float16):
            b = x @ x
        return a, b, x @ x

    graph_module = refimpl.make_fx(program, pre_dispatch=True)(_x(3, 3))
    names = [str(getattr(target, "__name__", target)) for target in targets_of(graph_module)]
    region = ["_enter_autocast", "matmul.default", "_exit_autocast"]
    assert names == [*region, *region, "matmul.default"]
    assert [r.dtype for r in graph_module(_x(3, 3))] == [torch.bfloat16, torch.float16, torch.float32]


def test_gradients_that_inference_mode_or_a_backward_pass_has_off_are_off_in_the_graph() -> None:
    """XC-14"""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.inference_mode():
            constant = x.clone()
        gradient = torch.autograd.grad(x.sin().sum(), x)[0]
        return constant, gradient, x.cos()

    graph_module = refimpl.make_fx(program, pre_dispatch=True)(_x(2))
    x = _x(2)
    actual = graph_module(x)
    assert [result.requires_grad for result in actual] == [False, False, True]
    torch.testing.assert_close(actual, (x, x.cos(), x.cos()))


@pytest.mark.parametrize("mode", MODES)
def test_results_carry_gradients_while_the_program_runs(mode: Mode) -> None:
    """XC-14"""
    seen: list[bool] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):  # the second time a fake kernel could remember the first
            with torch.no_grad():
                constant = x.sin()
            seen.append(constant.requires_grad)
            seen.append(x.sin().requires_grad)
        return torch.autograd.grad(x.sin().sum(), x)[0]

    refimpl.make_fx(program, tracing_mode=mode, pre_dispatch=True)(_x(3))
    assert seen == [False, True] * 2


def test_data_of_a_tensor_stays_connected_to_it() -> None:
    graph_module = refimpl.make_fx(lambda x: x.data.sin(), pre_dispatch=True)(_x(2))
    x = _x(2)
    assert not graph_module(x).requires_grad
    torch.testing.assert_close(graph_module(x), x.detach().sin())


def test_a_tensor_that_is_made_to_require_gradients_does_so_in_the_graph() -> None:
    """XC-14"""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = (x.detach() * 2).requires_grad_()
        b = y * 2
        b.requires_grad = True
        return a, a.sin(), b, x.requires_grad_()

    graph_module = refimpl.make_fx(program, pre_dispatch=True)(_x(2), torch.ones(2))
    assert [result.requires_grad for result in graph_module(_x(2), torch.ones(2))] == [True] * 4
    twice, sets = aten.mul.Tensor, aten.requires_grad_.default
    assert targets_of(graph_module) == [aten.detach.default, twice, sets, twice, sets, aten.sin.default]


BACKWARD = {
    "result": lambda x: x.exp().sum(),
    "result of a composite op": lambda x: x.sin().softmax(-1).pow(2).sum(),
    "arguments": lambda x: (x * 2).matmul(x.t()).tanh().sum(),
}


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("name", BACKWARD)
def test_what_autograd_has_saved_is_found_in_the_graph_when_a_gradient_is_taken_in_the_program(
    name: str, mode: Mode
) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(BACKWARD[name](x), x)[0]

    graph_module = refimpl.make_fx(program, tracing_mode=mode, pre_dispatch=True)(_x(3, 3))
    x = _x(3, 3)
    torch.testing.assert_close(graph_module(x), program(x))
    assert not graph_module.graph.find_nodes(op="get_attr")


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_a_gradient_that_needs_what_only_a_composite_op_knew_is_refused(mode: Mode) -> None:
    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(F.linear(x, weight, x[0]).sum(), x)[0]

    def program_with_hooks(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
            y = x * weight
        return torch.autograd.grad(y.sum(), x)[0]

    for refused in (program, program_with_hooks):
        with pytest.raises(refimpl.UnsupportedByRefimpl, match=r"backward pass.*test_pre_dispatch\.py"):
            refimpl.make_fx(refused, tracing_mode=mode, pre_dispatch=True)(_x(3, 3), _x(3, 3))


def _leave_gradients_off(x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(False)
    return x.sin()


def _fail_without_gradients(x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(False)
    with torch.autocast("cpu"):
        raise ZeroDivisionError


@pytest.mark.parametrize("was_on", [True, False])
def test_a_trace_leaves_grad_mode_autocast_and_all_modes_as_they_were(was_on: bool) -> None:
    """PX-28, PX-50, XC-11"""

    def state() -> tuple[object, ...]:
        stack = torch.overrides._get_current_function_mode_stack()
        slot = torch._ops._len_torch_dispatch_stack_pre_dispatch()
        is_included = torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PreDispatch)
        return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), len(stack), slot, is_included

    with torch.set_grad_enabled(was_on):
        before = state()
        assert before == (was_on, False, 0, 0, False)
        refimpl.make_fx(_leave_gradients_off, pre_dispatch=True)(_x(2))
        assert state() == before
        with pytest.raises(ZeroDivisionError):
            refimpl.make_fx(_fail_without_gradients, pre_dispatch=True)(_x(2))
        assert state() == before


def test_a_value_read_out_of_a_tensor_is_refused_or_known() -> None:
    """PX-15, PX-16"""
    with pytest.raises(refimpl.DataDependentRead, match=r"test_pre_dispatch\.py"):
        refimpl.make_fx(lambda x: x * x.sum().item(), pre_dispatch=True)(_x(2))
    graph_module = refimpl.make_fx(lambda x: x * torch.tensor(3).item(), pre_dispatch=True)(_x(2))
    assert next(n for n in graph_module.graph.nodes if n.target is aten.mul.Tensor).args[1] == 3


@pytest.mark.parametrize("inner_pre_dispatch", [True, False])
@pytest.mark.parametrize("outer_pre_dispatch", [True, False])
def test_the_inner_of_two_traces_is_invisible_to_the_outer(outer_pre_dispatch: bool, inner_pre_dispatch: bool) -> None:
    """PX-30, PX-48"""
    inner: list[torch.fx.GraphModule] = []
    example = torch.ones(2)

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x.cos()

    def outer(x: torch.Tensor) -> torch.Tensor:
        inner.append(refimpl.make_fx(forward, pre_dispatch=inner_pre_dispatch)(example))
        return x.sin()

    graph_module = refimpl.make_fx(outer, pre_dispatch=outer_pre_dispatch)(torch.ones(2))
    switch = torch._C._set_grad_enabled
    assert targets_of(graph_module) == [aten.sin.default]
    assert targets_of(inner[0]) == ([switch, aten.cos.default, switch] if inner_pre_dispatch else [aten.cos.default])


def test_a_trace_of_torch_around_ours_sees_nothing_of_it_and_goes_on() -> None:
    inner: list[torch.fx.GraphModule] = []

    def outer(x: torch.Tensor) -> torch.Tensor:
        inner.append(refimpl.make_fx(torch.cos, pre_dispatch=True)(torch.ones(2)))
        return F.linear(x, x)

    assert targets_of(torch_make_fx(outer, pre_dispatch=True)(torch.ones(2, 2)))[-1] is aten.linear.default
    assert targets_of(inner[0]) == [aten.cos.default]


def test_other_function_modes_keep_their_place_while_ours_is_lifted_off() -> None:
    """PX-23"""

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    stacks: list[list[Any]] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x
        with Watching(), Watching():
            stacks.append(torch.overrides._get_current_function_mode_stack())
            with contextlib.suppress(ZeroDivisionError), without_pre_dispatch_functions() as mode:
                assert mode in stacks[0]
                with torch.no_grad():
                    y = x.sin()
                raise ZeroDivisionError
            stacks.append(torch.overrides._get_current_function_mode_stack())
            with torch.no_grad():
                return y + x.cos()

    graph_module = refimpl.make_fx(program, pre_dispatch=True)(_x(2))
    assert stacks[0] == stacks[1]
    assert len(stacks[0]) == 3
    switch = torch._C._set_grad_enabled
    assert targets_of(graph_module) == [aten.sin.default, switch, aten.cos.default, aten.add.Tensor, switch]
    with without_pre_dispatch_functions() as mode:
        assert mode is None


def test_transforms_and_subclasses_are_recorded_as_they_arrive_below_autograd() -> None:
    """PX-13"""
    x = torch.randn(3, 2)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: F.linear(row, torch.ones(4, 2)).sin())(x).matmul(torch.ones(4, 1))

    graph_module = refimpl.make_fx(program, pre_dispatch=True)(x)
    torch.testing.assert_close(graph_module(x + 1), program(x + 1))
    assert targets_of(graph_module)[-1] is aten.matmul.default

    graph_module = refimpl.make_fx(lambda x: getattr(TwoTensor(x, -x).sin() + 1, "b"), pre_dispatch=True)(x)
    assert targets_of(graph_module).count(aten.sin.default) == 2
    torch.testing.assert_close(graph_module(x + 1), (-x - 1).sin() + 1)


def test_another_dispatch_mode_around_the_trace_does_not_disturb_it() -> None:
    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with Passing():
        graph_module = refimpl.make_fx(F.linear, pre_dispatch=True)(_x(2, 3), _x(4, 3))
    assert targets_of(graph_module) == [aten.linear.default]


def test_a_module_traces_above_autograd_with_its_parameters_and_trains() -> None:
    """PX-21"""
    torch.manual_seed(0)
    encoder = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(2, 3, 8)
    graph_module = refimpl.make_fx(encoder, pre_dispatch=True)(x)
    assert aten.scaled_dot_product_attention.default in targets_of(graph_module)
    parameters = list(encoder.parameters())
    expected = torch.autograd.grad(encoder(x).sum(), parameters)
    torch.testing.assert_close(torch.autograd.grad(graph_module(x).sum(), parameters), expected)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_levels_of_forward_mode_are_refused(mode: Any) -> None:
    """A graph would make dual tensors where no level is entered."""

    def program(x: torch.Tensor) -> Any:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(forward_ad.make_dual(x, x.cos()) * 2).tangent

    with pytest.raises(UnsupportedByRefimpl, match="forward-mode AD inside of a trace with pre_dispatch=True"):
        refimpl.make_fx(program, tracing_mode=mode, pre_dispatch=True)(torch.ones(3))
