"""Contracts of proxy tracing (rows PX of docs/contracts.md) that no broader test shows."""

from __future__ import annotations

import gc
import inspect
import weakref
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.fx.experimental import proxy_tensor as torch_proxies
from torch.fx.experimental.proxy_tensor import extract_val as torch_extract_val
from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx
from torch.testing._internal.two_tensor import TwoTensor

import refimpl
from refimpl.tests.graphs import targets_of
from refimpl.trace.proxies import PythonKeyTracer
from refimpl.trace.recording_mode import paused_recordings
from refimpl.upstream import proxy_tensor as our_proxies
from refimpl.upstream.proxy_tensor import extract_val, has_proxy_slot, track_tensor

MODES = ("real", "fake")
aten = torch.ops.aten


def test_a_size_goes_in_and_out_as_a_tuple_of_ints() -> None:
    """PX-01"""
    graph_module = refimpl.make_fx(lambda size, x: (x + size[1], x.shape))(torch.Size([1, 2]), torch.ones(2))
    assert len(graph_module.graph.find_nodes(op="placeholder")) == 3
    value, size = graph_module(torch.Size([1, 2]), torch.ones(2))
    assert value.tolist() == [3.0, 3.0]
    assert type(size) is tuple
    assert size == (2,)


@pytest.mark.parametrize("mode", MODES)
def test_a_varargs_function_has_one_placeholder_per_argument(mode: str) -> None:
    """PX-02"""
    graph_module = refimpl.make_fx(lambda *xs: xs[0] + xs[1], tracing_mode=mode)(torch.ones(2), torch.ones(2))
    assert len(graph_module.graph.find_nodes(op="placeholder")) == 2
    assert graph_module(torch.ones(2), torch.full((2,), 2.0)).tolist() == [3.0, 3.0]


