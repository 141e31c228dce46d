"""Ops that write to arguments which their schemas call read-only, named by the overloads that say so.

Counterpart: native_batch_norm_decomposition in torch/_decomp/decompositions.py, which runs in autograd's place
Differs: the graph is corrected after the program has run, so that autograd is eager's own.
"""

from __future__ import annotations

import torch

_aten = torch.ops.aten


def name_writes(graph: torch.fx.Graph) -> None:
    """Batch normalization in training updates its running statistics."""
    for node in graph.find_nodes(op="call_function", target=_aten.native_batch_norm.default, sort=False):
        has_statistics = node.args[3] is not None and node.args[4] is not None
        is_training = node.args[5]
        if has_statistics and is_training:
            node.target = _aten._native_batch_norm_legit.default
