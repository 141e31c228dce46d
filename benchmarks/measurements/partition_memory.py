"""Memory that partitioners save for the backward, refimpl and torch: `python -m benchmarks.measurements.partition_memory
[--run]`.

Both split the same joint graph, parameters declared as static. Columns: nodes of the joint graph; kilobytes that the forward
keeps for the backward (memory counted once, without inputs, parameters and outputs) by refimpl's and torch's minimum cut; ratios
of these, of the same with every saved tensor counted by its own elements, and of the most memory held at once when both graphs
are run operator by operator (simulated); operators that run in forward and backward. `--run`: whether values agree. What it takes
to partition and to run the graphs are the benchmarks `partition` and `partition_run`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.cases.aot import PARTITIONERS
from benchmarks.measurements.frame import options_of, shown
from benchmarks.models import Graphs, JointProgram, Model, all_models, joint_program, run_graphs, split
from refimpl.aot.partition import partition_options, saved_bytes
from refimpl.aot.partition.memory import peak_bytes
from refimpl.aot.partition.recomputation import Prices


def run_twice_count(graphs: Graphs) -> int:
    """How many operators run in both graphs, views and items not counted."""
    forward, backward = ({n.name for n in g.graph.nodes if n.op == "call_function" and _has_kernel(n)} for g in graphs)
    return len(forward & backward)


def _has_kernel(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and all(r.alias_info is None for r in schema.returns)


def _peak(graphs: Graphs, program: JointProgram) -> int:
    return max(peak_bytes(*graphs, program.outputs))


def _are_close(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5) if a is not None and b is not None else a is b


def _ratio(ours: float, theirs: float) -> float:
    return round(ours / theirs, 3) if theirs else float("nan") if not ours else float("inf")


def row_of(name: str, make: Callable[[], Model], *, runs: bool) -> dict[str, Any]:
    """A line of the table. An exception of a partitioner is its `error`."""
    try:
        program = joint_program(make())
        ours, theirs = both = [split(program, partitioner) for partitioner in PARTITIONERS.values()]
        our_bytes, their_bytes = (saved_bytes(forward, program.outputs) for forward, _ in both)
        row: dict[str, Any] = {
            "model": name,
            "nodes": len(program.graph_module.graph.nodes),
            "kb": our_bytes.kept / 1e3,
            "torch_kb": their_bytes.kept / 1e3,
            "ratio": _ratio(our_bytes.kept, their_bytes.kept),
            "own_ratio": _ratio(our_bytes.returned, their_bytes.returned),
            "peak_ratio": _ratio(_peak(ours, program), _peak(theirs, program)),
            "twice": run_twice_count(ours),
            "torch_twice": run_twice_count(theirs),
        }
        if runs:
            values = (run_graphs(graphs, program, [primal.clone() for primal in program.primals]) for graphs in both)
            row["is_same"] = all(map(_are_close, *values))
        return row
    except Exception as error:  # each model gets a row; the exit code reports failures
        return {"model": name, "error": f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print rows and their sum; 1 where a model has failed or values differ."""
    parser = options_of(__doc__, only=True)
    parser.add_argument("--run", action="store_true", help="run the graphs too")
    parser.add_argument("--budget", type=float, default=1.0, help="refimpl's memory budget")
    parser.add_argument("--materialized", type=float, default=Prices().materialized, help="see Prices.materialized")
    parser.add_argument(
        "--unverified", action="store_true", help="without refimpl's verification of its own partitions"
    )
    options = parser.parse_args(arguments)
    prices = Prices(materialized=options.materialized)

    def rows() -> Iterator[dict[str, Any]]:
        for name, make in all_models().items():
            if options.only in name:
                yield row_of(name, make, runs=options.run)

    with partition_options(memory_budget=options.budget, verifies=not options.unverified, prices=prices):
        found = shown(rows(), options.csv).to_dict("records")
    kept = [row for row in found if row.get("torch_kb", 0) > 0]
    if kept:
        total = sum(row["kb"] for row in kept) / sum(row["torch_kb"] for row in kept)
        ratios = [row["ratio"] for row in kept]
        print(
            f"{len(kept)} models: saved bytes in all {total:.3f} of torch's, median {statistics.median(ratios):.3f}, "
            f"worst {max(ratios):.3f}"
        )
    return int(any(isinstance(row.get("error"), str) or row.get("is_same") is False for row in found))


if __name__ == "__main__":
    sys.exit(main())
