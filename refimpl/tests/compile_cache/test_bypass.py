"""What cannot be kept is compiled without the cache, gives what eager mode gives, and is counted by its reason."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import refimpl
from refimpl._torch import PlainCodeGen
from refimpl.aot.functional_program import ProgramRequest
from refimpl.aot.options import AOTConfig, aot_settings
from refimpl.aot_entry_points import aot_function
from refimpl.backends import eager
from refimpl.capture.config import config
from refimpl.compile_cache import callables, environment
from refimpl.compile_cache.bypass import Bypass, Reason
from refimpl.compile_cache.callables import Describer
from refimpl.compile_cache.key import key_of
from refimpl.export.archive.symbols import SymbolWriter
from refimpl.pipeline import compile_aot
from refimpl.symbolic.fake_inputs import symbolic_fake_mode
from refimpl.tests.compile_cache.looking_up import compiled, reasons


def ones() -> list[Any]:
    return [torch.ones(2, 3)]


@torch.library.custom_op("compile_cache_tests::doubled", mutates_args=())
def _doubled(x: Tensor) -> Tensor:
    return x * 2


@_doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _own(x: Tensor) -> Tensor:
    return x.sin()


@contextlib.contextmanager
def _in_graph() -> Iterator[None]:
    refimpl.allow_in_graph(_own)
    yield


class _WithConstant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.arange(3.0)

    def forward(self, x: Tensor) -> Any:
        return (x * self.plain,)


class _WithLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Any:
        return (self.layer(x),)


class _Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _replaced_kernel() -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    library.impl("special_i1e", lambda x: x, "AutogradCPU")
    try:
        yield
    finally:
        library._destroy()


def _leaf_saved_then_written(x: Tensor) -> Any:
    y = x * 1
    z = y.exp()
    z.mul_(2)
    return (z,)


def _views_of_one() -> list[Any]:
    whole = torch.arange(12.0)
    return [whole[:6], whole[6:]]


def _with_hook(graph: torch.fx.GraphModule) -> None:
    graph.register_forward_hook(lambda module, args, result: None)


def _with_meta(graph: torch.fx.GraphModule) -> None:
    next(iter(graph.graph.nodes)).meta["of_a_tool"] = object()


def _with_object(graph: torch.fx.GraphModule) -> None:
    next(iter(graph.graph.nodes)).meta["custom"] = {"tool": object()}


def _with_plain_attribute(graph: torch.fx.GraphModule) -> None:
    plain = graph.plain
    del graph.plain
    graph.plain = plain  # no buffer, and no input of the traced graph


def _decomposed(x: Tensor, y: Tensor) -> Any:
    return NotImplemented


class _OwnCodeGen(PlainCodeGen):
    def process_inputs(self, *args: Any) -> Any:
        return [arg + 1 for arg in args]


_OwnCodeGen.__name__ = "CodeGen"  # as torch's own


def test_code_generators_are_known_by_their_class() -> None:
    graph = torch.fx.symbolic_trace(lambda x: (x * 2,))
    graph.graph.set_codegen(_OwnCodeGen())
    graph.recompile()
    with pytest.raises(Bypass) as bypass:
        key_of(ProgramRequest(function=graph, args=ones(), graph=graph, config=AOTConfig()))
    assert bypass.value.reason is Reason.GRAPH_CLASS


def _with_own_forward(graph: torch.fx.GraphModule) -> None:
    graph.forward = graph.forward


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program that is captured or traced by fx, and the reason for which it is not kept."""

    reason: Reason
    function: Any
    inputs: Callable[[], list[Any]] = ones
    is_captured: bool = True
    dynamic: bool = False
    setting: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    graph: Callable[[torch.fx.GraphModule], None] = lambda graph: None
    options: dict[str, Any] = field(default_factory=dict)


def _graph(reason: Reason, function: Any, **rest: Any) -> Case:
    return Case(reason=reason, function=function, is_captured=False, **rest)


