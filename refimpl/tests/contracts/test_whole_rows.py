"""Contracts of which one test shows a part: every clause of AO-27, PX-07, PX-10, PX-43, UT-33 and UT-49."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx._symbolic_trace import is_fx_tracing
from torch.fx.experimental._backward_state import BackwardState
from torch.fx.traceback import has_preserved_node_meta
from torch.overrides import _len_torch_function_stack
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import refimpl
from refimpl.aot.options import aot_settings
from refimpl.aot_entry_points import aot_module_simplified
from refimpl.capture.compile import compile
from refimpl.capture.public.same import same
from refimpl.symbolic.fake_inputs import symbolic_fake_mode
from refimpl.tests.aot.kept_graphs import Compiler, Tuple
from refimpl.tests.capture.capturing import Recorder
from refimpl.tests.graphs import placeholders_of, targets_of
from refimpl.trace.proxies import PythonKeyTracer, get_proxy_slot, set_meta, track_tensor_tree
from refimpl.upstream.predicates import is_utils_checkpoint

aten = torch.ops.aten


class _Stateful(nn.Module):
    """A parameter, a buffer that is written to, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.weight = nn.Parameter(torch.full((2,), 3.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        self.get_buffer("calls").add_(1)
        return (torch.nn.functional.silu(x * self.weight),)


# ---------------------------------------------------------------------------------------------------------------- AO-27


def test_parameters_come_first_then_buffers_then_arguments() -> None:
    """AO-27"""
    compiler, module = Compiler(), _Stateful()
    compiled: Any = aot_module_simplified(module, [torch.ones(2)], compiler.kind("fw"), compiler.kind("bw"))
    sizes = [tuple(node.meta["val"].shape) for node in placeholders_of(compiler.graph("fw"))]
    assert sizes == [(2,), (), (2,)]
    assert [name for name, _ in compiled.named_parameters()] == ["weight"]
    assert [name for name, _ in compiled.named_buffers()] == ["calls"]
    compiled(torch.ones(2))
    assert module.get_buffer("calls") == 1


def test_parameters_are_read_once_and_nothing_is_cached() -> None:
    """AO-27"""
    compiler, module = Compiler(), _Stateful()
    compiled = aot_module_simplified(module, [torch.ones(2)], compiler.kind("fw"), compiler.kind("bw"))
    with torch.no_grad():
        module.weight.mul_(2)  # the same tensor, so the change is seen
    assert torch.equal(compiled(torch.ones(2))[0], torch.nn.functional.silu(torch.full((2,), 6.0)))
    module.weight = nn.Parameter(torch.zeros(2))  # another tensor, which is not
    assert torch.equal(compiled(torch.ones(2))[0], torch.nn.functional.silu(torch.full((2,), 6.0)))
    aot_module_simplified(module, [torch.ones(2)], compiler.kind("fw"), compiler.kind("bw"))
    assert compiler.kinds.count("fw") == 2


def test_both_graphs_are_compiled_by_their_compilers_and_partitioned_by_the_given_function() -> None:
    """AO-27"""
    compiler, seen = Compiler(), []

    def partition(*args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        return refimpl.min_cut_rematerialization_partition(*args, **kwargs)

    module = nn.Sequential(nn.Linear(2, 2), Tuple())
    table = {aten.addmm.default: lambda bias, x, w: x @ w + bias}
    compiled = aot_module_simplified(
        module, [torch.ones(3, 2)], compiler.kind("fw"), compiler.kind("bw"), partition, decompositions=table
    )
    compiled(torch.ones(3, 2))[0].sum().backward()
    assert (compiler.kinds, seen) == (["fw", "bw"], [1])
    assert aten.mm.default in targets_of(compiler.graph("fw"))
    assert aten.addmm.default not in targets_of(compiler.graph("fw"))


def test_without_a_compiler_of_backward_that_of_forward_gets_both() -> None:
    """AO-27"""
    compiler = Compiler()
    compiled = aot_module_simplified(nn.Sequential(nn.Linear(2, 2), Tuple()), [torch.ones(3, 2)], compiler.kind("fw"))
    compiled(torch.ones(3, 2))[0].sum().backward()
    assert compiler.kinds == ["fw", "fw"]


@pytest.mark.parametrize("keep", [True, False])
def test_inference_has_its_compiler_and_may_keep_writes(keep: bool) -> None:
    """AO-27"""
    compiler, module = Compiler(), _Stateful().requires_grad_(False)
    compiled = aot_module_simplified(
        module, [torch.ones(2)], compiler.kind("fw"), inference_compiler=compiler.kind("inference"),
        keep_inference_input_mutations=keep,
    )  # fmt: skip
    assert compiler.kinds == ["inference"]
    compiled(torch.ones(2))
    assert module.get_buffer("calls") == 1
    assert (aten.copy_.default in targets_of(compiler.graph("inference"))) is keep


# ---------------------------------------------------------------------------------------------------------------- PX-07


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_every_node_has_all_of_its_metadata(mode: str) -> None:
    """PX-07"""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.to(memory_format=torch.channels_last)
        return (y.double() * 2).transpose(0, 1)

    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    graph = refimpl.make_fx(program, tracing_mode=mode)(x).graph
    nodes = [node for node in graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert len(nodes) >= 4
    for node in nodes:
        value, meta = node.meta["val"], node.meta["tensor_meta"]
        assert type(value).__name__ == "FakeTensor"
        assert (meta.shape, meta.dtype, meta.stride) == (value.shape, value.dtype, value.stride())
        assert (meta.is_quantized, meta.qparams) == (False, {})
    of_dtype = {node.meta["tensor_meta"].dtype for node in nodes}
    assert of_dtype == {torch.float32, torch.float64}
    formats = {node.meta["tensor_meta"].memory_format for node in nodes}
    assert {torch.contiguous_format, torch.channels_last, None} <= formats
    first = graph.find_nodes(op="placeholder")[0]
    assert first.meta["tensor_meta"].requires_grad is True


@pytest.mark.parametrize("value", [torch.ones(2, 3).t(), torch.eye(2).to_sparse(), 3, None, [torch.ones(2), 4]])
def test_metadata_is_written_for_dense_tensors_only(value: Any) -> None:
    """PX-07"""
    graph = torch.fx.Graph()
    tracer = PythonKeyTracer()
    tracer.graph = graph
    proxy = torch.fx.Proxy(graph.placeholder("x"), tracer)
    assert set_meta(proxy, value) is proxy
    is_dense = isinstance(value, torch.Tensor) and not value.is_sparse
    assert ("tensor_meta" in proxy.node.meta) is is_dense
    assert "val" in proxy.node.meta
    if is_dense:
        assert proxy.node.meta["tensor_meta"].stride == (1, 3)


# ---------------------------------------------------------------------------------------------------------------- PX-10


def _tracked(value: Any, constant: Any = None) -> tuple[PythonKeyTracer, torch.fx.Graph, Any]:
    tracer = PythonKeyTracer()
    graph = tracer.graph
    proxy = torch.fx.Proxy(graph.placeholder("result"), tracer)
    assert track_tensor_tree(value, proxy, constant=constant, tracer=tracer) is value
    return tracer, graph, proxy


def test_a_tree_is_tracked_by_indices_and_keys_in_order() -> None:
    """PX-10"""
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    tracer, graph, _ = _tracked([a, ({"left": b, "count": 3}, None, "text"), c])
    items = [node for node in graph.nodes if "getitem" in node.name]
    paths = {node.name: node.args[1] for node in items}
    assert [*paths.values()] == [0, 1, 0, "left", "count", 1, 2, 2]
    for tensor in (a, b, c):
        slot: Any = get_proxy_slot(tensor, tracer)
        assert slot.constant is None
        assert slot.proxy.node.meta["val"].shape == tensor.shape
    assert get_proxy_slot(b, tracer).proxy.node.args[1] == "left"


def test_constants_go_with_their_elements_and_not_with_those_of_dicts() -> None:
    """PX-10"""
    a, b, known = torch.ones(1), torch.ones(2), torch.zeros(1)
    tracer, _, _ = _tracked((a, b), [known, None])
    assert get_proxy_slot(a, tracer).constant is known
    assert get_proxy_slot(b, tracer).constant is None
    with pytest.raises(AssertionError):
        _tracked({"a": a}, {"a": known})


def test_numbers_have_their_meta_at_once_and_fresh_symbols_are_bound_at_the_top() -> None:
    """PX-10"""
    with symbolic_fake_mode(allow_fallback_kernels=False) as mode:
        shape_env: Any = mode.shape_env
        number = shape_env.create_unbacked_symint()
        tracer, graph, proxy = _tracked((number, torch.empty(3)))
    assert proxy.node.meta["unbacked_bindings"].keys() == {number.node.expr}
    first = next(node for node in graph.nodes if node.name == "getitem")
    assert first.meta["val"] is number
    assert "unbacked_bindings" not in first.meta
    slot: Any = get_proxy_slot(number, tracer)
    assert slot.force().node is first


def test_the_state_of_a_backward_keeps_its_proxy() -> None:
    """PX-10"""
    state = BackwardState()
    _tracked([torch.ones(1), state])
    assert state.proxy.node.args[1] == 1
    assert state.proxy.node.meta["val"] is state


# ---------------------------------------------------------------------------------------------------------------- PX-43


def _modes() -> tuple[Any, ...]:
    """The modes and tracers that a trace could leave behind."""
    return (
        torch._C._len_torch_dispatch_stack(),
        _len_torch_function_stack(),
        torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher),
        torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python),
        torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE),
        torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY),
        torch.is_grad_enabled(),
        is_fx_tracing(),
        has_preserved_node_meta(),
    )


