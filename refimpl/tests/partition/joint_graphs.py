"""Joint graphs of small functions, and running what a partitioner makes of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx.graph import CodeGen

from refimpl._torch import pytree
from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
from refimpl.trace.make_fx import make_fx
from refimpl.trace.metadata import note

Graphs = tuple[torch.fx.GraphModule, torch.fx.GraphModule]
PARTITIONERS = [default_partition, min_cut_rematerialization_partition]


@dataclass(frozen=True, kw_only=True)
class Joint:
    """A joint graph, and inputs it can be run with. `mutated`: positions of primals that are written to after the forward."""

    module: torch.fx.GraphModule
    outputs: int
    primals: list[Any]
    tangents: list[Any]
    mutated: Collection[int] = ()

    def node(self, name: str) -> torch.fx.Node:
        return next(node for node in self.module.graph.nodes if node.name == name)

    def calls(self, op: Any) -> list[Any]:
        return calls(self.module, op)


def x(*shape: int) -> torch.Tensor:
    """Random numbers, a 4x4 matrix of them by default."""
    return torch.randn(*shape or (4, 4))


# Functions of matrices, and arguments.
PROGRAMS: Any = {
    "cosines": (lambda a: a.cos().cos().cos(), (x(),)),
    "sums": (lambda a, b, c, d: (a + b + c + d).cos().cos(), (x(), x(), x(), x())),
    "layer norm": (lambda a, w, b: F.layer_norm(a, [4], w, b), (x(), x(4), x(4))),
    "gelu mlp": (lambda a, w, v: F.gelu(a @ w) @ v, (x(), x(), x())),
    "dropout": (lambda a, w: F.dropout(F.gelu(a @ w), 0.5) @ w, (x(), x())),
}


def split(joint: Joint, partitioner: Any = min_cut_rematerialization_partition, **kwargs: Any) -> Graphs:
    return partitioner(joint.module, None, num_fwd_outputs=joint.outputs, **kwargs)


def calls(module: torch.fx.GraphModule, op: Any) -> list[Any]:
    """Nodes that call an op, which is an overload or a packet."""
    return [n for n in module.graph.nodes if n.target is op or getattr(n.target, "overloadpacket", None) is op]


def joint_of(
    function: Callable[..., Any], *primals: Any, symbolic: bool = False, mutated: Collection[int] = ()
) -> Joint:
    """Trace outputs and gradients. Gradients are of the floating primals, None for others."""
    wanted = [isinstance(p, torch.Tensor) and p.is_floating_point() for p in primals]

    def outputs_of(values: Sequence[Any]) -> list[Any]:
        result = function(*values)
        return list(result) if isinstance(result, (tuple, list)) else [result]

    def with_gradients(values: Sequence[Any]) -> list[Any]:
        return [v.detach().requires_grad_() if w else v for v, w in zip(values, wanted, strict=True)]

    def joint(primals: list[Any], tangents: list[Any]) -> Any:
        inputs = with_gradients(primals)
        outputs = outputs_of(inputs)
        differentiable = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
        targets = [p for p, w in zip(inputs, wanted, strict=True) if w]
        found = iter(torch.autograd.grad(differentiable, targets, tangents, allow_unused=True))
        return outputs, [next(found) if w else None for w in wanted]

    sample = outputs_of(with_gradients(primals))
    tangents = [torch.randn_like(o.detach()) for o in sample if isinstance(o, torch.Tensor) and o.requires_grad]
    module = make_fx(joint, tracing_mode="symbolic" if symbolic else "fake")(list(primals), tangents)
    module.graph.set_codegen(CodeGen())
    module.recompile()
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for position in mutated:
        note(placeholders[position], is_mutated_input=True)
    return Joint(module=module, outputs=len(sample), primals=[*primals], tangents=tangents, mutated=mutated)


def saved_nodes(graphs: Graphs, outputs: int) -> list[torch.fx.Node]:
    """What the forward returns for the backward."""
    return pytree.tree_leaves(list(graphs[0].graph.nodes)[-1].args[0])[outputs:]


def saved_names(graphs: Graphs, joint: Joint) -> list[str]:
    return [node.name for node in saved_nodes(graphs, joint.outputs)]


def run_joint(joint: Joint, primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Outputs, then gradients."""
    torch.manual_seed(0)
    return pytree.tree_leaves(joint.module(*primals, *tangents), is_leaf=lambda v: v is None)


def run_split(joint: Joint, graphs: Graphs, primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Outputs, then gradients. Between forward and backward, mutated primals are overwritten."""
    forward, backward = graphs
    primals = [p.clone() if isinstance(p, torch.Tensor) else p for p in primals]
    torch.manual_seed(0)
    results = forward(*primals)
    outputs = [o.clone() if isinstance(o, torch.Tensor) else o for o in results[: joint.outputs]]
    for position in joint.mutated:
        primals[position].fill_(float("nan"))
    saved = dict(zip(saved_names(graphs, joint), results[joint.outputs :], strict=True))
    remaining = iter(tangents)
    arguments = [
        saved[node.name] if node.name in saved else next(remaining)
        for node in backward.graph.nodes
        if node.op == "placeholder"
    ]
    return [*outputs, *backward(*arguments)]


def assert_same_values(joint: Joint, graphs: Graphs, primals: Any = None, tangents: Any = None) -> None:
    """What the two graphs give is, bit by bit, what the joint graph gives."""
    __tracebackhide__ = True
    primals = joint.primals if primals is None else primals
    tangents = joint.tangents if tangents is None else tangents
    expected = run_joint(joint, primals, tangents)
    actual = run_split(joint, graphs, primals, tangents)
    assert len(actual) == len(expected)
    for position, (a, e) in enumerate(zip(actual, expected, strict=True)):
        same = torch.equal(a, e) if isinstance(e, torch.Tensor) else a == e
        assert same, f"value {position} is {a}, but should be {e}"
