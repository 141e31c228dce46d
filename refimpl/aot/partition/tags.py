"""What users ask for node by node: torch.utils.checkpoint's policies, left in node.meta["recompute"].

Counterpart: torch/_functorch/partitioners.py must_recompute, cleanup_recompute_tags
Differs: a random op that is tagged for recomputation is saved all the same, where upstream rewrites it with a saved generator
state; the graph's own meta is not changed.
"""

from __future__ import annotations

import operator

import torch
from torch.utils.checkpoint import CheckpointPolicy

from refimpl.aot.joint.sides import JointGraph
from refimpl.aot.partition.rules import OpKind, kind_of

# Both ask for the same: plain checkpointing tags with PREFER_RECOMPUTE, and whoever writes it expects it to happen.
_RECOMPUTE = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
_SAVE = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


def asked_to_recompute(joint: JointGraph) -> frozenset[int]:
    """Nodes to recompute in the backward."""
    tagged = _tagged(joint)
    return frozenset(i for i in tagged if not _ends_region(joint, i, tagged))


def asked_to_save(joint: JointGraph) -> frozenset[int]:
    """Nodes not to recompute."""
    tagged = _tagged(joint)
    ends = {i for i in tagged if _ends_region(joint, i, tagged)}
    return frozenset(ends | {i for i, node in enumerate(joint.nodes) if node.meta.get("recompute") in _SAVE})


def _tagged(joint: JointGraph) -> set[int]:
    return {
        i
        for i, node in enumerate(joint.nodes)
        if node.meta.get("recompute") in _RECOMPUTE
        and node.op == "call_function"
        and not joint.is_backward[i]
        and not _runs_once(node)
    }


def _runs_once(node: torch.fx.Node) -> bool:
    """Whether it is computed once, or is a result of what is: that one is not saved by itself."""
    source = node.args[0] if node.target is operator.getitem else node
    return isinstance(source, torch.fx.Node) and kind_of(source.target) is OpKind.ONCE


def _ends_region(joint: JointGraph, number: int, tagged: set[int]) -> bool:
    """Whether the next checkpointed region starts right there: what passes from one to the next is saved, else the second
    would have the first recomputed too. So is a region's result with a backward hook, which waits for that very gradient."""
    meta = joint.nodes[number].meta
    region = meta.get("ac_graph_id")
    users = [u for u in joint.users[number] if u in tagged]
    if region is not None and any(joint.nodes[u].meta.get("ac_graph_id", region) > region for u in users):
        return True
    return bool(meta.get("has_backward_hook")) and not users
