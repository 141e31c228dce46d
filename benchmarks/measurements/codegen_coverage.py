"""Which operators become Triton kernels: `python -m benchmarks.measurements.codegen_coverage [--csv FILE]`.

Every entry of PyTorch's OpInfo database: its samples are compiled forward, and no kernel is run. An entry is lowered if every
aten call in the graphs of its samples is; other calls are listed by operator, with the reason. An entry whose program has no
graph (it reads data, or raises) is not counted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from benchmarks.measurements.frame import options_of, shown
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.loop_ir import Extern
from refimpl.codegen.lowering.graph import LoweredGraph, lower_graph
from refimpl.codegen.lowering.state import KERNEL_DTYPES
from refimpl.pipeline import compile_aot


@dataclass
class Entry:
    """One OpInfo entry: how many samples were compiled, and what was not lowered, with why."""

    name: str
    samples: int = 0
    kernels: int = 0
    refused: int = 0
    fallbacks: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def is_lowered(self) -> bool:
        return self.samples > 0 and not self.fallbacks

    def row(self) -> dict[str, Any]:
        """A line of the table."""
        return {
            "entry": self.name, "samples": self.samples, "kernels": self.kernels, "refused": self.refused,
            "lowered": self.is_lowered,
            "fallbacks": "; ".join(f"{target} ({reason})" for target, reason in self.fallbacks),
        }  # fmt: skip


class _Observed(Exception):
    """Ends a compile after the graph was seen, since it need not run."""


def measure(op: Any, dtype: torch.dtype, max_samples: int) -> Entry:
    """Compile forward samples of an OpInfo entry, and note what was lowered."""
    entry = Entry(op.full_name)
    seen: list[LoweredGraph] = []

    def look(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        seen.append(lower_graph(graph_module))
        entry.kernels += len(compile_graph(graph_module, example_inputs).kernels)
        raise _Observed

    table = codegen_decompositions()
    samples = op.sample_inputs("cpu", dtype, requires_grad=False)
    for sample in itertools.islice(samples, max_samples):

        def call(value: Any, args: Any, kwargs: Any) -> Any:
            return op.op(value, *args, **kwargs)

        try:
            compile_aot(call, backend=look, decompositions=table)(sample.input, tuple(sample.args), dict(sample.kwargs))
        except _Observed:
            entry.samples += 1
        except Exception:  # no graph: other sweeps check the exception
            entry.refused += 1
    for graph in seen:
        for step in graph.steps:
            if isinstance(step, Extern) and step.target is not torch.empty_strided:
                entry.fallbacks[str(step.target), step.reason] += 1
    return entry


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rows, counts, and the operators that keep most entries from being lowered."""
    parser = options_of(__doc__, only=True)
    names = {str(dtype).removeprefix("torch."): dtype for dtype in sorted(KERNEL_DTYPES, key=str)}
    parser.add_argument("--dtype", choices=sorted(names), default="float32")
    parser.add_argument("--max-samples", type=int, default=4)
    options = parser.parse_args(arguments)
    dtype = names[options.dtype]
    chosen = [op for op in op_db if options.only in op.full_name and dtype in op.supported_dtypes("cpu")]
    blocking: Counter[str] = Counter()

    def rows() -> Iterator[dict[str, Any]]:
        for op in chosen:
            entry = measure(op, dtype, options.max_samples)
            if entry.samples:
                blocking.update({target for target, _ in entry.fallbacks})
            yield entry.row()

    table = shown(rows(), options.csv)
    compiled, lowered = (table["samples"] > 0).sum(), table["lowered"].sum()
    print(f"{options.dtype}: {len(table)} entries, {compiled} are graphs, {lowered} lowered without a fallback")
    print(f"  {lowered / max(len(table), 1):.1%} of entries, {lowered / max(compiled, 1):.1%} of graphs")
    for target, count in blocking.most_common(60):
        print(f"{count:5d}  {target}")


if __name__ == "__main__":
    main()
