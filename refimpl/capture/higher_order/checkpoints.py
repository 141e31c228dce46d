"""`torch.utils.checkpoint.checkpoint`: a node with the function's graph, which backward runs again.

Counterpart: torch/_dynamo/variables/higher_order_ops.py CheckpointHigherOrderVariable; torch/_dynamo/utils.py
build_checkpoint_variable
Differs: if the graph runs without a compiler, the node calls checkpoint as eager does, so backward draws the same random
numbers as forward. Reentrant checkpoints and the user's contexts break the graph.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import checkpoint as checkpointing

from refimpl._torch import HigherOrderOperator
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.higher_order.graph_functions import activation_checkpoint
from refimpl.capture.higher_order.subgraphs import SubGraph, come_out, one_instruction, run_body
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.rules.rule_table import Rule
from refimpl.capture.values import ConstantValue, ObjectValue, SequenceValue, TensorValue, Value, polyfills

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_WHAT = "torch.utils.checkpoint.checkpoint"
_SETTINGS: dict[str, Any] = {
    "preserve_rng_state": True,
    "determinism_check": "default",
    "debug": False,
    "early_stop": True,
}
_REGIONS = itertools.count()  # partitioners compare these numbers
_WRITE_UNSEEN = ("batch_norm", "instance_norm")  # they write running statistics, twice if the function runs twice


def _checkpoint(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`checkpoint(function, *args, use_reentrant=None, context_fn=..., ..., **kwargs)`."""
    function, given, named = args[0] if args else kwargs.get("function"), args[1:], dict(kwargs)
    is_reentrant = domain.constant_of(named.pop("use_reentrant", ConstantValue(None)), _WHAT)
    settings = {
        name: domain.constant_of(named.pop(name), _WHAT) if name in named else value
        for name, value in _SETTINGS.items()
    }
    context = domain.state.realize(named.pop("context_fn", ObjectValue(checkpointing.noop_context_fn)))
    is_plain = isinstance(context, ObjectValue) and context.object is checkpointing.noop_context_fn
    if not args or is_reentrant is not False or settings.pop("debug") is not False or not is_plain:
        raise GraphBreak("call_of_native_code", what=f"{_WHAT} that is reentrant or has contexts of its own")
    if not torch.is_grad_enabled():  # nothing is saved, and so nothing is recomputed
        return domain.call(frame, function, given, named)
    with one_instruction(domain):
        return _node(domain, [function, SequenceValue(tuple, given), domain.named(named)], settings)


def _checkpoint_again(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Captures such a node of an already captured graph."""
    return _checkpoint(domain, frame, args, {**kwargs, "use_reentrant": ConstantValue(False)})


def _node(domain: SymbolicDomain, args: list[Any], settings: dict[str, Any]) -> Value:
    around = domain.state.graph
    graph = SubGraph(around)
    result = run_body(domain, graph, polyfills.called_named, args, what=_WHAT)
    calls = [node for node in graph.graph.nodes if node.op.startswith("call")]
    if any(word in str(node.target) for node in calls for word in _WRITE_UNSEEN):
        raise GraphBreak("effect_in_branch", what=_WHAT, kind="running statistics")
    if graph.has_effects and not settings["preserve_rng_state"]:
        raise GraphBreak("effect_in_branch", what=_WHAT, kind="the generator of random numbers")
    made = come_out(graph, result)
    if not any(
        isinstance(node.target, HigherOrderOperator) for node in calls
    ):  # refimpl's partitioners handle the others
        marks = {"recompute": checkpointing.CheckpointPolicy.PREFER_RECOMPUTE, "ac_graph_id": next(_REGIONS)}
        for node in calls:
            node.meta |= marks
    body = graph.module([leaf.node for leaf in made])
    graph.hand_on()
    fakes = tuple(leaf.fake if isinstance(leaf, TensorValue) else leaf.number for leaf in made)
    args = [around.attach("checkpoint_body", body), *graph.lifted]
    node = around.call("call_function", activation_checkpoint, args, settings, fakes)
    for index, (leaf, fake) in enumerate(zip(made, fakes, strict=True)):
        leaf.node = around.part(node, index, fake)
    return result


CHECKPOINT_RULES: dict[int, Rule] = {
    id(checkpointing.checkpoint): _checkpoint,
    id(activation_checkpoint): _checkpoint_again,
}
