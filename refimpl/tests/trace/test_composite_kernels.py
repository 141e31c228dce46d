"""Composite operators in traces with symbolic sizes: eager's values at other sizes too, and none of torch's Python kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

import refimpl
from refimpl._torch import OpOverload, OpOverloadPacket, pytree
from refimpl.trace import composite_kernels

_KEYS = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)
Shapes = tuple[tuple[int, ...], ...]


def _window() -> Tensor:
    return torch.hann_window(8)


def _padded(side: str) -> Callable[..., Any]:
    return lambda a, b, c: pad_sequence([a, b, c], True, 1.5, side)


def _recurrent(kind: str, **options: Any) -> tuple[Callable[..., Any], Shapes]:
    layer = getattr(torch.nn, kind)(5, 7, **options)
    names = [name for name, _ in layer.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Any:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    return run, tuple(tuple(parameter.shape) for parameter in layer.parameters())


_LSTM, _OF_LSTM = _recurrent("LSTM", num_layers=2, bidirectional=True)
_PROJECTED, _OF_PROJECTED = _recurrent("LSTM", proj_size=4)
_GRU, _OF_GRU = _recurrent("GRU", bias=False)
_RNN, _OF_RNN = _recurrent("RNN", nonlinearity="relu", batch_first=True)

# A program, the shapes with which it is traced, and those with which the graph runs too.
PROGRAMS: dict[str, tuple[Callable[..., Any], Shapes, Shapes]] = {
    "matmul": (torch.matmul, ((2, 3, 4), (4, 5)), ((3, 2, 6), (6, 2))),
    "matmul of batches": (torch.matmul, ((2, 1, 3, 4), (5, 4, 3)), ((3, 1, 2, 6), (2, 6, 2))),
    "nearest": (lambda x: functional.interpolate(x, scale_factor=1.7), ((2, 3, 4),), ((5, 2, 6),)),
    "bilinear": (lambda x: functional.interpolate(x, size=(5, 6), mode="bilinear"), ((2, 3, 4, 7),), ((5, 2, 6, 3),)),
    "bicubic, antialiased": (
        lambda x: functional.interpolate(x, scale_factor=2.0, mode="bicubic", antialias=True), ((2, 3, 4, 4),), ((5, 2, 6, 6),),
    ),
    "unsafe_chunk": (lambda x: torch.unsafe_chunk(x, 2, 1), ((3, 5),), ((4, 6),)),
    "pad_sequence": (_padded("right"), ((4, 3), (2, 3), (5, 3)), ((6, 2), (7, 2), (5, 2))),
    "pad_sequence, left": (_padded("left"), ((4, 3), (2, 3), (5, 3)), ((6, 2), (7, 2), (5, 2))),
    "stft": (lambda x: torch.stft(x, 8, window=_window(), return_complex=True), ((2, 40),), ((3, 50),)),
    "stft, not centred": (lambda x: torch.stft(x, 8, 3, center=False, return_complex=True), ((40,),), ((51,),)),
    "istft": (
        lambda x: torch.istft(torch.stft(x, 8, window=_window(), return_complex=True), 8, window=_window(), length=30),
        ((2, 40),), ((3, 50),),
    ),
    "batch_norm": (lambda x, w: functional.batch_norm(x, None, None, w, training=True), ((3, 4, 5), (4,)), ((6, 4, 2), (4,))),
    "hardshrink": (functional.hardshrink, ((3, 4),), ((5, 2),)),
    "multi_margin_loss": (
        lambda x: functional.multi_margin_loss(x, torch.zeros_like(x[:, 0], dtype=torch.int64)), ((3, 4),), ((2, 5),),
    ),
    "multilabel_margin_loss": (
        lambda x: functional.multilabel_margin_loss(x, torch.ones_like(x, dtype=torch.int64).cumsum(1) - 2), ((3, 4),), ((2, 5),),
    ),
    "dropout": (lambda x: functional.dropout(x, 0.5), ((3, 4),), ((5, 2),)),
    "dropout of all": (lambda x: functional.dropout(x, 1.0), ((3, 4),), ((5, 2),)),
    "lstm": (_LSTM, ((4, 3, 5), *_OF_LSTM), ((4, 6, 5), *_OF_LSTM)),
    "lstm with projections": (_PROJECTED, ((6, 3, 5), *_OF_PROJECTED), ((6, 2, 5), *_OF_PROJECTED)),
    "gru": (_GRU, ((4, 3, 5), *_OF_GRU), ((4, 6, 5), *_OF_GRU)),
    "rnn": (_RNN, ((3, 4, 5), *_OF_RNN), ((6, 4, 5), *_OF_RNN)),
}  # fmt: skip


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The results of the function, and the gradients of their squares."""

    def run(*tensors: Tensor) -> Any:
        results = pytree.tree_leaves(function(*tensors))
        return results, torch.autograd.grad([result.abs().square().sum() for result in results], tensors)

    return run


