"""aot_export_module: exports a module as one functional graph, with or without its backward, and a signature.

Counterpart: torch/_functorch/aot_autograd.py aot_export_module
Differs: four programs work that fail in upstream 2.13. A tensor that forward assigns to a buffer updates the buffer (upstream
drops it). If a parameter has several names, the first gets the gradient and the others get zeros (AssertionError). One node may
be the gradient of two inputs (AssertionError). A joint graph may have keyword arguments (TypeError).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from refimpl._torch import pytree
from refimpl.aot.effects import unlift_tokens
from refimpl.aot.export.bans import refuse_subclass
from refimpl.aot.export.function import ExportedFunction, export_function
from refimpl.aot.export.signature import GraphSignature, ModuleGraphOutputs, graph_signature, with_nodes_of_their_own
from refimpl.aot.export_errors import (
    BadLoss,
    BufferAssigned,
    DifferentiableInputMutation,
    GradientMissing,
    JointWithPreDispatch,
    LossIndexMissing,
    OutputNotSequence,
    SecondDifferentiableOutput,
)
from refimpl.aot.functional_call import call_and_read_buffers, parameters_and_buffers
from refimpl.aot.options import current_settings
from refimpl.trace.options import DecompositionTable


def aot_export_module(
    mod: torch.nn.Module,
    args: Iterable[Any],
    *,
    decompositions: DecompositionTable | None = None,
    trace_joint: bool,
    output_loss_index: int | None = None,
    pre_dispatch: bool = False,
    dynamic_shapes: bool | None = None,
    kwargs: dict[str, Any] | None = None,
) -> tuple[torch.fx.GraphModule, GraphSignature]:
    """The graph of a module, and the signature that names its inputs and outputs.

    The graph takes (*parameters, *buffers, *leaves of (args, kwargs)) and returns (*updated inputs, *leaves of the result). With
    `trace_joint` it also returns the gradients of the loss for parameters and inputs that require them. If there are side
    effects, tokens precede the inputs and the outputs. The caller copies updated inputs into the inputs.

    With `trace_joint` the loss is the output at `output_loss_index`. It must be a scalar and the only output that requires a
    gradient, and no input that requires a gradient may be mutated. Without `trace_joint` the module runs under no_grad, unless
    `pre_dispatch` is set: then it runs in the present grad mode, and the graph records changes of the mode.
    Raises an ExportError if the geometry of an input changes, a mutated input shares memory with another, an input or output is
    a wrapper subclass, the module returns no tuple or list, the loss is missing or unsuitable, or both `trace_joint` and
    `pre_dispatch` are set. Raises GradientMissing if the loss does not depend on an input that requires a gradient.
    """
    if pre_dispatch and trace_joint:
        raise JointWithPreDispatch
    named = parameters_and_buffers(mod)
    run = _ModuleRun(mod, tuple(named), loss_index=output_loss_index, is_joint=trace_joint)

    def function(*values: Any, **kwargs: Any) -> Any:
        return run(values, kwargs)

    function._orig_mod = mod  # type: ignore[attr-defined]
    with torch.set_grad_enabled(torch.is_grad_enabled() and (trace_joint or pre_dispatch)):
        exported = export_function(
            function,
            (*named.values(), *args),
            num_params_buffers=len(named),
            decompositions=decompositions,
            no_tangents=True,
            pre_dispatch=pre_dispatch,
            dynamic_shapes=dynamic_shapes,
            trace_joint=trace_joint,
            kwargs=kwargs,
            names=tuple(named),
        )
    leaves = pytree.tree_leaves(((*named.values(), *args), kwargs or {}))
    requires_grad = [isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves]
    return _module_graph(exported, run, requires_grad if trace_joint else [])


class _ModuleRun:
    """Runs the module with other parameters and buffers, and notes which output is the loss and which buffers were assigned.

    Mutable; made for one export.
    """

    def __init__(self, mod: torch.nn.Module, names: tuple[str, ...], *, loss_index: int | None, is_joint: bool) -> None:
        self.mod = mod
        self.names = names
        self.num_parameters = len(dict(mod.named_parameters(remove_duplicate=False)))
        first: dict[int, str] = {}
        for name, value in parameters_and_buffers(mod).items():
            first.setdefault(id(value), name)
        self.first_names = {name: first[id(value)] for name, value in parameters_and_buffers(mod).items()}
        self.loss_index = loss_index
        self.is_joint = is_joint
        self.loss_leaf: int | None = None
        self.assigned: tuple[int, ...] = ()  # positions of buffers that forward assigned to, among the inputs

    def __call__(self, values: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[torch.Tensor]]:
        """The result of the module, and the tensors that it assigned to buffers."""
        count = len(self.names)
        by_name = dict(zip(self.names, values[:count], strict=True))
        given = {name: by_name[self.first_names[name]] for name in self.names}
        result, assigned = call_and_read_buffers(self.mod, given, values[count:], kwargs)
        if not isinstance(result, (tuple, list)):
            raise OutputNotSequence(result)
        for leaf in pytree.tree_leaves(result):
            refuse_subclass(leaf, "an output")
        if self.is_joint:
            self.loss_leaf = leaf_of_loss(result, self.loss_index)
        for name, value in assigned.items():
            _check_assigned(name, value, given.get(name), is_joint=self.is_joint)
        self.assigned = tuple(i for i, name in enumerate(self.names) if name in assigned)
        return result, [assigned[self.names[i]] for i in self.assigned]

    def is_repeated(self, position: int) -> bool:
        """Whether the input is a parameter or buffer that has an earlier name too; the module runs on the input of that name."""
        return position < len(self.names) and self.first_names[self.names[position]] != self.names[position]


def leaf_of_loss(result: Sequence[Any], loss_index: int | None) -> int:
    """Position of the loss among the leaves of the result.

    Raises an ExportError if it is no differentiable scalar, or another output requires a gradient.
    """
    if loss_index is None:
        raise LossIndexMissing(len(result))
    if not -len(result) <= loss_index < len(result):
        raise BadLoss(
            f"output_loss_index is {loss_index}, and the module returns {len(result)} outputs",
            expected="a position in what forward returns",
            do="count from 0",
        )
    loss_index %= len(result)
    for position, output in enumerate(result):
        leaves = pytree.tree_leaves(output)
        has_gradient = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
        if has_gradient and position != loss_index:
            raise SecondDifferentiableOutput(position, loss_index)
    loss = result[loss_index]
    if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
        raise BadLoss(
            f"The output at index {loss_index} was marked as the loss, but it does not require gradients",
            expected="a tensor that depends on a parameter or input that requires gradients",
            do="choose another output_loss_index; the loss must not be detached, nor the grad mode be off",
        )
    if loss.numel() != 1:
        raise BadLoss(
            f"We require the output marked as the loss (at index {loss_index}) to be a scalar, but it has shape "
            f"{tuple(loss.shape)}",
            expected="one element",
            do="reduce it, by sum() or mean()",
        )
    return sum(len(pytree.tree_leaves(output)) for output in result[:loss_index])


def _check_assigned(name: str, value: Any, before: torch.Tensor | None, *, is_joint: bool) -> None:
    if before is None:
        raise BufferAssigned(name, "for the first time, by a forward")
    if not isinstance(value, torch.Tensor):
        raise BufferAssigned(name, f"a {type(value).__name__}")
    if (value.shape, value.dtype, value.device) != (before.shape, before.dtype, before.device):
        raise BufferAssigned(
            name, f"a {value.dtype} of shape {tuple(value.shape)}; it is {before.dtype} of shape {tuple(before.shape)}"
        )
    if is_joint and value.requires_grad:
        raise DifferentiableInputMutation(name, required_before=False)


def _module_graph(
    exported: ExportedFunction, run: _ModuleRun, requires_grad: Sequence[bool]
) -> tuple[torch.fx.GraphModule, GraphSignature]:
    """Sets the graph's outputs: updates from mutations and assigned buffers, results, gradients of inputs that require them."""
    graph_module, graph = exported.graph_module, exported.graph_module.graph
    output = graph.output_node()
    tokens = list(output.args[0])[: exported.num_tokens]  # type: ignore[call-overload]
    returned = list(output.args[0])[exported.num_tokens :]  # type: ignore[call-overload]
    mutated = exported.metadata.mutated_inp_runtime_indices
    user_spec = exported.out_spec.children()[0]
    first_assigned = len(mutated) + user_spec.num_leaves
    updates = dict(zip(mutated, returned, strict=False)) | dict(
        zip(run.assigned, returned[first_assigned:], strict=False)
    )
    gradients: dict[int, torch.fx.Node] = {}
    found = returned[exported.num_forward_outputs :]
    for position, (wants, gradient) in enumerate(zip(requires_grad, found, strict=True)):
        if not wants:
            continue
        if gradient is None and run.is_repeated(position):
            gradient = _zeros(graph, exported.num_tokens + position)
        if gradient is None:
            raise GradientMissing(run.names[position] if position < len(run.names) else f"input {position}")
        gradients[position] = gradient
    outputs = with_nodes_of_their_own(
        graph,
        ModuleGraphOutputs(
            tokens=tokens,
            updates=dict(sorted(updates.items())),
            user_outputs=returned[len(mutated) : first_assigned],
            gradients=gradients,
            loss=run.loss_leaf,
        ),
    )
    output.args = (tuple(outputs.values()),)
    for index, node in enumerate(graph.find_nodes(op="placeholder")):
        node.name = node.target = f"arg{index}_1"
    graph.eliminate_dead_code()
    graph_module.recompile()
    signature = graph_signature(
        graph,
        outputs,
        parameters=run.names[: run.num_parameters],
        buffers=run.names[run.num_parameters :],
        in_spec=exported.in_spec,
        out_spec=user_spec,
    )
    if tokens and current_settings().unlift_effect_tokens:
        unlift_tokens(graph_module, first_inputs=len(tokens), first_outputs=len(tokens))
        signature = replace(signature, input_tokens=[], output_tokens=[])
    return graph_module, signature


def _zeros(graph: torch.fx.Graph, position: int) -> torch.fx.Node:
    placeholder = graph.find_nodes(op="placeholder")[position]
    with graph.inserting_before(graph.output_node()):
        zeros = graph.call_function(torch.ops.aten.zeros_like.default, (placeholder,))
    zeros.meta = dict(placeholder.meta)
    return zeros
