"""Which node stands for which tensor while a function runs.

Counterpart: torch/fx/experimental/proxy_tensor.py set_proxy_slot, get_proxy_slot, _ProxyTensor
Differs: nodes are kept instead of proxies: nothing is ever computed on a proxy, since the dispatcher hands over real calls.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import WeakTensorKeyDictionary


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tracked:
    """A tensor's node, its value where that is known whatever the inputs are, and what a fake kernel sees of it."""

    node: torch.fx.Node
    constant: torch.Tensor | None = None
    signature: Hashable = None  # None: results of ops on this tensor are not remembered (refimpl.trace.fakes.kernels)
    memory: Hashable = None  # where it lies, where the trace watches over it


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
        memory: Hashable = None,
    ) -> None:
        self._entries[tensor] = Tracked(node=node, constant=constant, signature=signature, memory=memory)

    def find(self, tensor: torch.Tensor) -> Tracked | None:
        return self._entries.get(tensor)

    def items(self) -> list[tuple[torch.Tensor, Tracked]]:
        """All tensors that are alive."""
        return list(self._entries.items())


class ObjectTrackerState:
    """Which node stands for a script or opaque object. Python makes a new wrapper of a C++ object whenever it hands one out."""

    def __init__(self) -> None:
        self._entries: dict[tuple[bool, int], tuple[object, torch.fx.Node]] = {}

    def track(self, value: object, node: torch.fx.Node) -> None:
        """The later of two nodes for one object counts. Keeps the object alive, so that its identity is not used again."""
        self._entries[_identity(value)] = value, node

    def find(self, value: object) -> torch.fx.Node | None:
        entry = self._entries.get(_identity(value))
        return None if entry is None else entry[1]


def _identity(value: Any) -> tuple[bool, int]:
    is_script_object = isinstance(value, torch.ScriptObject)
    return is_script_object, hash(value) if is_script_object else id(value)
