"""GraphRun: one eager run of a captured graph, with what it shows about its tensors: storages, changes in place, gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from oracle.hygiene import seed_everything
from oracle.localisation.values.captured import CapturedGraph, storage_of
from oracle.program.clone import bytes_of, clone_tree, has_plain_storage

_NOT_OPERATORS = ("placeholder", "get_attr", "output")


class GraphRun(fx.Interpreter):
    """Runs the graph when it is made, on a copy of its inputs, and keeps the result of every node."""

    def __init__(self, captured: CapturedGraph) -> None:
        super().__init__(captured.module, garbage_collect_values=False)
        self.nodes: list[fx.Node] = list(captured.module.graph.nodes)
        self._changed: dict[fx.Node, list[fx.Node]] = {}
        self._needed_grad: dict[fx.Node, set[fx.Node]] = {}
        self._last_change: dict[int, int] = {}  # storage -> position of the last node that changes it
        self.position = {node: position for position, node in enumerate(self.nodes)}
        seed_everything(captured.seed)
        inputs = captured.arguments(clone_tree(captured.inputs))
        with torch.set_grad_enabled(captured.grad_mode == "grad"):
            self.run(*inputs)

    def run_node(self, n: fx.Node) -> Any:
        arguments = {node: self.env[node] for node in n.all_input_nodes if isinstance(self.env[node], torch.Tensor)}
        before = {node: (tensor._version, _contents(tensor)) for node, tensor in arguments.items()}
        is_recorded = torch.is_grad_enabled()
        self._needed_grad[n] = {node for node, tensor in arguments.items() if is_recorded and tensor.requires_grad}
        result = super().run_node(n)
        # Both are looked at, since batch_norm changes its running mean without a new version.
        self._changed[n] = [
            node
            for node, tensor in arguments.items()
            if before[node][0] != tensor._version or not _is_equal(before[node][1], _contents(tensor))
        ]
        for node in self._changed[n]:
            self._last_change.update(dict.fromkeys(self.storages(node), self.position[n]))
        return result

    @property
    def operators(self) -> Iterable[fx.Node]:
        """The nodes that call an operator, in topological order."""
        return (node for node in self.nodes if node.op not in _NOT_OPERATORS)

    def tensor(self, node: fx.Node) -> torch.Tensor | None:
        """The node's result, if that is a tensor."""
        value = self.env.get(node)
        return value if isinstance(value, torch.Tensor) else None

    def changed_by(self, node: fx.Node) -> list[fx.Node]:
        """The arguments that a node changes in place."""
        return self._changed[node]

    def is_changed_after(self, node: fx.Node, of: fx.Node) -> bool:
        """Whether a node after this one changes the storage of the tensor `of`."""
        return any(self._last_change.get(storage, -1) > self.position[node] for storage in self.storages(of))

    def storages(self, node: fx.Node) -> set[int]:
        """The storages of all tensors in the node's result."""
        return {storage_of(leaf) for leaf in tree_leaves(self.env.get(node)) if isinstance(leaf, torch.Tensor)}

    def written_by(self, node: fx.Node) -> set[int]:
        """The storages of the node's result and of the arguments that it changes."""
        return self.storages(node).union(*(self.storages(argument) for argument in self.changed_by(node)))

    def differentiates(self, node: fx.Node) -> list[fx.Node]:
        """The arguments of a node that are float tensors to which gradients flow back through this node."""
        results = [*tree_leaves(self.env.get(node)), *(self.env[argument] for argument in self.changed_by(node))]
        if not any(isinstance(result, torch.Tensor) and result.requires_grad for result in results):
            return []
        return [argument for argument in node.all_input_nodes if argument in self._needed_grad[node]]

    def is_part(self, node: fx.Node) -> bool:
        """Whether the node takes one result of an operator that has several, as `chunk` does."""
        source = node.args[0] if node.args else None
        return (
            getattr(node.target, "__name__", "") == "getitem"
            and isinstance(source, fx.Node)
            and self.tensor(source) is None
        )

    def first_with_storage(self, storage: int) -> fx.Node:
        """The first node that is a tensor in a storage: the others are views of it."""
        return next(node for node in self.nodes if self.tensor(node) is not None and storage in self.storages(node))

    def is_view(self, node: fx.Node) -> bool:
        """Whether the node's result is a view of an earlier tensor, and no tensor that the node changes."""
        if self.changed_by(node):
            return False
        return any(self.first_with_storage(storage) is not node for storage in self.storages(node))

    def earlier_with_storage(self, node: fx.Node, storage: int) -> list[fx.Node]:
        """The nodes before this one whose results use a storage."""
        return [other for other in self.nodes[: self.position[node]] if storage in self.storages(other)]


def _contents(tensor: torch.Tensor) -> torch.Tensor | None:
    """A copy of a tensor's bytes; None if it has none of its own."""
    return bytes_of(tensor).clone() if has_plain_storage(tensor) else None


def _is_equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is None or other is None or torch.equal(one, other)
