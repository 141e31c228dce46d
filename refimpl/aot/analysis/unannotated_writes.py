"""Ops that write to arguments which their schemas call read-only, named by the overloads that say so.

Counterpart: native_batch_norm_decomposition in torch/_decomp/decompositions.py, which runs in autograd's place
Differs: the graph is corrected after the program has run, so that autograd is eager's own.

cuDNN's batch normalization has no overload that says what it writes, and saves a tensor whose size its fake kernel does not know:
PyTorch's own operator stands for it, forward and backward, which differs in rounding only.
"""

from __future__ import annotations

import operator

import torch

_aten = torch.ops.aten
_CUDNN = _aten.cudnn_batch_norm.default
_CUDNN_BACKWARD = _aten.cudnn_batch_norm_backward.default
_RESERVE = 3  # the place among its results of what cuDNN saves for itself


def name_writes(graph: torch.fx.Graph) -> None:
    """Batch normalization in training updates its running statistics."""
    for node in graph.find_nodes(op="call_function", target=_CUDNN, sort=False):
        _make_plain(node)
    for node in graph.find_nodes(op="call_function", target=_aten.native_batch_norm.default, sort=False):
        has_statistics = node.args[3] is not None and node.args[4] is not None
        is_training = node.args[5]
        if has_statistics and is_training:
            node.target = _aten._native_batch_norm_legit.default


def make_gradients_plain(graph: torch.fx.Graph) -> None:
    """Gradients of batch normalization are those of the operator that `name_writes` has left."""
    for node in graph.find_nodes(op="call_function", target=_CUDNN_BACKWARD, sort=False):
        x, grad, weight, mean, var, saved_mean, saved_rstd, eps, _ = node.args
        node.target = _aten.native_batch_norm_backward.default
        node.args = (grad, x, weight, mean, var, saved_mean, saved_rstd, True, eps, [True, True, True])


def _make_plain(node: torch.fx.Node) -> None:
    """PyTorch's operator takes what cuDNN's does, and gives all but the last of its results."""
    node.target = _aten.native_batch_norm.default
    if isinstance(node.meta.get("val"), tuple):
        node.meta["val"] = node.meta["val"][:_RESERVE]
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == _RESERVE:
            user.target = _aten.new_zeros.default
            user.args, user.kwargs = (node.args[0], [0]), {"dtype": torch.uint8}
