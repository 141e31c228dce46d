"""The benchmarks and tables of the code generator run, and say what they have measured."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from benchmarks import on_gpu
from benchmarks.cases import codegen_speed, compile_time
from benchmarks.harness import Case, Row, measure
from benchmarks.measurements import codegen_fusion
from benchmarks.models import Mlp, Model
from oracle.errors import UsageError
from refimpl.codegen.levels.cubin import CompiledKernel

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


def row_of(cases: Any, name: str, *sides: str) -> Row:
    """One round of a case."""
    (case,) = (case for case in cases if case.name == name)
    return measure("benchmark", case, repeat=1, warm_up=1, only=sides)


def test_compile_time_counts_what_was_made() -> None:
    row = row_of(compile_time.compile_time(own=True), "mlp gelu", "source")
    assert row.errors == {}
    assert row.figures["graphs"] == 2
    assert row.figures["kernels"] >= 2
    assert list(row.samples) == ["source"]


@needs_triton
def test_cubins_are_compiled_each_time_anew() -> None:
    graphs = compile_time.compiled_graphs(Model(Mlp(F.relu), (torch.randn(4, 128),)))
    first, second = (compile_time.cubin_figures(graphs[:1]) for _ in range(2))
    assert second["processor_s"] > first["processor_s"] / 10
    assert min(first["wall_s"], second["wall_s"]) > 0
    assert 0 < first["products_s"] <= first["processor_s"]


def test_a_kernel_that_is_launched_often_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def compile_batch(kernels: Sequence[Any], capability: int, *, has_aligned_tensors: bool) -> list[Any]:
        counts.append(len(kernels))
        return [compiled] * len(kernels)

    compiled = CompiledKernel(registers=1, spills=0, shared_memory=0, ptx="", cubin=b"", seconds=2.0)

    monkeypatch.setattr(compile_time, "compile_batch", compile_batch)
    graphs = compile_time.compiled_graphs(Model(Mlp(F.gelu), (torch.randn(4, 128),)))
    figures = compile_time.cubin_figures(graphs[:1])
    assert counts == [len(graphs[0].kernels)] == [figures["kernels"]]
    assert figures["processor_s"] == 2.0 * figures["kernels"]
    products = {one.kernel.hash for one in graphs[0].printed if "addmm" in " ".join(one.origins)}
    assert figures["products_s"] == 2.0 * len(products) > 0
    assert counts[0] < len(graphs[0].printed)


def test_ratios_of_compile_times_are_of_the_sides_that_were_measured() -> None:
    seconds = {"source": 1.0, "cubins": 2.0, "inductor_cpp": 4.0}
    assert compile_time.ratios(seconds) == {"source_ratio": 0.25, "total_ratio": 0.75}
    triton = {"inductor_triton": 2.0, "inductor_cubins": 4.0}
    assert compile_time.ratios({**seconds, **triton})["triton_ratio"] == 0.5


@needs_triton
def test_inductors_kernels_are_compiled_in_all_configurations() -> None:
    model = Model(Mlp(F.gelu, depth=1), (torch.randn(4, 128),))
    (forward, backward) = compile_time.graphs_by_inductor(model)
    kernels = len(on_gpu.kernel_texts(forward.source)) + len(on_gpu.kernel_texts(backward.source))
    assert on_gpu.compile_kernels([forward, backward]) >= kernels > 0


@pytest.mark.parametrize("program", ["layer norm", "rms norm of residual"])
def test_speed_is_measured_of_programs_that_give_what_eager_gives(program: str) -> None:
    row = row_of(codegen_speed.codegen_speed(cpu=True), program, "ours", "eager", "ours_tuned")
    assert row.errors == {}
    assert list(row.ratios()) == ["ours_tuned", "eager"]
    assert row.figures["GB/s"] > 0


def test_gradients_are_part_of_what_is_compared() -> None:
    program = codegen_speed.programs(codegen_speed.TINY, "cpu", torch.float32)["transformer block, backward"]()
    assert isinstance(program.function, torch.nn.Module)
    assert len(codegen_speed.called(program, program.function)) == 1 + len(list(program.function.parameters()))


def test_a_side_that_is_wrong_or_raises_is_named_and_has_no_time() -> None:
    program = codegen_speed.Program(torch.sin, (torch.ones(3),))
    peers: dict[str, Callable[..., Any]] = {
        "eager": torch.sin, "ours": lambda x: torch.sin(x) * 1.1, "inductor": lambda x: x.no_such(),
    }  # fmt: skip
    sides = {name: codegen_speed.CheckedState(program, lambda call=call: call, 1e-3) for name, call in peers.items()}
    row = measure("codegen_speed", Case("sin", lambda: sides), repeat=1)
    assert list(row.samples) == ["eager"]
    assert row.errors["ours"] == "ValueError: differs from eager by 1.0e-01 of the greatest value"
    assert row.errors["inductor"].startswith("AttributeError: 'Tensor' object has no attribute 'no_such'")


def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="no CUDA device") as raised:
        next(codegen_speed.codegen_speed())
    assert raised.value.expected.startswith("a GPU")


@pytest.mark.gpu
def test_speed_on_a_gpu() -> None:
    row = row_of(codegen_speed.codegen_speed(), "softmax", "ours", "eager", "inductor")
    assert row.errors == {}
    assert row.ratios()["inductor"].speedup > 0


@needs_triton
def test_fusion_is_counted_beside_inductors_code_for_a_gpu() -> None:
    rows = list(codegen_fusion.measure(codegen_speed.TINY, "layer norm", has_models=False))
    assert [row["direction"] for row in rows] == ["inference", "forward", "backward"]
    inference = rows[0]
    assert (inference["kernels"], inference["inductor_kernels"]) == (1, 1)
    assert inference["mb"] == inference["inductor_mb"] == round((2 * 4 * 16 + 2 * 16) * 4 / 1e6, 3)


def test_launches_and_calls_are_read_off_inductors_code() -> None:
    source = """
triton_a = async_compile.triton('triton_a', '''
    inductor_meta={'kernel_num_gb': 2.5e-07},
''', device_str='cuda')
def call(args):
    triton_a.run(x, 4, stream=0)
    extern_kernels.mm(x, y, out=z)
    triton_a.run(z, 4, stream=0)
    buf = torch.ops.aten.sort.stable(z, dim=0)
"""
    assert on_gpu.kernel_texts(source) == {"triton_a": "\n    inductor_meta={'kernel_num_gb': 2.5e-07},\n"}
    graph = on_gpu.parsed(source)
    assert graph.kernels == (250, 250)
    assert graph.calls == ("extern_kernels.mm", "torch.ops.aten.sort.stable")
