"""Kernels and bytes that programs take, beside what one kernel would move that does everything: the table of docs/codegen.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from refimpl.backends.partition import partition_for_kernels
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.tests.codegen.checks import compiled_with_graphs

DOCUMENT = Path(__file__).parents[3] / "docs" / "codegen.md"


def graphs(function: Callable[..., Any], *shapes: tuple[int, ...]) -> list[CompiledGraph]:
    """Forward, and backward."""
    inputs = [torch.zeros(shape, requires_grad=True) for shape in shapes]
    targets = [torch.zeros(shapes[0][0], dtype=torch.int64)] if function is F.cross_entropy else []
    compiled, made = compiled_with_graphs(function, partition=partition_for_kernels, strict=True)
    outputs = compiled(*inputs, *targets)
    totals = [out.float().sum() for out in (outputs if isinstance(outputs, tuple) else (outputs,))]
    torch.autograd.grad(torch.stack(totals).sum(), inputs, allow_unused=True)
    return made


def _norm_of_residual(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    total = x + residual
    return F.layer_norm(total, (total.shape[-1],), weight, bias).bfloat16(), total


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "softmax": (lambda x: x.softmax(-1), ((512, 1000),)),
    "log softmax, long rows": (lambda x: x.log_softmax(-1), ((512, 5000),)),
    "layer norm of a residual, cast": (_norm_of_residual, ((2048, 768), (2048, 768), (768,), (768,))),
    "rms norm": (lambda x, w: F.rms_norm(x, (768,), w), ((2048, 768), (768,))),
    "cross entropy": (F.cross_entropy, ((512, 1000),)),
    "gelu of a sum": (lambda x, b: F.gelu(x + b), ((2048, 3072), (3072,))),
    "two sums of one input": (lambda x: (x.sin().sum(1), x.cos().amax(1)), ((2048, 768),)),
    "rows and columns": (lambda x: (x.sum(1), x.sum(0)), ((2048, 768),)),
    "two functions of one input": (lambda x: (x.sin(), x.cos()), ((2048, 768),)),
    "functions of the halves": (lambda x: F.silu(x[:, :384]) * x[:, 384:], ((2048, 768),)),
    "transposed sum": (lambda x, y: x.t() + y, ((1024, 768), (768, 1024))),
    "mean of all": (lambda x: (x - x.mean()).square().mean(), ((1024, 1024),)),
}


def rows() -> list[str]:
    """Rows of the table: number of kernels, megabytes that they move, and the ratio to the fewest possible."""
    lines = []
    for name, (function, shapes) in PROGRAMS.items():
        for direction, graph in zip(("forward", "backward"), graphs(function, *shapes), strict=False):
            assert graph.movement is not None
            if not graph.kernels:  # the gradient is a view of what was given
                continue
            parts, least = graph.movement.parts(), int(str(graph.movement.least().moved))
            moved = sum(int(str(part.moved)) for part in parts)
            lines.append(f"| {name} | {direction} | {len(parts)} | {moved / 1e6:.2f} | {moved / least:.2f} |")
    return lines


def test_the_table_of_the_document_is_what_programs_take() -> None:
    table = "\n".join(rows())
    assert table in DOCUMENT.read_text(), f"docs/codegen.md should have these rows:\n{table}"