def test_a_decomposition_table_holds_for_its_own_trace_only() -> None:
    """PX-03"""
    table = {aten.sigmoid.default: lambda x: 1 / (1 + (-x).exp())}
    x = torch.ones(2)
    inner: list[torch.fx.GraphModule] = []

    def outer(x: torch.Tensor) -> torch.Tensor:
        inner.append(refimpl.make_fx(torch.sigmoid, decomposition_table=table)(torch.ones(2)))
        return x.sigmoid()

    def failing(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    assert targets_of(refimpl.make_fx(outer)(x))[-1] is aten.sigmoid.default
    assert aten.sigmoid.default not in targets_of(inner[0])
    with pytest.raises(ZeroDivisionError):
        refimpl.make_fx(failing, decomposition_table=table)(x)
    assert targets_of(refimpl.make_fx(torch.sigmoid)(x)) == [aten.sigmoid.default]


def test_val_of_a_value_without_strides_is_none_and_of_a_number_itself() -> None:
    """PX-06"""
    graph = refimpl.make_fx(lambda x, n: x.to_sparse() * n)(torch.eye(2), 3).graph
    assert [node.meta["val"] for node in graph.find_nodes(op="placeholder")][1] == 3
    assert {node.meta["val"] for node in graph.nodes if node.op == "call_function"} == {None}


def test_slots_hold_tensors_weakly_and_sizes_are_read_from_primals() -> None:
    """PX-05"""
    tracer = PythonKeyTracer()
    x = torch.ones(2)
    track_tensor(x, torch.fx.Proxy(tracer.graph.placeholder("x"), tracer), constant=None, tracer=tracer)
    assert has_proxy_slot(x, tracer)
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None
    graphs: dict[str, torch.fx.Graph] = {}

    def joint(primal: torch.Tensor, tangent: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = primal.sin() * primal.shape[0]
        return result, *torch.autograd.grad(result, primal, tangent)

    primal, tangent = torch.ones(3, requires_grad=True), torch.ones(3)
    for name, make_fx in (("ours", refimpl.make_fx), ("theirs", torch_make_fx)):
        graph = graphs[name] = make_fx(joint, tracing_mode="symbolic")(primal, tangent).graph
        sizes = graph.find_nodes(op="call_function", target=aten.sym_size.int)
        first = graph.find_nodes(op="placeholder")[0]
        assert sizes
        assert {node.args[0] for node in sizes} == {first}, name


def test_what_has_no_strides_to_copy_is_its_own_value() -> None:
    """PX-06"""
    script = torch.jit.script(torch.nn.Linear(2, 2))._c
    extracts: list[Any] = [extract_val, torch_extract_val]
    for extract in extracts:
        assert extract(script) is script
        assert extract(3) == 3
        assert extract(torch.eye(2).to_sparse()) is None
        fake = extract(torch.ones(2, 3).t())
        assert (fake.shape, fake.stride()) == ((3, 2), (1, 3))
        assert fake.fake_mode.allow_fallback_kernels
        assert fake.fake_mode.shape_env is None
        assert fake.fake_mode is not extract(torch.ones(2)).fake_mode


def test_in_fake_mode_every_call_has_a_fake_val_and_the_tensor_meta_of_it() -> None:
    """PX-07"""
    graph = refimpl.make_fx(lambda x: x.t().exp() + 1, tracing_mode="fake")(torch.randn(2, 3)).graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    assert len(calls) == 3
    for node in calls:
        value, meta = node.meta["val"], node.meta["tensor_meta"]
        assert type(value).__name__ == "FakeTensor"
        assert (meta.shape, meta.dtype, meta.stride) == (value.shape, value.dtype, value.stride())


@pytest.mark.parametrize("mode", MODES)
def test_results_in_a_tuple_are_taken_out_in_order_each_with_its_val(mode: str) -> None:
    """PX-10"""
    graph = refimpl.make_fx(lambda x: x.split([1, 2]), tracing_mode=mode)(torch.randn(3)).graph
    items = [node for node in graph.nodes if "getitem" in node.name]
    assert [node.args[1] for node in items] == [0, 1]
    assert [tuple(node.meta["val"].shape) for node in items] == [(1,), (2,)]


def test_a_subclass_desugars_where_the_trace_does_not_know_it() -> None:
    """PX-13"""
    x = TwoTensor(torch.ones(2), torch.ones(2))
    ours, theirs = (
        make_fx(lambda y: y + getattr(x.sin(), "b"))(torch.ones(2)) for make_fx in (refimpl.make_fx, torch_make_fx)
    )
    assert targets_of(ours) == targets_of(theirs)
    assert targets_of(ours).count(aten.sin.default) == 2


def test_a_subclass_among_the_inputs_is_one_value_of_the_trace() -> None:
    """PX-13"""
    x = TwoTensor(torch.ones(2), torch.zeros(2))
    ours, theirs = (make_fx(lambda x: x.sin() + 1)(x) for make_fx in (refimpl.make_fx, torch_make_fx))
    assert targets_of(ours) == targets_of(theirs) == [aten.sin.default, aten.add.Tensor]
    result = ours(x)
    assert isinstance(result, TwoTensor)
    assert torch.equal(result.b, torch.ones(2))


@pytest.mark.parametrize("mode", MODES)
def test_a_constant_that_was_read_is_a_literal_argument(mode: str) -> None:
    """PX-15"""
    graph_module = refimpl.make_fx(lambda x: x + torch.tensor(3).item(), tracing_mode=mode)(torch.ones(2))
    (add,) = graph_module.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    assert add.args[1] == 3
    assert aten._local_scalar_dense.default not in targets_of(graph_module)


@pytest.mark.parametrize("mode", MODES)
def test_nodes_are_named_and_numbered_after_their_operator(mode: str) -> None:
    """PX-18"""
    graph = refimpl.make_fx(lambda x: ((x + 1) + 2).relu() + 3, tracing_mode=mode)(torch.ones(2)).graph
    assert [node.name for node in graph.nodes if node.op == "call_function"] == ["add", "add_1", "relu", "add_2"]


@pytest.mark.parametrize("mode", MODES)
def test_after_an_in_place_op_its_argument_is_its_result(mode: str) -> None:
    """PX-19"""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.add_(1)
        return y.sin()

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(torch.ones(2))
    assert targets_of(graph_module) == [aten.clone.default, aten.add_.Tensor, aten.sin.default]
    (sin,) = graph_module.graph.find_nodes(op="call_function", target=aten.sin.default)
    assert sin.args[0].target is aten.add_.Tensor


@pytest.mark.parametrize("mode", MODES)
def test_constants_propagate_while_they_have_one_element_and_began_as_literals(mode: str) -> None:
    """PX-20"""
    folded = refimpl.make_fx(lambda x: x * (torch.tensor(3) + torch.tensor(4)).item(), tracing_mode=mode)(torch.ones(1))
    assert folded(torch.ones(1)).tolist() == [7.0]
    for read in (
        lambda: torch.ones(()).item(),  # made by a factory
        lambda: torch.tensor([1, 2]).sum().item(),  # the literal is too long
        lambda: torch.bernoulli(torch.tensor(0.5)).item(),  # drawn
    ):
        trace = refimpl.make_fx(lambda x, read=read: x * read(), tracing_mode=mode)
        if mode == "real":
            with pytest.raises(refimpl.DataDependentRead):
                trace(torch.ones(1))
        else:  # the value read stays a symbol: nothing was folded
            assert aten._local_scalar_dense.default in targets_of(trace(torch.ones(1)))


@pytest.mark.parametrize("mode", MODES)
def test_the_module_is_named_after_the_function(mode: str) -> None:
    """PX-24"""

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert type(refimpl.make_fx(doubled, tracing_mode=mode)(torch.ones(2))).__name__ == "doubled"


@pytest.mark.parametrize("mode", MODES)
def test_what_is_not_a_tensor_is_returned_in_its_place(mode: str) -> None:
    """PX-25"""
    graph_module = refimpl.make_fx(lambda x: (x, 3, None), tracing_mode=mode)(torch.ones(2))
    y = torch.zeros(2)
    result = graph_module(y)
    assert result[0] is y
    assert result[1:] == (3, None)


def test_paused_recordings_record_nothing_and_a_failed_inner_trace_gives_the_outer_back() -> None:
    """PX-30"""

    def failing(x: torch.Tensor) -> torch.Tensor:
        x.tan()
        raise ZeroDivisionError

    def outer(x: torch.Tensor) -> torch.Tensor:
        with paused_recordings():
            torch.zeros(2).cos()
        with pytest.raises(ZeroDivisionError):
            refimpl.make_fx(failing)(torch.zeros(2))
        return x.sin()

    assert targets_of(refimpl.make_fx(outer)(torch.ones(2))) == [aten.zeros.default, aten.sin.default]
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_parameter_used_twice_under_autocast_is_cast_twice(mode: str) -> None:
    """PX-35"""
    weight = torch.nn.Parameter(torch.ones(2, 2))

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ weight) @ weight

    graph_module = refimpl.make_fx(program, tracing_mode=mode, _allow_non_fake_inputs=True)(torch.ones(2, 2))
    casts = graph_module.graph.find_nodes(op="call_function", target=aten._to_copy.default)
    of_weight = [node for node in casts if node.args[0].op == "get_attr"]
    assert len(of_weight) == 2
    assert torch.is_autocast_cache_enabled()


def test_make_fx_takes_what_the_installed_torch_takes() -> None:
    """PX-39"""
    ours, theirs = (
        {name: (p.kind, p.default) for name, p in inspect.signature(f).parameters.items()}
        for f in (refimpl.make_fx, torch_make_fx)
    )
    assert theirs.keys() - ours.keys() <= {"_disable_torch_fn_metadata_mode"}
    assert {name: p for name, p in theirs.items() if name in ours}.items() <= ours.items()
    with pytest.raises(TypeError):
        refimpl.make_fx(torch.sin)(x=torch.ones(2))


def test_fake_mode_runs_nothing_for_real_and_joins_the_mode_of_its_inputs() -> None:
    """PX-40"""
    seen: list[torch.Tensor] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x.add_(x.shape[0])

    x = torch.zeros(2)
    refimpl.make_fx(program, tracing_mode="fake")(x)
    assert x.tolist() == [0.0, 0.0]
    assert type(seen[0].shape[0]) is int
    refimpl.make_fx(program, tracing_mode="fake")(seen[0])
    assert seen[1] is seen[0]
    refimpl.make_fx(program)(x)
    assert x.tolist() == [2.0, 2.0]


def test_kernels_may_stand_in_for_fakes_in_fake_mode_only() -> None:
    """PX-40"""
    library = torch.library.Library(
        "torchaudio", "FRAGMENT"
    )  # torch runs kernels of this namespace where a fake is missing
    library.define("refimpl_next(Tensor x) -> Tensor")
    library.impl("refimpl_next", lambda x: x + 1, "CPU")
    operator = torch.ops.torchaudio.refimpl_next
    for make_fx in (refimpl.make_fx, torch_make_fx):
        assert targets_of(make_fx(operator, tracing_mode="fake")(torch.ones(2))) == [operator.default]
        with pytest.raises(UnsupportedOperatorException):
            make_fx(operator, tracing_mode="symbolic")(torch.ones(2))
    library._destroy()


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_a_fake_tensor_has_no_address(mode: Any) -> None:
    """PX-40"""
    for make_fx in (refimpl.make_fx, torch_make_fx):
        with pytest.raises(RuntimeError, match="Cannot access data pointer of Tensor"):
            make_fx(lambda x: x + x.data_ptr(), tracing_mode=mode)(torch.ones(2))
    graph = refimpl.make_fx(lambda x: x + 1, tracing_mode=mode)(torch.ones(2))
    assert graph(torch.ones(2)).tolist() == [2, 2], "the tensors of a call have one"


def test_asking_for_the_device_is_not_recorded_and_a_mode_may_be_off() -> None:
    """PX-29"""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(2, device=torch.ops.prim.device.default(x))

    for make_fx in (refimpl.make_fx, torch_make_fx):
        assert targets_of(make_fx(program)(torch.ones(2))) == [aten.zeros.default, aten.add.Tensor]
    tracer = our_proxies.PythonKeyTracer()
    mode = our_proxies.ProxyTorchDispatchMode(tracer, "real")
    x = torch.ones(2)
    track_tensor(x, torch.fx.Proxy(tracer.graph.placeholder("x"), tracer), constant=None, tracer=tracer)
    assert torch_proxies.ProxyTorchDispatchMode(torch_proxies.PythonKeyTracer(), "real").enable_tracing
    with mode:
        assert mode.enable_tracing
        y = x.sin()
        mode.enable_tracing = False
        y.cos()
        mode.enable_tracing = True
        y.exp()
    called = [node.target for node in tracer.graph.nodes if node.op == "call_function"]
    assert called == [aten.sin.default, aten.exp.default]


@pytest.mark.parametrize("mode", MODES)
def test_a_number_among_the_inputs_is_burned_in(mode: str) -> None:
    """PX-41"""
    graph_module = refimpl.make_fx(lambda x, n: x * n, tracing_mode=mode)(torch.ones(2), 3)
    assert graph_module(torch.ones(2), 5).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("mode", MODES)
def test_a_wrapper_whose_trace_failed_traces_again(mode: str) -> None:
    """PX-43"""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if x.shape[0] > 2:
            raise ZeroDivisionError
        return y

    trace = refimpl.make_fx(program, tracing_mode=mode)
    first = trace(torch.ones(2))
    with pytest.raises(ZeroDivisionError):
        trace(torch.ones(3))
    second = trace(torch.ones(1))
    assert first.graph is not second.graph
    assert targets_of(first) == targets_of(second) == [aten.sin.default]


@pytest.mark.parametrize("mode", MODES)
def test_outputs_share_memory_as_eager_s_do(mode: str) -> None:
    """PX-51"""
    graph_module = refimpl.make_fx(lambda x: (x, x[1:], x.t(), x + 1), tracing_mode=mode)(torch.ones(2, 2))
    x = torch.zeros(2, 2)
    same, row, transposed, fresh = graph_module(x)
    assert same is x
    x[1, 0] = 7
    assert (row[0, 0].item(), transposed[0, 1].item(), fresh[1, 0].item()) == (7.0, 7.0, 1.0)