def _fails_inside(x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        if y.shape[0] == 2:
            raise ZeroDivisionError
        return y.sin()

    with torch.no_grad():
        return refimpl.make_fx(inner)(x)(x)


@pytest.mark.parametrize("pre_dispatch", [False, True])
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_all_modes_are_as_before_after_a_trace_and_after_one_that_fails(mode: str, pre_dispatch: bool) -> None:
    """PX-43"""
    before = _modes()
    trace = refimpl.make_fx(_fails_inside, tracing_mode=mode, pre_dispatch=pre_dispatch)
    first = trace(torch.ones(3))
    assert _modes() == before
    with pytest.raises(ZeroDivisionError):
        trace(torch.ones(2))
    assert _modes() == before
    second = trace(torch.ones(4))
    assert _modes() == before
    assert first.graph is not second.graph
    assert aten.sin.default in targets_of(first)
    assert targets_of(first) == targets_of(second)
    for count, module in ((3, first), (4, second)):
        module.graph.output_node().args = (None,)  # a change of one graph is not one of the other
        assert module(torch.ones(count)) is None or module.recompile() is not None


def test_a_trace_inside_of_modes_leaves_these() -> None:
    """PX-43"""
    with symbolic_fake_mode(allow_fallback_kernels=False), torch.no_grad():
        before = _modes()
        x = torch.empty(2, 2)
        refimpl.make_fx(lambda x: x.exp())(x)
        assert _modes() == before
        with pytest.raises(ZeroDivisionError):
            refimpl.make_fx(_fails_inside)(x)
        assert _modes() == before


# ---------------------------------------------------------------------------------------------------------------- UT-33


def _by_angle(ref: torch.Tensor, res: torch.Tensor, **options: Any) -> bool:
    return same(ref, res, cos_similarity=True, **options)


def test_the_angle_is_that_of_flat_tensors_in_float32() -> None:
    """UT-33"""
    ref = torch.randn(4, 5, dtype=torch.float64)
    assert _by_angle(ref, 3 * ref)
    assert not _by_angle(ref, -ref)
    columns = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert not _by_angle(columns, columns.flip(0)), "by rows the angle would be none"
    assert _by_angle(torch.tensor([1, 2], dtype=torch.int64), torch.tensor([2, 4], dtype=torch.int64))
    assert _by_angle(torch.tensor([1.0, 2.0]).half(), torch.tensor([2.0, 4.0]).half())


@pytest.mark.parametrize(("degrees", "passes"), [(0, True), (8.0, True), (8.2, False), (90, False), (180, False)])
def test_the_cosine_must_be_at_least_99_hundredths(
    degrees: float, passes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """UT-33"""
    angle = math.radians(degrees)
    turned = torch.tensor([math.cos(angle), math.sin(angle)])
    with caplog.at_level(logging.WARNING):
        assert _by_angle(torch.tensor([1.0, 0.0]), turned) is passes
    assert (
        any("cosine" in record.message for record in caplog.records if record.levelno == logging.WARNING) is not passes
    )


def test_close_tensors_have_no_angle() -> None:
    """UT-33"""
    assert _by_angle(torch.zeros(3), torch.zeros(3))
    assert _by_angle(torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 1.0]))
    assert not _by_angle(torch.tensor([math.nan, 1.0]), torch.tensor([1.0, 1.0]))
    assert not _by_angle(torch.zeros(3), torch.ones(3))
    assert _by_angle(torch.zeros(3), torch.full((3,), 1e-3), tol=1e-2)


