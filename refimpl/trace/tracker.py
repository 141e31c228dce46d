"""Maps tensors and script objects to their nodes while a function is traced.

Counterpart: torch/fx/experimental/proxy_tensor.py set_proxy_slot, get_proxy_slot, _ProxyTensor
Differs: maps to nodes, not to proxies: the dispatch mode records calls itself, and never computes on a proxy.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import WeakTensorKeyDictionary


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tracked:
    """A tensor's node, its value if that does not depend on the inputs, and its metadata as a key of the fake kernels' cache."""

    node: torch.fx.Node
    constant: torch.Tensor | None = None
    signature: Hashable = None  # None: results of ops on this tensor are not cached (refimpl.trace.fakes.kernels)
    memory: Hashable = None  # its storage and geometry, if the trace checks whether they change (`on_moved`)


class TrackerState:
    """A weak map keyed by tensor identity. A later entry of a tensor replaces an earlier one, which in-place ops rely on."""

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
        """All tracked tensors that are still alive."""
        return list(self._entries.items())


class ObjectTrackerState:
    """Maps script and opaque objects to nodes. A script object is known by its C++ object: its Python wrappers come and go."""

    def __init__(self) -> None:
        self._entries: dict[tuple[bool, int], tuple[object, torch.fx.Node]] = {}

    def track(self, value: object, node: torch.fx.Node) -> None:
        """A later node of an object replaces an earlier one. The object is kept alive, so that its id is not used again."""
        self._entries[_identity(value)] = value, node

    def find(self, value: object) -> torch.fx.Node | None:
        entry = self._entries.get(_identity(value))
        return None if entry is None else entry[1]


def _identity(value: Any) -> tuple[bool, int]:
    is_script_object = isinstance(value, torch.ScriptObject)
    return is_script_object, hash(value) if is_script_object else id(value)
