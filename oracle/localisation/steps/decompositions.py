"""Finds the decomposition that makes a traced graph wrong: AOT autograd traces the captured graph again without single ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import default_partition
from torch.fx import GraphModule

from oracle.localisation.steps.compiled_graph import CompiledGraph
from oracle.localisation.steps.graph_runs import copied, run
from oracle.localisation.steps.judging import GraphJudge

FUNCTIONALIZATION = "functionalization"
SEVERAL = "decompositions: several"


def wrong_decomposition(judge: GraphJudge) -> str:
    """The decomposition without which the traced graph is right, such as "decomposition: aten.addmm.default".

    If the graph is wrong without any decomposition, the answer is "functionalization", which is tracing without them.
    """
    table: Mapping[Any, Any] = judge.graph.options.get("decompositions") or {}
    used = judge.graph.decomposed
    if not used or _is_wrong(judge, {}):
        return FUNCTIONALIZATION
    # The innermost first: without an outer one, the inner ones in it do not run either.
    for overload in sorted(used, key=lambda overload: -used[overload]):
        if not _is_wrong(judge, {other: rule for other, rule in table.items() if other != overload}):
            return f"decomposition: {overload}"
    return SEVERAL


def _is_wrong(judge: GraphJudge, table: Mapping[Any, Any]) -> bool:
    return judge.verdict_on(functools.partial(_traced_and_run, judge.graph, table)).status.is_finding


def _traced_and_run(graph: CompiledGraph, table: Mapping[Any, Any], *args: Any) -> tuple[Any, ...]:
    """Trace the graph with these decompositions, and call the trace. Nothing compiles it."""
    before = [step.stage.captured for step in graph.steps if step.stage.captured is not None]
    module = copied(before[-1] if before else graph.captured)
    options = {
        **graph.options,
        "decompositions": dict(table),
        "fw_compiler": _uncompiled,
        "bw_compiler": _uncompiled,
        "inference_compiler": _uncompiled,
        "partition_fn": default_partition,
        "pre_grad_passes": None,
    }
    traced = aot_module_simplified(module, args, **{key: value for key, value in options.items() if value is not None})
    return tuple(traced(*args))


def _uncompiled(module: GraphModule, example_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
    def call(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        return run(module, given)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
