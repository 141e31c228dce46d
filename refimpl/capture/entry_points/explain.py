"""`explain`: which graphs are captured of a call, and where the graph breaks.

Counterpart: torch/_dynamo/eval_frame.py explain; torch/_dynamo/backends/debugging.py ExplainOutput
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.entry_points.contexts import Hooks, OptimizeContext, innermost_fn
from refimpl.capture.entry_points.reset import reset


@dataclass(frozen=True, kw_only=True)
class ExplainOutput:
    """The graphs, graph breaks and guards of a call."""

    graphs: list[torch.fx.GraphModule]
    graph_count: int
    graph_break_count: int
    break_reasons: list[GraphBreak]
    op_count: int
    ops_per_graph: list[list[Any]]
    out_guards: list[Any]
    compile_times: str

    def __str__(self) -> str:
        lines = [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Op Count: {self.op_count}",
        ]
        lines += [f"Break Reason {number}: {reason}" for number, reason in enumerate(self.break_reasons, 1)]
        lines += [f"Ops {number}: {ops}" for number, ops in enumerate(self.ops_per_graph, 1)]
        return "\n".join([*lines, f"Out Guards: {len(self.out_guards)}", self.compile_times])


def explain(f: Callable[..., Any], *extra_args: Any, **extra_kwargs: Any) -> Any:
    """A function of example arguments that runs `f` and returns an ExplainOutput.

    Resets capture before and after. The old form `explain(f, *args)` works, with a FutureWarning.
    """
    if extra_args or extra_kwargs:
        warnings.warn(
            "arguments beside the function are deprecated\n  what to do: explain(f)(x), and not explain(f, x)",
            FutureWarning,
            stacklevel=2,
        )
        return _explained(f, extra_args, extra_kwargs)
    return lambda *args, **kwargs: _explained(f, args, kwargs)


def _explained(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExplainOutput:
    graphs: list[torch.fx.GraphModule] = []
    guards: list[Any] = []

    def keep(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(module)
        return module.forward

    reset()
    context = OptimizeContext(keep, hooks=Hooks(guards.extend))
    began = time.perf_counter()
    context(innermost_fn(f))(*args, **kwargs)
    seconds = time.perf_counter() - began
    reasons = list(context.options.breaks)
    reset()
    ops = [[node.target for node in graph.graph.nodes if node.op.startswith("call")] for graph in graphs]
    return ExplainOutput(
        graphs=graphs, graph_count=len(graphs), graph_break_count=len(graphs) - 1, break_reasons=reasons,
        op_count=sum(map(len, ops)), ops_per_graph=ops, out_guards=guards, compile_times=f"{seconds:.4f} s",
    )  # fmt: skip
