"""Finds the outputs of a graph that the compiled code gets wrong although the graph is right after the last pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule, Node

from oracle.localisation.compiled_graph import COMPILED, arguments_for
from oracle.localisation.graph_runs import outputs_of, placeholders_of, run
from oracle.localisation.judging import GraphJudge, given_program, judge_function
from oracle.program import Call, ComparePolicy, Program

_PLACE = re.compile(r"(output|args)\[(\d+)\]")
_POLICY = ComparePolicy(strides="ignore", aliases=False, reason="inside of AOT autograd's wrapper, nobody sees them")


def wrong_output(judge: GraphJudge, side: str, graph: GraphModule) -> str:
    """The first wrong output or argument of the compiled code, such as "output 2 of the graph, add_1 = aten.add.Tensor".

    "" if the code agrees with the graph after the last pass on the arguments of its calls.
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
        policy=_POLICY,
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
    node = outputs_of(graph)[number]
    return (
        f"output {number} of the graph, {node.name} = {node.target}" if isinstance(node, Node) else f"output {number}"
    )
