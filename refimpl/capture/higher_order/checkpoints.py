"""`torch.utils.checkpoint.checkpoint`: a node with the function's graph, which backward runs again.

Counterpart: torch/_dynamo/variables/higher_order_ops.py CheckpointHigherOrderVariable; torch/_dynamo/utils.py
build_checkpoint_variable
Differs: if the body draws random numbers or calls another operator, the node calls checkpoint itself and not torch's operator,
which keeps no random numbers: without a compiler, backward then draws the same numbers as forward. A reentrant checkpoint of
tensors without gradients, and contexts without a policy, break the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import checkpoint as checkpointing

from refimpl._torch import HigherOrderOperator
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.config import config
from refimpl.capture.higher_order.graph_functions import activation_checkpoint
from refimpl.capture.higher_order.real_functions import real_object
from refimpl.capture.higher_order.subgraphs import SubGraph, come_out, computed_in, one_instruction, run_body
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
_OPERATOR: Any = torch.ops.higher_order.tag_activation_checkpoint
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
    chosen = {name: settings[name] for name in _SETTINGS if name in kwargs}
    contexts = real_object(domain, named.pop("context_fn", ObjectValue(checkpointing.noop_context_fn)))
    meta = {} if contexts is checkpointing.noop_context_fn else {"_checkpoint_context_fn": contexts}
    is_known = not meta or _has_policy(contexts)
    if not args or settings.pop("debug") is not False or not is_known or not _is_usual(domain, is_reentrant, given):
        raise GraphBreak("call_of_native_code", what=f"{_WHAT} that is reentrant or has contexts of its own")
    if not torch.is_grad_enabled():  # nothing is saved, and so nothing is recomputed
        return domain.call(frame, function, given, named)
    with one_instruction(domain):
        values = [function, SequenceValue(tuple, given), domain.named(named)]
        return _node(domain, values, settings, {"use_reentrant": is_reentrant, **chosen}, meta)


def _is_usual(domain: SymbolicDomain, is_reentrant: Any, given: Sequence[Any]) -> bool:
    """Whether the checkpoint is not reentrant, or computes the same gradients as one that is not: a reentrant one has none for
    parameters if no argument requires grad."""
    if is_reentrant is not True:
        return is_reentrant is False
    tensors = [arg for arg in map(domain.state.realize, given) if isinstance(arg, TensorValue)]
    return any(arg.fake.requires_grad for arg in tensors)


def _has_policy(contexts: Any) -> bool:
    """Whether the contexts are those of `create_selective_checkpoint_contexts`."""
    return hasattr(contexts()[0], "policy_fn")


def _checkpoint_again(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Captures such a node of an already captured graph."""
    body = domain.state.realize(args[0]) if args else None
    notes = getattr(body.object, "meta", {}) if isinstance(body, ObjectValue) else {}  # a module of a script has none
    contexts = notes.get("_checkpoint_context_fn")
    named = {} if contexts is None else {"context_fn": ObjectValue(contexts)}
    return _checkpoint(domain, frame, args, {**kwargs, **named, "use_reentrant": ConstantValue(False)})


def _node(
    domain: SymbolicDomain,
    args: list[Any],
    settings: dict[str, Any],
    chosen: dict[str, Any],
    meta: dict[str, Any],
) -> Value:
    around = domain.state.graph
    graph = SubGraph(around)
    allows_changes = config.skip_fwd_side_effects_in_bwd_under_checkpoint
    result = run_body(domain, graph, polyfills.called_named, args, what=_WHAT, allows_changes=allows_changes)
    calls = [node for node in graph.graph.nodes if node.op.startswith("call")]
    if any(word in str(node.target) for node in calls for word in _WRITE_UNSEEN):
        raise GraphBreak("effect_in_branch", what=_WHAT, kind="running statistics")
    if graph.has_effects and (meta or not settings["preserve_rng_state"]):
        raise GraphBreak("effect_in_branch", what=_WHAT, kind="the generator of random numbers")
    made = computed_in(domain, graph, [result, *args]) if allows_changes else come_out(graph, result)
    if not _has_operators(calls) and not meta:  # refimpl's partitioners handle the others
        marks = {"recompute": checkpointing.CheckpointPolicy.PREFER_RECOMPUTE, "ac_graph_id": next(_REGIONS)}
        for node in calls:
            node.meta |= marks
    body = graph.module([leaf.node for leaf in made])
    body.meta.update(meta)
    graph.hand_on()
    fakes = tuple(leaf.fake if isinstance(leaf, TensorValue) else leaf.number for leaf in made)
    args = [around.attach("wrap_body", body), *graph.lifted]
    is_ours = (graph.has_effects or _has_operators(calls)) and not meta
    target, named = (activation_checkpoint, settings) if is_ours else (_OPERATOR, chosen)
    node = around.call("call_function", target, args, named, fakes)
    for index, (leaf, fake) in enumerate(zip(made, fakes, strict=True)):
        leaf.node = around.part(node, index, fake)
    return result


def _has_operators(calls: Sequence[torch.fx.Node]) -> bool:
    """Whether a call is one of a higher-order operator other than a checkpoint."""
    return any(isinstance(node.target, HigherOrderOperator) and node.target is not _OPERATOR for node in calls)


CHECKPOINT_RULES: dict[int, Rule] = {
    id(checkpointing.checkpoint): _checkpoint,
    id(activation_checkpoint): _checkpoint_again,
    id(_OPERATOR): _checkpoint_again,
}
