"""The benchmarks of the code generator run, and say what they have measured."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from refimpl.benchmarks import codegen_compile_time, codegen_fusion, codegen_speed, on_gpu
from refimpl.benchmarks.partition_models import Mlp, Model
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.cubin import CompiledKernel


def test_compile_time_counts_what_was_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "times.csv"
    options = ["--only", "mlp gelu", "--rounds", "1", "--peers", "", "--csv", str(file)]
    codegen_compile_time.main(options)
    (row,) = pd.read_csv(file).to_dict("records")
    assert row["model"] == "mlp gelu"
    assert row["graphs"] == 2
    assert row["kernels"] >= 2
    assert row["source_s"] > 0
    assert "source_s" in capsys.readouterr().out


def test_no_model_is_begun_after_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    codegen_compile_time.main(["--only", "mlp", "--time", "0", "--peers", "", "--own"])
    assert "5 models were not begun" in capsys.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_cubins_are_compiled_each_time_anew() -> None:
    graphs = codegen_compile_time.compiled_graphs(Model(Mlp(F.relu), (torch.randn(4, 128),)))
    first, second = (codegen_compile_time.cubin_seconds(graphs[:1]) for _ in range(2))
    assert second.all.processor > first.all.processor / 10
    assert min(first.all.wall, second.all.wall) > 0
    assert 0 < first.products <= first.all.processor


def test_speed_is_measured_of_programs_that_give_what_eager_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "speed.csv"
    peers = ["--peers", "eager,ours,ours_tuned"]
    codegen_speed.main(["--cpu", "--rounds", "1", "--only", "norm", "--csv", str(file), *peers])
    rows = pd.read_csv(file).to_dict("records")
    assert [row["program"] for row in rows] == ["layer norm", "rms norm of residual"]
    assert all(row["ours_ms"] > 0 and row["eager_over_ours"] > 0 and row["of_copy"] >= 0 for row in rows)
    assert all(pd.isna(row["wrong"]) and pd.isna(row["inductor_ms"]) for row in rows)
    assert "these figures mean nothing" in capsys.readouterr().out


def test_gradients_are_part_of_what_is_compared() -> None:
    program = codegen_speed.programs(codegen_speed.TINY, "cpu", torch.float32)["transformer block, backward"]()
    assert isinstance(program.function, torch.nn.Module)
    assert len(codegen_speed.called(program, program.function)) == 1 + len(list(program.function.parameters()))


def test_a_peer_that_is_wrong_or_raises_is_named_and_has_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def peers(function: object, chosen: object) -> dict[str, Callable[..., Any]]:
        return {"eager": torch.sin, "ours": lambda x: torch.sin(x) * 1.1, "inductor": lambda x: x.no_such()}

    monkeypatch.setattr(codegen_speed, "peers", peers)
    program = codegen_speed.Program(torch.sin, (torch.ones(3),))
    times, wrong = codegen_speed.measure(program, (), codegen_speed.bench_on_cpu, 1, 1e-3)
    assert list(times) == ["eager"]
    assert wrong["ours"] == "differs from eager by 1.0e-01 of the greatest value"
    assert wrong["inductor"].startswith("AttributeError: 'Tensor' object has no attribute 'no_such'")


def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        codegen_speed.main([])
    assert stopped.value.code == codegen_speed.NO_GPU == 2
    said = capsys.readouterr().err
    assert all(part in said for part in ("no CUDA device", "expected: a GPU", "what to do: "))


def test_a_table_goes_on_behind_the_program_at_which_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(program: codegen_speed.Program, *_: Any) -> tuple[dict[str, float], dict[str, str]]:
        measured.append(program.function.__name__)
        if program.function is torch.cos:
            raise KeyboardInterrupt
        if program.function is torch.tan:
            raise RuntimeError("out of everything")
        return {"eager": 2.0, "ours": 1.0}, {}

    names = {name: codegen_speed.Program(getattr(torch, name), (torch.ones(3),)) for name in ("sin", "cos", "tan")}
    makers = {name: lambda made=made: made for name, made in names.items()}
    monkeypatch.setattr(codegen_speed, "measure", measure)
    monkeypatch.setattr(codegen_speed, "programs", lambda *_: makers)
    command = ["--cpu", "--rounds", "1", "--resume", "--csv", str(tmp_path / "speed.csv")]
    with pytest.raises(KeyboardInterrupt):
        codegen_speed.main(command)
    for _ in range(2):
        codegen_speed.main(command)
    assert measured == ["sin", "cos", "tan"]
    rows = pd.read_csv(tmp_path / "speed.csv").fillna("").to_dict("records")
    assert [(row["program"], row["eager_over_ours"], row["wrong"]) for row in rows] == [
        ("sin", 2.0, ""), ("cos", "", "all: did not end"), ("tan", "", "all: RuntimeError: out of everything"),
    ]  # fmt: skip


def test_means_are_of_the_rows_that_have_a_ratio() -> None:
    rows = [
        {"eager_over_ours": ratio, "inductor_over_ours": math.nan, "inductor_max_over_tuned": 1.0, "of_copy": 0.5}
        for ratio in (1.0, 4.0, math.nan)
    ]
    assert codegen_speed.geometric_means(rows) == {
        "eager_over_ours": (2.0, 2), "inductor_max_over_tuned": (1.0, 3), "of_copy": (0.5, 3),
    }  # fmt: skip


@pytest.mark.gpu
def test_speed_on_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "speed.csv"
    codegen_speed.main(["--rounds", "3", "--only", "softmax", "--csv", str(file)])
    rows = pd.read_csv(file).to_dict("records")
    assert all(pd.isna(row["wrong"]) and row["inductor_over_ours"] > 0 for row in rows)


def test_a_kernel_that_is_launched_often_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def compile_batch(kernels: Sequence[Any], capability: int, *, has_aligned_tensors: bool) -> list[Any]:
        counts.append(len(kernels))
        return [compiled] * len(kernels)

    compiled = CompiledKernel(registers=1, spills=0, shared_memory=0, ptx="", cubin=b"", seconds=2.0)

    monkeypatch.setattr(codegen_compile_time, "compile_batch", compile_batch)
    graphs = codegen_compile_time.compiled_graphs(Model(Mlp(F.gelu), (torch.randn(4, 128),)))
    seconds = codegen_compile_time.cubin_seconds(graphs[:1])
    assert counts == [len(graphs[0].kernels)] == [seconds.kernels]
    assert seconds.all.processor == 2.0 * seconds.kernels
    products = {one.kernel.hash for one in graphs[0].printed if "addmm" in " ".join(one.origins)}
    assert seconds.products == 2.0 * len(products) > 0
    assert counts[0] < len(graphs[0].printed)


def test_a_table_of_compile_times_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def compiled_graphs(model: Model) -> list[CompiledGraph]:
        measured.append(type(model.module).__name__)
        return []

    monkeypatch.setattr(codegen_compile_time, "compiled_graphs", compiled_graphs)
    command = ["--only", "conv", "--own", "--peers", "", "--resume", "--csv", str(tmp_path / "times.csv")]
    for limit, enough in (("1", "inf"), ("5", "-1")):
        codegen_compile_time.main([*command, "--limit", limit, "--rounds", "2", "--enough", enough])
    assert measured == ["Mlp", "ConvBlock", "ConvBlock", "Mlp", "ConvBlock"]
    rows = pd.read_csv(tmp_path / "times.csv").to_dict("records")
    assert [(row["model"], row["rounds"]) for row in rows] == [("conv batch norm", 2), ("conv group norm", 1)]


def test_peers_that_a_table_has_not_are_added_to_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(codegen_compile_time, "compiled_graphs", lambda model: [])
    monkeypatch.setattr(codegen_compile_time, "graphs_by_inductor", lambda model: calls.append("triton") or [])
    monkeypatch.setattr(codegen_compile_time, "compile_by_inductor", lambda model: calls.append("cpp"))
    file = tmp_path / "times.csv"
    file.write_text("model,inductor_cpp_s\nanother,1.5\n")  # of an earlier run, with fewer columns
    command = ["--only", "mlp relu", "--own", "--rounds", "1", "--resume", "--csv", str(file)]
    for peers in ("inductor_triton", "inductor_triton,inductor_cpp", "inductor_cpp"):
        calls.append(peers)
        codegen_compile_time.main([*command, "--peers", peers])
    assert calls == [
        "inductor_triton", "triton", "triton", "inductor_triton,inductor_cpp", "cpp", "triton", "cpp", "inductor_cpp", "cpp"
    ]  # fmt: skip
    known, row = pd.read_csv(file).to_dict("records")
    assert known["inductor_cpp_s"] == 1.5
    assert not pd.isna(row["inductor_triton_s"])
    assert not pd.isna(row["inductor_cpp_s"])


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_inductors_kernels_are_compiled_in_all_configurations() -> None:
    model = Model(Mlp(F.gelu, depth=1), (torch.randn(4, 128),))
    (forward, backward) = codegen_compile_time.graphs_by_inductor(model)
    kernels = len(on_gpu.kernel_texts(forward.source)) + len(on_gpu.kernel_texts(backward.source))
    assert on_gpu.compile_kernels([forward, backward]) >= kernels > 0


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_fusion_is_counted_beside_inductors_code_for_a_gpu() -> None:
    seen: list[dict[str, Any]] = []
    rows = codegen_fusion.measure(codegen_speed.TINY, "layer norm", has_models=False, seen=seen.append)
    assert rows == seen
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
