"""The benchmarks of the code generator run, and say what they have measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from refimpl.benchmarks import codegen_compile_time
from refimpl.benchmarks.partition_models import Mlp, Model


def test_compile_time_counts_what_was_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "times.csv"
    options = ["--only", "mlp gelu", "--rounds", "1", "--no-inductor", "--no-cubins", "--csv", str(file)]
    codegen_compile_time.main(options)
    (row,) = pd.read_csv(file).to_dict("records")
    assert row["model"] == "mlp gelu"
    assert row["graphs"] == 2
    assert row["kernels"] >= 2
    assert row["source_s"] > 0
    assert "source_s" in capsys.readouterr().out


def test_no_model_is_begun_after_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    codegen_compile_time.main(["--only", "mlp", "--time", "0", "--no-inductor", "--no-cubins", "--own"])
    assert "5 models were not begun" in capsys.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_cubins_are_compiled_each_time_anew() -> None:
    graphs = codegen_compile_time.compiled_graphs(Model(Mlp(F.relu), (torch.randn(4, 128),)))
    first, second = (codegen_compile_time.cubin_seconds(graphs[:1]) for _ in range(2))
    assert second > first / 10
