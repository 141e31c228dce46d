"""Modules that get the emulator for Triton, what is not emulated, and the time of a launch."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from refimpl.codegen.emulator import (
    JitFunction,
    KernelError,
    NotEmulated,
    Options,
    OutOfBounds,
    run_module,
    triton_emulated,
)
from refimpl.tests.emulator.kernels import ADD, make, normal


def test_what_is_not_emulated_is_named() -> None:
    kernel = make("blocks", "x:*fp32", "p = tl.make_block_ptr(x, (4,), (1,), (0,), (4,), (0,))")
    with pytest.raises(NotEmulated, match=r"triton.language.make_block_ptr.*make_block_ptr\(x"):
        kernel.launch((1,), [torch.zeros(4)])
    with pytest.raises(NotEmulated, match=r"import triton\.experimental"):
        run_module("import triton.experimental\n", "<k>", "k")


def test_source_that_is_no_python_is_named() -> None:
    with pytest.raises(KernelError, match="kernel 'k': source that is no Python"):
        run_module("def k(:", "<k>", "k")


def test_a_module_that_imports_triton_keeps_the_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels_of_mine.py").write_text(
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef fill(o, n, B: tl.constexpr):\n"
        "    i = tl.program_id(0) * B + tl.arange(0, B)\n    tl.store(o + i, 1, mask=i < n)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(JitFunction, "options", Options())  # which triton_emulated sets
    before = {name for name in sys.modules if name.split(".")[0] == "triton"}
    with triton_emulated():
        fill = importlib.import_module("kernels_of_mine").fill
    assert {name for name in sys.modules if name.split(".")[0] == "triton"} == before
    fill[(4,)](out := torch.zeros(100), 100, B=32)
    assert out.tolist() == [1.0] * 100
    with pytest.raises(OutOfBounds, match=r"a store of o\[100\].*kernels_of_mine.py:8"):
        fill[(4,)](out, 101, B=32)


def test_triton_is_not_imported(run_fresh: Callable[..., Any]) -> None:
    script = (
        "import sys, torch\nfrom refimpl.tests.emulator.kernels import ADD\n"
        "ADD.launch((1,), [torch.zeros(8), torch.zeros(8), 8], B=8)\nassert 'triton' not in sys.modules\nprint('ran')"
    )
    ran = run_fresh(script)
    assert ran.stdout == "ran\n", ran.stderr


def test_a_small_launch_takes_less_than_a_millisecond_of_processor_time() -> None:
    x, out = normal(8192), torch.zeros(8192)
    times = []
    for _ in range(30):
        start = time.process_time()
        ADD.launch((64,), [x, out, 8192], options=Options(), B=128)
        times.append(time.process_time() - start)
    assert min(times) < 1e-3, f"{min(times) * 1e3:.2f} ms"