CASES = (
    Case(reason=Reason.PYTHON_CALLABLE, function=lambda x: _own(x) + 1, setting=_in_graph),
    Case(reason=Reason.HIGHER_ORDER, function=lambda x: checkpoint(lambda y: y.sin().cos(), x, use_reentrant=False)),
    Case(reason=Reason.LIBRARY_OPERATOR, function=lambda x: _doubled(x) + 1),
    Case(reason=Reason.SUBCLASS, function=lambda x: x * 2, inputs=lambda: [TwoTensor(torch.ones(2), torch.zeros(2))]),
    _graph(Reason.TENSOR_KIND, lambda x: (x * 2,), inputs=lambda: [torch.eye(3).to_sparse()]),
    Case(reason=Reason.RANDOM_STATES, function=torch.rand_like, setting=lambda: aot_settings(functionalize_rng_ops=True)),
    Case(reason=Reason.OVERRIDDEN, function=lambda x: x * 2, setting=_replaced_kernel),
    Case(reason=Reason.REFUSED_GRADIENT, function=_leaf_saved_then_written, inputs=lambda: [torch.ones(2).requires_grad_()]),
    Case(reason=Reason.SHARED_MEMORY, function=lambda x, y: x * y, inputs=_views_of_one, dynamic=True),
    Case(reason=Reason.UNBACKED, function=lambda x: x.nonzero().sum(0), dynamic=True,
         setting=lambda: config.patch(capture_dynamic_output_shape_ops=True)),
    Case(reason=Reason.FLOAT, function=lambda x, f: x * f, inputs=lambda: [torch.ones(3), 0.5], dynamic=True),
    _graph(Reason.SUBMODULE, _WithLayer()),
    _graph(Reason.TENSOR_CONSTANT, _WithConstant(), graph=_with_plain_attribute),
    _graph(Reason.CONSTANT, lambda x: (x * 2,), graph=_with_object),
    _graph(Reason.HOOKS, lambda x: (x * 2,), graph=_with_hook),
    _graph(Reason.GRAPH_CLASS, lambda x: (x * 2,), graph=_with_own_forward),
    _graph(Reason.NODE_META, lambda x: (x * 2,), graph=_with_meta),
    _graph(Reason.MODES, lambda x: (x * 2,), setting=_Mode),
    _graph(Reason.DEVICE, lambda x: (x * 2,), inputs=lambda: [torch.ones(2, device="meta")]),
    _graph(Reason.PYTHON_CALLABLE, lambda x: (x * 2,), options={"decompositions": {torch.ops.aten.mul.Tensor: _decomposed}}),
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.reason.name}-{'captured' if case.is_captured else 'graph'}"
)
def test_it_is_compiled_without_the_cache(case: Case, tmp_path: Path) -> None:
    expected = case.function(*case.inputs())
    torch.manual_seed(4)
    found: list[Any] = []

    def run() -> None:
        if not case.is_captured:
            graph = torch.fx.symbolic_trace(case.function)
            case.graph(graph)
            with case.setting():
                found[:] = compiled(graph, case.inputs(), tmp_path, **case.options)[0](*case.inputs())
            return
        refimpl.reset()
        with aot_settings(enable_autograd_cache=True, autograd_cache_folder=str(tmp_path)), case.setting():
            found[:] = [refimpl.compile(case.function, backend="aot_eager", dynamic=case.dynamic)(*case.inputs())]

    assert reasons("bypass", run) == [case.reason.value]
    wanted = expected if isinstance(expected, tuple) else (expected,)
    actual = found[0] if isinstance(found[0], tuple) else found
    for result, value in zip(actual, wanted, strict=True):
        assert result.shape == value.shape
        if case.reason not in (Reason.RANDOM_STATES, Reason.CONSTANT, Reason.DEVICE):
            assert torch.equal(
                result.to_dense() if result.is_sparse else result, value.to_dense() if value.is_sparse else value
            )
    assert list(tmp_path.iterdir()) == []


def test_python_functions_have_no_graph_to_look_up(tmp_path: Path) -> None:
    x = torch.ones(3)
    with aot_settings(enable_autograd_cache=True, autograd_cache_folder=str(tmp_path)):
        for call in (compile_aot(torch.sin), aot_function(torch.sin, eager)):
            assert reasons("bypass", lambda call=call: call(x)) == [Reason.PYTHON_FUNCTION.value]
            assert torch.equal(call(x), x.sin())


