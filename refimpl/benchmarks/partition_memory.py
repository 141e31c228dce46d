"""What partitions save for the backward, refimpl beside torch: `python -m refimpl.benchmarks.partition_memory [--run]`.

Both split the same joint graph, parameters declared as static. Columns: nodes of the joint graph; kilobytes that the forward
keeps for the backward (memory counted once, without inputs, parameters and outputs) by refimpl's and torch's minimum cut, their
ratio; the ratio if every saved tensor is counted by its own elements; the ratio of the most memory held at once when both
graphs are run op by op (simulated); ops that run in forward and backward; milliseconds to partition and to print the code of
both graphs, median of interleaved runs. `--run`: milliseconds to run both graphs op by op, and whether values agree. Times are
of the processor, which other work on the machine does not lengthen, without garbage collection.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch.partitioners import min_cut_rematerialization_partition as torch_min_cut

from refimpl.aot.partition import SavedBytes, min_cut_rematerialization_partition, partition_options, saved_bytes
from refimpl.aot.partition.peak_memory import peak_bytes
from refimpl.aot.partition.rules import Prices
from refimpl.benchmarks.partition_models import JointProgram, Model, joint_program, own_models, transformers_models

Graphs = tuple[torch.fx.GraphModule, torch.fx.GraphModule]


def fresh_copy(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """torch's partitioner changes the graph it is given."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return torch.fx.GraphModule(module, graph)


