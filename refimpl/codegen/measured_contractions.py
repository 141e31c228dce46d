"""Measures whether a matrix product or convolution is faster as a template kernel or as an extern call, each alone, on random
data.

Counterpart: torch/_inductor/select_algorithm.py AlgorithmSelectorCache
Differs: compares one extern call with one template in its configurations. Fusion in the graph is not measured.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from refimpl._torch import pytree
from refimpl.codegen.autotune import Trial, TunerState
from refimpl.codegen.lowering import contractions, convolutions
from refimpl.codegen.options import CodegenOptions

Choice = Literal["template", "extern"]
_NAMES: tuple[Choice, Choice] = ("template", "extern")

# (graph of one call, its inputs, options) -> a callable that says which operators fell back
Compile = Callable[[torch.fx.GraphModule, list[torch.Tensor], CodegenOptions], Any]


def contraction_choices(
    graph_module: torch.fx.GraphModule, options: CodegenOptions, tuner: TunerState, compile_one: Compile
) -> Mapping[str, Choice]:
    """The choice by name of the node, for nodes of static sizes that have a template and that the tuner measures."""
    choices: dict[str, Choice] = {}
    for node in graph_module.graph.nodes:
        if node.target not in contractions.RULES and node.target not in convolutions.RULES:
            continue
        fakes = [source.meta.get("val") for source in node.all_input_nodes]
        if not all(isinstance(fake, torch.Tensor) and _is_static(fake) for fake in fakes):
            continue
        if fakes and tuner.measures(fakes[0].device):
            choices[node.name] = _NAMES[_measured(node, fakes, options, tuner, compile_one)]
    return choices


def _is_static(fake: torch.Tensor) -> bool:
    return all(isinstance(number, int) for number in (*fake.shape, *fake.stride()))


def _measured(
    node: torch.fx.Node, fakes: list[torch.Tensor], options: CodegenOptions, tuner: TunerState, compile_one: Compile
) -> int:
    leaves = pytree.tree_leaves((node.args, dict(node.kwargs)))
    others = [repr(leaf) for leaf in leaves if not isinstance(leaf, torch.fx.Node)]
    facts = [[list(fake.shape), list(fake.stride()), str(fake.dtype)] for fake in fakes]
    key = hashlib.blake2b(json.dumps([str(node.target), facts, others]).encode(), digest_size=16).hexdigest()

    def trials() -> list[Trial]:
        alone = _alone(node)
        inputs = [_numbers(fake) for fake in fakes]
        ours = compile_one(alone, inputs, dataclasses.replace(options, contractions="template", cuda_graphs=False))
        if ours.fallbacks:
            return []
        return [Trial(_nothing, functools.partial(call, *inputs)) for call in (ours, alone)]

    return tuner.choose(key, fakes[0].device, _NAMES, trials, otherwise=1)


def _nothing() -> None:
    pass


def _alone(node: torch.fx.Node) -> torch.fx.GraphModule:
    """A graph of one call, whose tensors are inputs."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for source in node.all_input_nodes:
        copies[source] = graph.placeholder(source.name)
        copies[source].meta["val"] = source.meta["val"]
    call = graph.node_copy(node, copies.__getitem__)
    results = node.meta["val"]
    if isinstance(results, (tuple, list)):
        graph.output(tuple(_item(graph, call, at, one) for at, one in enumerate(results) if one is not None))
    else:
        graph.output((call,))
    return torch.fx.GraphModule({}, graph)


def _item(graph: torch.fx.Graph, call: torch.fx.Node, position: int, result: Any) -> torch.fx.Node:
    item = graph.call_function(operator.getitem, (call, position))
    item.meta["val"] = result
    return item


def _numbers(fake: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tuple(fake.shape), fake.stride(), dtype=fake.dtype, device=fake.device)
    return made.normal_() if made.is_floating_point() else made.zero_()