def test_sources_that_changed_meanwhile_have_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process runs the sources that it has loaded, and their hash is no longer to be had."""
    monkeypatch.setattr(environment, "_start_of_process", lambda: 0.0)
    with pytest.raises(Bypass) as bypass:
        environment.source_hash.__wrapped__()
    assert bypass.value.reason is Reason.CHANGED_SOURCES


def test_native_functions_are_known_by_their_names() -> None:
    """No other function gets such a name later: a function that is known by its id is kept alive."""
    describer = Describer(SymbolWriter(None))
    for function in (torch.relu, torch.nn.functional.linear, torch.Tensor.add, operator.mul, math.floor, torch.tensor):
        assert describer.record(function, "a test") == {"native": callables._native(function)}
    with pytest.raises(Bypass):
        describer.record([].append, "a test")
    names, held = callables._native_names()
    assert {key for key in names if isinstance(key, int)} <= {id(value) for value in held}


def test_a_native_function_in_the_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    before = callables._native(torch.sin)
    monkeypatch.setattr(torch, "relu", torch.sin)
    names = {value: callables._native_names.__wrapped__()[0][id(value)] for value in (torch.sin, torch.cos)}
    assert names[torch.sin] not in (before, "torch.relu")
    assert names[torch.cos] == callables._native(torch.cos)


def test_values_without_a_text_are_a_bypass(tmp_path: Path) -> None:
    """JSON has no integers of more than a few thousand digits, and no lists nested as deep."""
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    for custom in (10**5000, nested):
        graph = torch.fx.symbolic_trace(lambda x: (x * 2,))
        next(iter(graph.graph.nodes)).meta["custom"] = {"tool": custom}
        assert compiled(graph, ones(), tmp_path)[1] == {"bypass": 1}


def test_functions_of_users_are_not_described_by_a_name_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the place of torch's function, nor as a method, nor inside of a partial or closure."""

    def own(x: Tensor) -> Tensor:
        return x

    describer = Describer(SymbolWriter(None))
    monkeypatch.setattr(torch.nn.functional, "gelu", own)
    monkeypatch.setattr(torch.Tensor, "relu", own)
    closed = functools.wraps(torch.nn.functional.silu)(lambda x: own(x))
    for value in (torch.nn.functional.gelu, functools.partial(map, own), closed, own.__get__(1)):
        with pytest.raises(Bypass) as bypass:
            describer.record(value, "a test")
        assert bypass.value.reason is Reason.PYTHON_CALLABLE
    with pytest.raises(Bypass):
        callables.method_record(describer, "relu")


def _request(args: list[Any], **rest: Any) -> ProgramRequest:
    graph = torch.fx.symbolic_trace(lambda x: (x * 2,))
    return ProgramRequest(function=graph, args=args, graph=graph, **{"config": AOTConfig(), **rest})


def test_requests_that_cannot_be_kept() -> None:
    """Those of export, of fake tensors that stand for nothing, and of arguments that are no tensors or numbers."""
    with symbolic_fake_mode():
        fake = torch.empty(3)
    requests = {
        Reason.EXPORT: _request(ones(), config=AOTConfig(is_export=True)),
        Reason.FAKE_ARGUMENT: _request([fake]),
        Reason.ARGUMENT: _request([object()]),
    }
    for reason, request in requests.items():
        with pytest.raises(Bypass) as bypass:
            key_of(request)
        assert bypass.value.reason is reason


_ELSEWHERE = {
    Reason.PYTHON_FUNCTION, Reason.CHANGED_SOURCES, Reason.EXPORT, Reason.FAKE_ARGUMENT, Reason.ARGUMENT,
    Reason.CAPTURED,  # what a graph reads is an input, or was refused as its constant
    Reason.SPECIALIZED, Reason.NOT_KEPT,  # of programs of the corpus
}  # fmt: skip


def test_every_other_reason_has_a_case() -> None:
    assert {case.reason for case in CASES} == set(Reason) - _ELSEWHERE