def split(program: JointProgram, partitioner: Callable[..., Graphs]) -> tuple[Graphs, float]:
    """The graphs, and the seconds it took."""
    joint = fresh_copy(program.graph_module)
    static = list(range(program.static))
    gc.disable()  # a full collection takes longer than most partitions, and hits either
    try:
        started = time.process_time()
        graphs = partitioner(joint, None, num_fwd_outputs=program.outputs, static_lifetime_input_indices=static)
        assert all(graph_module.code for graph_module in graphs)  # refimpl's is printed when it is asked for
        return graphs, time.process_time() - started
    finally:
        gc.enable()


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of one model. Times in milliseconds."""

    ours: SavedBytes
    theirs: SavedBytes
    ours_ms: float
    theirs_ms: float
    run_ratio: float | None = None
    is_same: bool = True


def run_twice(graphs: Graphs, program: JointProgram) -> tuple[list[Any], float]:
    """Outputs and gradients, and the seconds the second run took."""
    forward, backward = graphs
    names = [getattr(o, "name", None) for o in list(forward.graph.nodes)[-1].args[0][program.outputs :]]
    placeholders = [node.name for node in backward.graph.nodes if node.op == "placeholder"]
    results: list[Any] = []
    seconds = 0.0
    with torch.no_grad():
        for _ in range(2):
            torch.manual_seed(0)
            primals = [p.clone() for p in program.primals]
            started = time.process_time()
            outputs = forward(*primals)
            saved = dict(zip(names, outputs[program.outputs :], strict=True))
            tangents = iter(program.tangents)
            arguments = [saved[name] if name in saved else next(tangents) for name in placeholders]
            gradients = backward(*arguments)
            seconds = time.process_time() - started
            results = [*outputs[: program.outputs], *gradients]
    return results, seconds


def run_twice_count(graphs: Graphs) -> int:
    """How many ops run in both graphs, views and items not counted."""
    forward, backward = ({n.name for n in g.graph.nodes if n.op == "call_function" and _has_kernel(n)} for g in graphs)
    return len(forward & backward)


def _has_kernel(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and all(r.alias_info is None for r in schema.returns)


def _peak(graphs: Graphs, program: JointProgram) -> int:
    return max(peak_bytes(*graphs, program.outputs))


def _are_close(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5) if a is not None and b is not None else a is b


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:6.3f}" if theirs else "     -" if not ours else "   inf"


def compare(name: str, model: Callable[[], Model], repeats: int, *, runs: bool) -> Row:
    """Print one line."""
    program = joint_program(model())
    peers: dict[str, Callable[..., Graphs]] = {"refimpl": min_cut_rematerialization_partition, "torch": torch_min_cut}
    seconds: dict[str, list[float]] = {peer: [] for peer in peers}
    graphs: dict[str, Graphs] = {}
    for repeat in range(repeats + 1):
        for peer, partitioner in peers.items():
            graphs[peer], taken = split(program, partitioner)
            if repeat:  # the first fills caches of facts about ops
                seconds[peer].append(taken * 1e3)
    ours, theirs = (saved_bytes(graphs[peer][0], program.outputs) for peer in peers)
    ours_ms, theirs_ms = (statistics.median(seconds[peer]) for peer in peers)
    line = (
        f"{name:32} {len(program.graph_module.graph.nodes):5} {ours.kept / 1e3:9.1f} {theirs.kept / 1e3:9.1f} "
        f"{_ratio(ours.kept, theirs.kept)} {_ratio(ours.returned, theirs.returned)} "
        f"{_ratio(_peak(graphs['refimpl'], program), _peak(graphs['torch'], program))} "
        f"{run_twice_count(graphs['refimpl']):4} {run_twice_count(graphs['torch']):4} "
        f"{ours_ms:8.1f} {theirs_ms:8.1f} {theirs_ms / ours_ms:6.1f}"
    )
    run_ratio, same = None, True
    if runs:
        times: dict[str, list[float]] = {peer: [] for peer in peers}
        values: dict[str, list[Any]] = {}
        for _ in range(5):
            for peer in peers:
                values[peer], taken = run_twice(graphs[peer], program)
                times[peer].append(taken * 1e3)
        same = all(map(_are_close, values["refimpl"], values["torch"]))
        ours_run, theirs_run = (statistics.median(times[peer]) for peer in peers)
        run_ratio = ours_run / theirs_run
        line += f" {ours_run:8.2f} {theirs_run:8.2f} {run_ratio:6.3f} {'same' if same else 'DIFFERENT'}"
    print(line, flush=True)
    return Row(ours=ours, theirs=theirs, ours_ms=ours_ms, theirs_ms=theirs_ms, run_ratio=run_ratio, is_same=same)


def print_summary(rows: Sequence[Row]) -> None:
    """One line on all models."""
    ratios = [row.ours.kept / row.theirs.kept for row in rows if row.theirs.kept]
    if not ratios:
        return
    total = sum(row.ours.kept for row in rows) / sum(row.theirs.kept for row in rows)
    speeds = [row.theirs_ms / row.ours_ms for row in rows]
    runs = [row.run_ratio for row in rows if row.run_ratio is not None]
    print(
        f"{len(rows)} models: saved bytes in all {total:.3f} of torch's, median {statistics.median(ratios):.3f}, worst "
        f"{max(ratios):.3f}; partitioned {statistics.median(speeds):.1f} times as fast (median), least {min(speeds):.1f}"
        + (f"; run in {statistics.median(runs):.3f} of the time (median)" if runs else "")
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a model's name")
    parser.add_argument("--run", action="store_true", help="run the graphs too")
    parser.add_argument("--budget", type=float, default=1.0, help="refimpl's memory budget")
    parser.add_argument("--materialized", type=float, default=Prices().materialized, help="see Prices.materialized")
    parser.add_argument(
        "--unverified", action="store_true", help="without refimpl's verification of its own partitions"
    )
    arguments = parser.parse_args()
    heading = f"{'model':32} {'nodes':>5} {'ours kB':>9} {'torch kB':>9} {'ratio':>6} {'own':>6} {'peak':>6} "
    heading += f"{'re':>4} {'re-t':>4} "
    print(
        heading
        + f"{'ours ms':>8} {'torch ms':>8} {'faster':>6}"
        + (" run ours run torch  ratio" if arguments.run else "")
    )
    rows: list[Row] = []
    failed = 0
    prices = Prices(materialized=arguments.materialized)
    with partition_options(memory_budget=arguments.budget, verifies=not arguments.unverified, prices=prices):
        for name, model in {**own_models(), **transformers_models()}.items():
            if arguments.only in name:
                try:
                    rows.append(compare(name, model, arguments.repeats, runs=arguments.run))
                except Exception as error:  # one line per model, whatever happens; the exit status says it
                    failed += 1
                    print(f"{name:32} failed: {type(error).__name__}: {str(error).splitlines()[0][:150]}", flush=True)
    print_summary(rows)
    failed += sum(not row.is_same for row in rows)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