# ---------------------------------------------------------------------------------------------------------------- UT-49


def test_a_checkpointed_region_is_one_call_of_a_graph() -> None:
    """UT-49"""
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh())

    def program(x: torch.Tensor, run: Callable[..., Any]) -> Any:
        return run(module, x.sin(), use_reentrant=False) * 2

    recorder: Any = Recorder()
    x = torch.randn(2, 3, requires_grad=True)
    torch.manual_seed(4)
    expected = program(x, checkpoint)
    torch.manual_seed(4)
    found = compile(lambda x: program(x, checkpoint), backend=recorder, fullgraph=True)(x)
    assert recorder.targets == ["sin", "activation_checkpoint", "getitem", "mul"]
    (call,) = (node for node in recorder.graphs[0].graph.nodes if "activation_checkpoint" in node.name)
    body = getattr(recorder.graphs[0], str(call.args[0].target))
    assert isinstance(body, torch.fx.GraphModule)
    assert len([node for node in body.graph.nodes if node.op.startswith("call")]) >= 3
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(found.sum(), [x, *module.parameters()]),
        torch.autograd.grad(expected.sum(), [x, *module.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_checkpointed_region_draws_the_same_numbers_again_with_functional_random_ops(backend: str) -> None:
    """UT-49"""

    def program(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: nn.functional.dropout(y.sin(), 0.5) * y, x, use_reentrant=False).sum()

    found: list[torch.Tensor] = []
    x = torch.ones(8, requires_grad=True)
    with aot_settings(functionalize_rng_ops=True):
        for run in (program, compile(program, backend=backend, fullgraph=True)):
            torch.manual_seed(4)
            found += [(result := run(x)), *torch.autograd.grad(result, [x])]
    torch.testing.assert_close(found[2:], found[:2])


def test_the_function_is_told_from_others() -> None:
    """UT-49"""
    assert is_utils_checkpoint(checkpoint)
    assert not is_utils_checkpoint(checkpoint_sequential)
    assert not is_utils_checkpoint(lambda *args: args)
