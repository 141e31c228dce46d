"""The price in bytes of recomputing one node of a joint graph in the backward.

Counterpart: torch/_functorch/partitioners.py should_ban_recomputation, estimate_runtime
Differs: a price, not a ban; see refimpl.aot.partition.recomputation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.aot.partition.flow_network import INFINITE
from refimpl.aot.partition.joint_graph import JointGraph
from refimpl.aot.partition.memory import bytes_of, hint_of
from refimpl.aot.partition.recomputation import (
    SLOW_POINTWISE_OPS,
    OpKind,
    Prices,
    asked_to_recompute,
    asked_to_save,
    is_fusible,
    kind_of,
)

# Floating point operations in the time it takes to move one byte: between CPUs (5 to 20) and accelerators (100 to 300).
_FLOPS_PER_BYTE = 50.0
# How often a kernel of kind OTHER reads and writes its memory.
_PASSES_OF_OTHER = 3.0


class RecomputePrices:
    """Prices of the nodes of one joint graph."""

    def __init__(self, joint: JointGraph, prices: Prices, recomputable_ops: Collection[Any] | None) -> None:
        self._joint = joint
        self._prices = prices
        self._recomputable_ops = recomputable_ops
        self._asked_to_save = asked_to_save(joint)
        self.asked_to_recompute = asked_to_recompute(joint)
        self._bytes: dict[int, int] = {}

    def bytes_of(self, number: int) -> int:
        """The bytes of a node's value, at least 1."""
        found = self._bytes.get(number)
        if found is None:
            found = self._bytes[number] = max(1, bytes_of(self._joint.value_of(number)))
        return found

    def kind(self, number: int) -> OpKind:
        """The kind of a node."""
        node = self._joint.nodes[number]
        match node.op:
            case "call_function":
                return kind_of(node.target)
            case "get_attr":
                return OpKind.FREE
            case _:
                return OpKind.ONCE

    def of(self, number: int, *, is_any_allowed: bool = False) -> float:
        """The price of recomputing the node. is_any_allowed: finite also for kinds that need a memory budget to be recomputed."""
        joint = self._joint
        if not joint.is_forward[number] and joint.nodes[number].op != "placeholder":
            return 0.0  # it runs in the backward in any case
        kind = self.kind(number)
        if kind is OpKind.FREE or (number in self.asked_to_recompute and kind is not OpKind.ONCE):
            return 0.0
        if kind is OpKind.ONCE or number in self._asked_to_save or not self._is_listed(number):
            return INFINITE
        if kind in (OpKind.HEAVY, OpKind.OTHER):
            return self._price_of_kernel(number, kind) if is_any_allowed else INFINITE
        if kind is OpKind.FACTORY:
            return self._prices.constant * self.bytes_of(number)
        read = max((self.bytes_of(i) for i in joint.inputs[number]), default=0)
        if kind is OpKind.REDUCTION:
            return self._prices.reduction * read
        traffic = (read + self.bytes_of(number)) / 2
        if self._name(number) in SLOW_POINTWISE_OPS:
            return self._prices.slow * traffic
        return (
            self._prices.materialized if self._is_read_unfused(number, joint.is_backward) else self._prices.fused
        ) * traffic

    def is_written_anyway(self, number: int) -> bool:
        """Whether the forward writes the value to memory even if it is fused as far as possible."""
        return not is_fusible(self.kind(number)) or self._is_read_unfused(number, self._joint.is_forward)

    def _is_listed(self, number: int) -> bool:
        if self._recomputable_ops is None:
            return True
        target = self._joint.nodes[number].target
        return target in self._recomputable_ops or getattr(target, "overloadpacket", None) in self._recomputable_ops

    def _name(self, number: int) -> str:
        facts = self._joint.facts[number]
        return "" if facts is None else facts.name.partition("::")[2]

    def _is_read_unfused(self, number: int, is_on_side: Sequence[bool]) -> bool:
        """Whether a kernel of the forward (or backward) that does not fuse reads the value, directly or through views."""
        joint = self._joint
        waiting = list(joint.users[number])
        while waiting:
            user = waiting.pop()
            kind = self.kind(user)
            if kind is OpKind.FREE:
                waiting += joint.users[user]
            elif is_on_side[user] and not is_fusible(kind):
                return True
        return False

    def _price_of_kernel(self, number: int, kind: OpKind) -> float:
        inputs = sum(self.bytes_of(i) for i in self._joint.inputs[number])
        traffic = float(inputs + self.bytes_of(number))
        if kind is OpKind.OTHER:
            return _PASSES_OF_OTHER * traffic
        return traffic + self._flops(number) / _FLOPS_PER_BYTE

    def _flops(self, number: int) -> float:
        """Floating point operations of matrix products, convolutions and attention; of other ops in proportion to bytes."""
        node, name = self._joint.nodes[number], self._name(number)
        values = [a.meta.get("val") if isinstance(a, torch.fx.Node) else None for a in node.args]
        if _begins_with_bias(node.target):
            values = values[1:]
        out = self._joint.value_of(number)
        first, second = (*values, None, None)[:2]
        if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
            return _FLOPS_PER_BYTE * self.bytes_of(number)
        if name.startswith(("_scaled_dot", "_flash", "_efficient")):
            return 4.0 * _count(first) * hint_of(second.shape[-2])
        if not isinstance(out, torch.Tensor) or first.ndim == 0:
            return _FLOPS_PER_BYTE * self.bytes_of(number)
        if "conv" in name:
            return 2.0 * _count(out) * _count(second) / max(1, hint_of(second.shape[0]))
        return 2.0 * _count(out) * hint_of(first.shape[-1])


def _count(tensor: torch.Tensor) -> float:
    count = 1.0
    for size in tensor.shape:
        count *= hint_of(size)
    return count


def _begins_with_bias(target: Any) -> bool:
    """Whether an op adds a product, scaled by `alpha`, to its first argument, scaled by `beta`, as addmm does."""
    arguments = target._schema.arguments if isinstance(target, OpOverload) else ()
    return {"alpha", "beta"} <= {argument.name for argument in arguments}
