"""Which node stands for which tensor while a function runs.

Counterpart: torch/fx/experimental/proxy_tensor.py set_proxy_slot, get_proxy_slot, _ProxyTensor
Differs: nodes are kept instead of proxies: nothing is ever computed on a proxy, since the dispatcher hands over real calls.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch

from refimpl._torch import WeakTensorKeyDictionary


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tracked:
    """A tensor's node, its value where that is known whatever the inputs are, and what a fake kernel sees of it."""

    node: torch.fx.Node
    constant: torch.Tensor | None = None
    signature: Hashable = None  # None: results of ops on this tensor are not remembered (refimpl.trace.fake_kernels)


class TrackerState:
    """Tensors by identity, held weakly. A later entry for one tensor replaces the earlier: in-place ops rely on it."""

    def __init__(self) -> None:
        self._entries = WeakTensorKeyDictionary()

    def track(
        self,
        tensor: torch.Tensor,
        node: torch.fx.Node,
        *,
        constant: torch.Tensor | None = None,
        signature: Hashable = None,
    ) -> None:
        self._entries[tensor] = Tracked(node=node, constant=constant, signature=signature)

    def find(self, tensor: torch.Tensor) -> Tracked | None:
        return self._entries.get(tensor)