def inputs(shapes: Shapes) -> list[Tensor]:
    torch.manual_seed(3)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def poisoned(*_: Any, **__: Any) -> Any:
    raise AssertionError("a trace ran a Python kernel of torch")


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> int:
    """Every Python kernel of torch that computes an operator by others raises. Returns how many."""
    count = 0
    for packet in list(vars(torch.ops.aten).values()):
        operators = vars(packet).values() if isinstance(packet, OpOverloadPacket) else ()
        for operator in [one for one in operators if isinstance(one, OpOverload)]:
            for key in set(_KEYS) & set(operator.py_kernels):
                monkeypatch.setitem(operator.py_kernels, key, poisoned)
                count += 1
            operator._dispatch_cache.clear()
    return count


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_symbolic_trace_has_eagers_values_and_runs_no_kernel_of_torch(name: str, poison: int) -> None:
    assert poison > 30
    function, traced, others = PROGRAMS[name]
    program = with_gradients(function)
    graph = refimpl.make_fx(program, tracing_mode="symbolic")(*inputs(traced))
    for shapes in (traced, others):
        expected = program(*inputs(shapes))  # the generator is seeded when inputs are made
        torch.testing.assert_close(graph(*inputs(shapes)), expected, rtol=1e-5, atol=1e-5)


def test_the_poison_is_seen(poison: int) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415  only here, where it is what is poisoned

    with pytest.raises(AssertionError, match="a trace ran a Python kernel of torch"):
        make_fx(torch.matmul, tracing_mode="symbolic")(torch.randn(2, 3), torch.randn(3, 4))


def test_kernels_of_torch_are_back_after_a_trace() -> None:
    before = dict(torch.ops.aten.matmul.default.py_kernels)
    refimpl.make_fx(torch.matmul, tracing_mode="symbolic")(torch.randn(2, 3), torch.randn(3, 4))
    assert torch.ops.aten.matmul.default.py_kernels == before


def test_a_kernel_that_a_module_registers_after_a_trace_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = torch.randn(2), torch.randn(3)
    expected = refimpl.make_fx(torch.kron, tracing_mode="symbolic")(*operands).code
    monkeypatch.setitem(torch.ops.aten.kron.default.py_kernels, _KEYS[0], poisoned)
    torch.ops.aten.kron.default._dispatch_cache.clear()
    monkeypatch.setitem(sys.modules, "registers_a_kernel", ModuleType("registers_a_kernel"))
    assert refimpl.make_fx(torch.kron, tracing_mode="symbolic")(*operands).code == expected
    assert torch.ops.aten.kron.default.py_kernels[_KEYS[0]] is poisoned


@pytest.mark.parametrize("values", [[0, 5], [-1, 2]])
def test_classes_out_of_range_are_an_error_when_the_graph_runs(values: list[int]) -> None:
    graph = refimpl.make_fx(lambda x: functional.one_hot(x, 5), tracing_mode="symbolic")(torch.tensor([0, 1, 4]))
    assert torch.equal(graph(torch.tensor([2, 0])), functional.one_hot(torch.tensor([2, 0]), 5))
    with pytest.raises(RuntimeError, match="Class values must be"):
        graph(torch.tensor(values))


_OPERANDS = [(4,), (3, 4), (2, 3, 4), (1, 3, 4), (5, 2, 3, 4)], [(4,), (4, 6), (2, 4, 6), (1, 4, 6), (1, 2, 4, 6)]


@pytest.mark.fractional
@pytest.mark.parametrize("gradients", [(False, False), (True, False), (False, True)], ids=["none", "left", "right"])
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("right", _OPERANDS[1], ids=str)
@pytest.mark.parametrize("left", _OPERANDS[0], ids=str)
def test_our_matmul_calls_the_operators_that_eagers_calls(
    left: tuple[int, ...], right: tuple[int, ...], is_transposed: bool, gradients: tuple[bool, bool]
) -> None:
    """Traces of torch before 2.13 run ours, since its C++ kernel made sizes numbers."""

    def operand(sizes: tuple[int, ...], requires_grad: bool) -> Tensor:
        made = torch.randn(sizes)
        made = made.mT.contiguous().mT if is_transposed and made.dim() > 1 else made
        return made.requires_grad_(requires_grad)

    operands = [operand(sizes, requires_grad) for sizes, requires_grad in zip((left, right), gradients, strict=True)]
    expected = refimpl.make_fx(torch.matmul)(*operands)
    found = refimpl.make_fx(composite_kernels._matmul)(*operands)
    result = torch.matmul(*operands)
    assert torch.equal(found(*operands), result)
    assert found(*operands).stride() == result.stride()
    products = ("mm", "bmm", "mv", "dot", "_unsafe_view", "expand", "contiguous", "clone")
    names = [
        [name for node in graph.graph.nodes if (name := str(node.target).split(".")[1:2]) and name[0] in products]
        for graph in (found, expected)
    ]
    assert names[0] == names[1]
