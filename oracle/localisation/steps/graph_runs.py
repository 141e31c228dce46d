"""Graph runs: copy a graph of the compiler, and run the copy node by node in eager in place of compiled code.

A joint graph runs in two halves, since AOT autograd calls its forward and its backward at different times. The second half uses
the values of the first, so that a random number is drawn once.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

_TANGENT = "tangents"  # how AOT autograd begins the names of the inputs that are gradients of outputs


def copied(module: GraphModule) -> GraphModule:
    """A copy of the graph and of the graphs in it. Tensors that they hold are shared, and no node's metadata is copied deeply."""
    result = GraphModule(module, copy.deepcopy(module.graph))
    for name, inner in list(result.named_children()):
        if isinstance(inner, GraphModule):
            setattr(result, name, copied(inner))
    return result


def text_of(module: GraphModule) -> str:
    """The graph as text, with the graphs in it. Equal texts have equal nodes."""
    inner = [text_of(child) for child in module.children() if isinstance(child, GraphModule)]
    return "\n".join([str(module.graph), *inner])


def placeholders_of(module: GraphModule) -> list[str]:
    """The names of the graph's inputs."""
    return [node.name for node in module.graph.nodes if node.op == "placeholder"]


def tangent_positions(module: GraphModule) -> list[int]:
    """Which inputs of a joint or backward graph are gradients of outputs."""
    return [number for number, name in enumerate(placeholders_of(module)) if name.startswith(_TANGENT)]


def outputs_of(module: GraphModule) -> list[Any]:
    """The nodes and constants that the graph returns, flat."""
    return pytree.tree_leaves(module.graph.output_node().args[0], is_leaf=lambda leaf: leaf is None)


def changed_operators(before: GraphModule, after: GraphModule) -> str:
    """Which operators a step removed and added: "aten.sin.default removed, 2 aten.cos.default added"; "" if none."""
    old, new = (
        Counter(_name_of(node) for node in module.graph.nodes if node.op.startswith("call"))
        for module in (before, after)
    )
    words = ((old - new, "removed"), (new - old, "added"))
    return ", ".join(
        f"{f'{count} ' if count > 1 else ''}{name} {word}" for found, word in words for name, count in found.items()
    )


def _name_of(node: Node) -> str:
    is_plain = callable(node.target) and not isinstance(node.target, torch._ops.OpOverload)
    return getattr(node.target, "__name__", str(node.target)) if is_plain else str(node.target)


def draws(module: GraphModule) -> bool:
    """Whether a node of the graph draws random numbers from eager's generators."""
    operators = (node.target for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload))
    return any(torch.Tag.nondeterministic_seeded in operator.tags for operator in operators)


def run(module: GraphModule, args: Sequence[Any]) -> Any:
    """The graph's results on these arguments, each node by eager's kernel."""
    return _Eager(module).run(*args)


class RefusedError(RuntimeError):
    """An aten operator refuses the arguments that a graph gives it, so the graph is wrong."""


class _Eager(Interpreter):
    """Runs each node in eager."""

    def run_node(self, n: Node) -> Any:
        try:
            return super().run_node(n)
        except NotImplementedError:  # no kernel: that says nothing about the graph
            raise
        except (RuntimeError, IndexError, ValueError) as error:
            if isinstance(n.target, torch._ops.OpOverload) and n.target.namespace == "aten":
                raise RefusedError(f"{n.target} refuses its arguments: {error}") from error
            raise

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        # Compiled code may return a saved tensor with other strides than the graph says. Then no view can be made of it.
        return super().call_function(torch.ops.aten.reshape.default if _is_view(target) else target, args, kwargs)


def _is_view(target: Any) -> bool:
    return target is torch.ops.aten.view.default


@dataclass(slots=True, kw_only=True)
class JointRun:
    """One run of a joint graph that has done its first half."""

    outputs: list[Any]
    values: dict[Node, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class JointGraph:
    """A joint graph whose first outputs are those of the forward."""

    module: GraphModule
    forward_outputs: int

    def forward(self, primals: Sequence[Any]) -> JointRun:
        """Run what the forward's outputs need, and the mutations of inputs that do not depend on gradients of outputs."""
        nodes = list(self.module.graph.nodes)
        mutations = [node for node in nodes if _mutates(node)]
        forward_outputs = outputs_of(self.module)[: self.forward_outputs]
        late = _users_of([node for node in nodes if node.op == "placeholder" and node.name.startswith(_TANGENT)])
        early = [node for node in mutations if node not in late]
        placeholders = [node for node in nodes if node.op == "placeholder" and not node.name.startswith(_TANGENT)]
        # The graph is functional but for these mutations, so its other nodes see the inputs as they were.
        mutated = {node.args[0] for node in mutations}
        given = dict(zip(placeholders, primals, strict=False))
        kept = {node: value.clone() if node in mutated else value for node, value in given.items()}
        joint = JointRun(outputs=[], values=kept)
        needed = _needed_for([*forward_outputs, *early])
        self._run(joint.values, [node for node in nodes if node in needed and node not in mutations])
        for node in early:
            joint.values[node] = given[node.args[0]].copy_(joint.values[node.args[1]])
        joint.outputs = [joint.values[value] if isinstance(value, Node) else value for value in forward_outputs]
        return joint

    def backward(self, joint: JointRun, tangents: Sequence[Any]) -> list[Any]:
        """Run the rest, on gradients of outputs."""
        nodes = list(self.module.graph.nodes)
        names = [node for node in nodes if node.op == "placeholder" and node.name.startswith(_TANGENT)]
        values = {**joint.values, **dict(zip(names, tangents, strict=False))}
        outputs = outputs_of(self.module)[self.forward_outputs :]
        needed = _needed_for(outputs)
        self._run(values, [node for node in nodes if node in needed and node not in values])
        return [values[value] if isinstance(value, Node) else value for value in outputs]

    def _run(self, values: dict[Node, Any], nodes: Sequence[Node]) -> None:
        interpreter = _Eager(self.module, garbage_collect_values=False)
        interpreter.env = values
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                values[node] = interpreter.run_node(node)


def _mutates(node: Node) -> bool:
    return node.target is torch.ops.aten.copy_.default


def _needed_for(wanted: Sequence[Any]) -> set[Node]:
    """The nodes among `wanted` and all that they depend on."""
    found: set[Node] = set()
    left = [value for value in wanted if isinstance(value, Node)]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.all_input_nodes
    return found


def _users_of(sources: Sequence[Node]) -> set[Node]:
    """The nodes that depend on any of `sources`."""
    found: set[Node] = set()
    left = list(sources)
    while left:
        for user in left.pop().users:
            if user not in found:
                found.add(user)
                left.append(user)
    return found


def stand_ins(outputs: Sequence[Any]) -> Iterator[Any]:
    """Values with the type and number of dimensions of these outputs, for tensors that AOT autograd saves and nobody reads."""
    for output in outputs:
        seen = output.meta.get("val") if isinstance(output, Node) else output
        if isinstance(seen, torch.Tensor):
            yield torch.zeros([1] * seen.dim(), dtype=seen.dtype, device=seen.device)
        elif isinstance(seen, torch.SymFloat):
            yield 1.0
        elif isinstance(seen, torch.SymInt):
            yield 1
        else:
            yield seen
