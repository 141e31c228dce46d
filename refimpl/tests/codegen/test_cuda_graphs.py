"""Compiled graphs are recorded and replayed with results of their own, or it is said why not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from refimpl.codegen.compile import compile_graph
from refimpl.codegen.cuda_graphs import WARM_UPS, CudaRecorder, RecordedCallState, Recorder
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.options import CodegenOptions
from refimpl.errors import RefimplError
from refimpl.pipeline import compile_aot
from refimpl.tests.codegen.checks import compiled_with_graphs


class _FakeRecorder:
    """Takes the place of CUDA: a replay reads the recorded inputs as they are then, and writes into the recorded outputs."""

    device_type = "cpu"

    def __init__(self) -> None:
        self.replays = 0

    def record(self, call: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        outputs = call()

        def replay() -> None:
            self.replays += 1
            for mine, new in zip(outputs, call(), strict=True):
                if isinstance(mine, torch.Tensor):
                    mine.copy_(new)

        return outputs, replay


def _compiled(
    function: Callable[..., Any], recorder: Recorder | None = None, *, dynamic: bool = False, **options: Any
) -> tuple[Any, list[CompiledGraph]]:
    chosen = CodegenOptions(cuda_graphs=True, **options)
    return compiled_with_graphs(function, dynamic=dynamic, partition="default", options=chosen, recorder=recorder)


def _recordings(graph: CompiledGraph) -> int:
    assert isinstance(graph.call, RecordedCallState)
    return graph.call.recordings


def test_replays_give_results_that_the_next_one_does_not_write_over() -> None:
    recorder = _FakeRecorder()
    weight = torch.randn(8)
    compiled, graphs = _compiled(lambda x, w: (F.layer_norm(x, (8,), w).relu(), x.sum(0)), recorder)
    xs = [torch.randn(5, 8) for _ in range(6)]
    results = [compiled(x, weight) for x in xs]
    for x, (normal, total) in zip(xs, results, strict=True):
        torch.testing.assert_close(normal, F.layer_norm(x, (8,), weight).relu())
        torch.testing.assert_close(total, x.sum(0))
    assert _recordings(graphs[0]) == 1
    assert recorder.replays == len(xs) - WARM_UPS
    assert graphs[0].unrecorded is None


def test_gradients_are_replayed_too() -> None:
    weight = torch.randn(8, requires_grad=True)
    compiled, graphs = _compiled(lambda x, w: (x * w).softmax(1).square().sum(), _FakeRecorder())
    for _ in range(5):
        x = torch.randn(5, 8)
        (gradient,) = torch.autograd.grad(compiled(x, weight), weight)
        (expected,) = torch.autograd.grad((x * weight).softmax(1).square().sum(), weight)
        torch.testing.assert_close(gradient, expected)
    assert [_recordings(graph) for graph in graphs] == [1, 1]


def test_attention_is_replayed() -> None:
    compiled, graphs = _compiled(lambda x: F.scaled_dot_product_attention(x, x, x) * 2, _FakeRecorder())
    for _ in range(4):
        x = torch.randn(1, 2, 5, 16)
        torch.testing.assert_close(compiled(x), F.scaled_dot_product_attention(x, x, x) * 2)
    assert _recordings(graphs[0]) == 1


def test_an_input_that_moves_later_is_copied_from_then_on() -> None:
    compiled, graphs = _compiled(lambda x, w: x * w + 1, _FakeRecorder())
    x, weight = torch.randn(4), torch.randn(4)
    for _ in range(4):
        torch.testing.assert_close(compiled(x, weight), x * weight + 1)
    weight.mul_(2)  # in place: it is where it was
    torch.testing.assert_close(compiled(x, weight), x * weight + 1)
    assert _recordings(graphs[0]) == 1
    for _ in range(3):
        moved = torch.randn(4)
        torch.testing.assert_close(compiled(x, moved), x * moved + 1)
    assert _recordings(graphs[0]) == 2


def test_outputs_that_are_inputs_are_the_callers() -> None:
    recorder = _FakeRecorder()
    made: list[CompiledGraph] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        options = CodegenOptions(cuda_graphs=True)
        made.append(compile_graph(graph_module, example_inputs, options=options, recorder=recorder))
        return made[-1]

    compile_aot(lambda x, y: (x.sin() * y, y + 1), backend=backend, decompositions=codegen_decompositions())(
        *(torch.randn(3, requires_grad=True) for _ in range(2))
    )
    forward = made[0]
    for _ in range(4):
        x, y = torch.randn(3), torch.randn(3)
        outputs = forward(x, y)
        torch.testing.assert_close(outputs[0], x.sin() * y)
        saved = [output for output in outputs if output is x or output is y]
        assert len(saved) == 2


def test_an_input_of_another_shape_is_an_error() -> None:
    call = RecordedCallState(lambda x: (x + 1,), _FakeRecorder())
    for _ in range(4):
        call(torch.randn(4))
    with pytest.raises(RefimplError, match=r"input 0 was torch\.float32\[4\].*is torch\.float32\[1\]"):
        call(torch.randn(1))


REFUSED: dict[str, tuple[Callable[..., Any], str, dict[str, Any]]] = {
    "symbolic sizes": (lambda x: x + 1, "symbolic sizes: s", {"dynamic": True}),
    "random numbers": (lambda x: F.dropout(x, 0.5) + torch.rand(4), "random numbers of aten", {}),
    "random numbers of kernels": (lambda x: x + torch.rand(4), "random numbers of aten", {"random": "philox"}),
    "calls that wait": (lambda x: x.unique(), "aten.*unique.* is not known to be capturable", {}),
    "numbers read": (lambda x: torch.linalg.inv(x[:1].view(1, 1)), "is not known to be capturable", {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_runs_as_it_is_and_says_why(name: str) -> None:
    function, why, options = REFUSED[name]
    recorder = _FakeRecorder()
    compiled, graphs = _compiled(function, recorder, **options)
    for _ in range(4):
        compiled(torch.ones(4) + 1)
    assert recorder.replays == 0
    assert graphs[0].unrecorded is not None
    assert re.search(why, graphs[0].unrecorded)


def test_tensors_on_a_cpu_are_refused_by_cuda() -> None:
    compiled, graphs = _compiled(lambda x: x + 1)
    compiled(torch.randn(3))
    assert graphs[0].unrecorded == "a tensor on cpu: arg0_1"


@pytest.mark.gpu
def test_recordings_on_a_gpu() -> None:
    weight = torch.randn(64, 64, device="cuda", requires_grad=True)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.gelu(x @ w), (64,)).softmax(1).square().sum()

    compiled, graphs = _compiled(function, CudaRecorder())
    for _ in range(6):
        x = torch.randn(32, 64, device="cuda")
        (gradient,) = torch.autograd.grad(compiled(x, weight), weight)
        (expected,) = torch.autograd.grad(function(x, weight), weight)
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)
    assert [_recordings(graph) for graph in graphs] == [1, 1]
