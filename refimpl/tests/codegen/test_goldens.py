"""Source of kernels and of launch plans for small programs: what a change does to generated code is read in a diff."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.pipeline import compile_aot

FLOAT, HALF, BFLOAT, LONG = torch.float32, torch.float16, torch.bfloat16, torch.int64
Argument = tuple[tuple[int, ...], torch.dtype]


def _of(dtype: torch.dtype, *shape: int) -> Argument:
    return shape, dtype


def _residual_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return F.rms_norm(total, (total.shape[-1],), weight, 1e-6), total


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Argument, ...]]] = {
    "pointwise_chain": (lambda x, y: (F.gelu(x * 2 + y), (x > y).sum(1)), (_of(FLOAT, 60, 100), _of(FLOAT, 60, 100))),
    "broadcast": (lambda x, b: (x + b).relu() * b.sigmoid(), (_of(FLOAT, 32, 48), _of(FLOAT, 48))),
    "transpose_and_add": (lambda x, y: x.t() + y, (_of(FLOAT, 96, 200), _of(FLOAT, 200, 96))),
    "transposed_copy": (lambda x: x.permute(0, 2, 1).contiguous(), (_of(FLOAT, 3, 80, 70),)),
    "softmax": (lambda x: x.softmax(-1), (_of(FLOAT, 16, 100),)),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (128,), w, b),
        (_of(FLOAT, 8, 128), _of(FLOAT, 128), _of(FLOAT, 128)),
    ),
    "rms_norm_of_residual": (_residual_norm, (_of(BFLOAT, 8, 128), _of(BFLOAT, 8, 128), _of(BFLOAT, 128))),
    "cross_entropy": (lambda x, y: F.cross_entropy(x, y), (_of(FLOAT, 12, 50), _of(LONG, 12))),
    "mean_and_variance": (lambda x: torch.var_mean(x, 1), (_of(FLOAT, 6, 3000),)),
    "running_sum": (lambda x: x.cumsum(1), (_of(FLOAT, 6, 100),)),
    "argmax_of_ties": (lambda x: (x.argmax(1), x.round().argmin(0)), (_of(FLOAT, 20, 30),)),
    "embedding": (lambda table, at: F.embedding(at, table) * 2, (_of(FLOAT, 40, 16), _of(LONG, 6, 5))),
    "cat_and_pad": (lambda x, y: F.pad(torch.cat([x, y], 1), (1, 2)), (_of(FLOAT, 7, 9), _of(FLOAT, 7, 5))),
    "half_types": (lambda x, y: (x * y.half() + 1).sum(1), (_of(HALF, 64, 40), _of(BFLOAT, 64, 40))),
    "column_sums": (lambda x: x.sum(0), (_of(FLOAT, 3000, 70),)),
    "sum_of_all": (lambda x: x.sum(), (_of(FLOAT, 1000, 1000),)),
    "long_rows": (lambda x: x.log_softmax(-1), (_of(FLOAT, 4, 5000),)),
}
SYMBOLIC = ("softmax", "broadcast", "transpose_and_add", "column_sums")


def sources(name: str, *, dynamic: bool = False) -> str:
    """The kernels' sources of all graphs of a program, forward only."""
    function, arguments = PROGRAMS[name]
    made: list[str] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        compiled = compile_graph(graph_module, example_inputs, strict=True)
        made.append(compiled.source)
        return compiled

    values = [
        torch.zeros(shape, dtype=dtype) if dtype == LONG else torch.ones(shape, dtype=dtype)
        for shape, dtype in arguments
    ]
    compile_aot(function, backend=backend, decompositions=codegen_decompositions(), dynamic=dynamic)(*values)
    return "\n".join(made)


@pytest.mark.parametrize("name", PROGRAMS)
def test_source(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.txt", sources(name))


@pytest.mark.parametrize("name", SYMBOLIC)
def test_source_for_symbolic_sizes(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}_symbolic.txt", sources(name, dynamic=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_computed_that_nobody_reads(name: str) -> None:
    for line in (lines := sources(name).splitlines()):
        assigned = re.match(r" *([a-z]+\d+) = ", line)
        if assigned is not None:
            assert sum(bool(re.search(rf"\b{assigned[1]}\b", other)) for other in lines) > 1, line


def test_source_is_the_same_in_another_process_and_after_other_graphs() -> None:
    code = "from refimpl.tests.codegen.test_goldens import *; print(sources('layer_norm'), end='')"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    elsewhere = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    sources("softmax")
    assert elsewhere.stdout == sources("layer_norm")
