"""Finds the wrong part of a step: the decomposition that makes a traced graph wrong, or an output that compiled code gets wrong.

For decompositions, AOT autograd traces the captured graph again without single ones. The compiled code is wrong if the graph is
right after the last pass.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import default_partition
from torch.fx import GraphModule, Node

from oracle.localisation.steps.compiled_graph import COMPILED, CompiledGraph, arguments_for
from oracle.localisation.steps.graph_runs import copied, outputs_of, placeholders_of, run
from oracle.localisation.steps.judging import GraphJudge, given_program, judge_function
from oracle.program import Call, ComparePolicy, Program

FUNCTIONALIZATION = "functionalization"
SEVERAL = "decompositions: several"
_PLACE = re.compile(r"(output|args)\[(\d+)\]")
_REASON = "the program does not see which results of the code share memory, and only some of the strides"


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


def wrong_output(judge: GraphJudge, side: str, graph: GraphModule, *, strides: bool) -> str:
    """The first wrong output or argument of the compiled code, such as "output 2 of the graph, add_1 = aten.add.Tensor".

    Strides are compared only with `strides`. "" if the code agrees with the graph after the last pass on its arguments.
    """
    compiled = judge.graph
    compiled.code_args = {side: []}
    judge.verdict(COMPILED)
    calls, compiled.code_args = compiled.code_args[side], {}
    if not calls:
        return ""
    names = placeholders_of(graph)
    program = Program(
        name=f"{side} graph",
        source="",
        calls=tuple(Call(grad_mode="no_grad") for _ in calls),
        policy=ComparePolicy(strides="exact" if strides else "ignore", aliases=False, reason=_REASON),
        config=judge.eager.instance().program.config,
    )
    code = compiled.code[side]
    eager = given_program(
        program, _Tupled(lambda *args: run(graph, arguments_for(graph, names, args))), calls, judge.device
    )
    verdict = judge_function(_Tupled(lambda *args: code(list(args))), eager, rng=judge.rng)
    places = (_PLACE.search(text) for text in (verdict.symptom, *verdict.also)) if verdict.status.is_finding else ()
    return next((_described(graph, place[1], int(place[2])) for place in places if place is not None), "")


class _Tupled:
    """Returns the results of a function as a tuple: a graph returns a tuple or a list. Not a function, so it has no closure."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        return tuple(self._function(*args))


def _described(graph: GraphModule, section: str, number: int) -> str:
    if section == "args":
        return f"input {number} of the graph, which it changes"
    output = node = outputs_of(graph)[number]
    if isinstance(node, Node) and node.target is operator.getitem:  # of an operator with several results
        node = node.args[0]
    if not isinstance(node, Node):
        return f"output {number} of the graph"
    result = f", result {output.args[1]}" if output is not node else ""
    return f"output {number} of the graph, {node.name} = {node.target}{result}"
