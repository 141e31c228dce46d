"""Ops that write to arguments which their schemas call read-only, named by the overloads that say so.

Counterpart: native_batch_norm_decomposition in torch/_decomp/decompositions.py, which runs in autograd's place
Differs: the graph is corrected after the program has run, so that autograd is eager's own.
"""

from __future__ import annotations

import operator

import torch

from refimpl.errors import UnsupportedByRefimpl

_aten = torch.ops.aten


def name_writes(graph: torch.fx.Graph) -> None:
    """Batch normalization in training updates its running statistics.

    `batch_norm` and `instance_norm` themselves are only in graphs that are recorded before dispatch.
    """
    for node in graph.find_nodes(op="call_function", target=_aten.native_batch_norm.default, sort=False):
        if _writes(node):
            node.target = _aten._native_batch_norm_legit.default
    for node in graph.find_nodes(op="call_function", target=_aten.batch_norm.default, sort=False):
        if _writes(node):
            _name_composite(graph, node)
    for node in graph.find_nodes(op="call_function", target=_aten.instance_norm.default, sort=False):
        if _writes(node):
            raise UnsupportedByRefimpl(
                seen="instance_norm that updates running statistics, recorded before dispatch",
                supported="batch_norm; instance_norm without running statistics",
                do="export without pre_dispatch, or with track_running_stats=False",
            )


def _writes(node: torch.fx.Node) -> bool:
    """All of these begin with input, weight, bias, running mean, running variance, whether to use the input's statistics."""
    return node.args[3] is not None and node.args[4] is not None and bool(node.args[5])


def _name_composite(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """The node stays the one that stands for the result: it becomes an item of what the named op gives."""
    mean = node.args[3]
    assert isinstance(mean, torch.fx.Node)
    with graph.inserting_before(node):
        named = graph.call_function(_aten._native_batch_norm_legit.default, node.args[:8])
    saved = torch.empty_like(mean.meta["val"])
    named.meta = {**node.meta, "val": (node.meta["val"], saved, torch.empty_like(saved))}
    node.target, node.args, node.kwargs = operator.getitem, (named, 0), {}
