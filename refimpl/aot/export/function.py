"""Exports a function as one functional graph that needs no runtime wrapper; raises an ExportError if it would need one.

Counterpart: torch/_functorch/aot_autograd.py _aot_export_function; aot_stage2_export of _aot_autograd/graph_compile.py
Differs: the joint graph is traced once; upstream traces it a second time to flatten it. The tangent of a repeated output, as in
`return y, y`, is added after the trace; upstream traces two outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import FakeTensor, PyTreeCodeGen, PyTreeInfo, pytree
from refimpl.aot import options as aot_options
from refimpl.aot.analysis.metadata import OutputKind, ProgramAnalysis
from refimpl.aot.effects import thread_tokens
from refimpl.aot.export.bans import check_exportable, refuse_random_state, refuse_subclass
from refimpl.aot.export.view_and_mutation import ViewAndMutationMeta, view_and_mutation_meta
from refimpl.aot.export_errors import MemoryBeyondInput
from refimpl.aot.functional_call import create_tree_flattened_fn
from refimpl.aot.functional_program import FunctionalProgram, ProgramRequest, functional_program
from refimpl.aot.in_graph_mutations import with_mutations_in_graph
from refimpl.aot.joint.trace import TracedProgram
from refimpl.aot.options import AOTConfig
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.options import DecompositionTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFunction:
    """An exported graph, with what its inputs and outputs are.

    It takes (*effect tokens, *leaves of (args, kwargs), *tangents). It returns (*tokens, *updated inputs, *leaves of the result).
    A joint graph then returns the bases of outputs that are views, and for every leaf a gradient or None.
    """

    graph_module: torch.fx.GraphModule
    metadata: ViewAndMutationMeta
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    has_backward: bool
    num_tokens: int
    num_forward_outputs: int  # without tokens


def _aot_export_function(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    num_params_buffers: int = 0,
    decompositions: DecompositionTable | None = None,
    no_tangents: bool = False,
    pre_dispatch: bool = False,
    dynamic_shapes: bool | None = None,
    keep_input_mutations: bool = False,
    trace_joint: bool = False,
    kwargs: dict[str, Any] | None = None,
) -> tuple[torch.fx.GraphModule, ViewAndMutationMeta, pytree.TreeSpec, pytree.TreeSpec]:
    """Returns the graph, its mutations and aliases, the pytree spec of (args, kwargs), and that of the result.

    The graph is a joint one if an input requires a gradient, a result has one, and grad mode is on. With `trace_joint` a
    mutation of such an input is refused, too. An inference graph takes leaves and returns (*updated inputs, *leaves of the
    result). A joint graph is called with (leaves, tangents) and returns ([*updated inputs, *leaves of the result], [a gradient
    or None for each leaf]). Effect tokens come before the leaves and before the updated inputs.
    """
    exported = export_function(
        func,
        args,
        num_params_buffers=num_params_buffers,
        decompositions=decompositions,
        no_tangents=no_tangents,
        pre_dispatch=pre_dispatch,
        dynamic_shapes=dynamic_shapes,
        keep_input_mutations=keep_input_mutations,
        trace_joint=trace_joint,
        follows_grad_mode=True,
        kwargs=kwargs,
    )
    if exported.has_backward:
        _take_primals_and_tangents(exported)
    return exported.graph_module, exported.metadata, exported.in_spec, exported.out_spec


def export_function(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    num_params_buffers: int = 0,
    decompositions: DecompositionTable | None = None,
    no_tangents: bool = False,
    pre_dispatch: bool = False,
    dynamic_shapes: bool | None = None,
    keep_input_mutations: bool = False,
    trace_joint: bool = False,
    follows_grad_mode: bool = False,
    kwargs: dict[str, Any] | None = None,
    names: Sequence[str] = (),
) -> ExportedFunction:
    """The exported graph of `func(*args, **kwargs)`.

    trace_joint: include the backward, if anything requires a gradient, and refuse mutations of what does.
    follows_grad_mode: include it without this, if grad mode is on. no_tangents: the only differentiable output is a scalar,
    and its tangent is 1. keep_input_mutations: the graph itself writes to inputs where it can. dynamic_shapes: sizes are
    symbols; with None they are if a fake argument has a shape env. names: of the first leaves, for errors.
    Integers become constants of the graph. Raises an ExportError for an effect that only a runtime wrapper could reproduce.
    """
    flat_fn, out_spec = create_tree_flattened_fn(func, args, kwargs or {})
    leaves, in_spec = pytree.tree_flatten((args, kwargs or {}))
    names = _checked_names(leaves, names)
    config = AOTConfig(
        decompositions=decompositions or {},
        num_params_buffers=num_params_buffers,
        aot_id=next(aot_options.AOT_COUNTER),
        keep_inference_input_mutations=keep_input_mutations,
        dynamic_shapes=_have_symbols(leaves) if dynamic_shapes is None else dynamic_shapes,
        is_export=True, no_tangents=no_tangents, pre_dispatch=pre_dispatch,
    )  # fmt: skip
    metadata: list[ViewAndMutationMeta] = []

    def check(traced: TracedProgram) -> None:
        check_exportable(traced, leaves, names, is_joint=trace_joint, has_tangents=not no_tangents)
        metadata.append(view_and_mutation_meta(traced, keep_input_mutations=keep_input_mutations))

    wants = None if trace_joint or (follows_grad_mode and not pre_dispatch) else False
    request = ProgramRequest(function=flat_fn, args=leaves, config=config, wants_backward=wants, check=check)
    program = functional_program(request)
    graph_module, num_forward_outputs = _with_outputs(program, keeps_mutations=keep_input_mutations)
    if program.replaced:
        raise MemoryBeyondInput([names[position] for group in program.replaced for position in group.members])
    num_tokens = _thread_tokens(graph_module, program.traced)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()
    assert out_spec.spec is not None
    return ExportedFunction(
        graph_module=graph_module,
        metadata=metadata[0],
        in_spec=in_spec,
        out_spec=out_spec.spec,
        has_backward=program.analysis.has_backward,
        num_tokens=num_tokens,
        num_forward_outputs=num_forward_outputs,
    )


def _checked_names(leaves: Sequence[Any], names: Sequence[str]) -> list[str]:
    """A name for every leaf. Raises an ExportError for a wrapper subclass, or if random ops are to be functional."""
    every = [*names, *(f"input {i}" for i in range(len(names), len(leaves)))]
    for name, leaf in zip(every, leaves, strict=True):
        refuse_subclass(leaf, name)
    refuse_random_state()
    return every


def _have_symbols(leaves: Sequence[Any]) -> bool:
    return any(isinstance(leaf, FakeTensor) and leaf.fake_mode.shape_env is not None for leaf in leaves)


def _with_outputs(program: FunctionalProgram, *, keeps_mutations: bool) -> tuple[torch.fx.GraphModule, int]:
    """Removes outputs that only a runtime wrapper reads, and returns the graph with its number of forward outputs.

    Those are symbolic numbers for views, and, in an inference graph, the bases of views.
    """
    graph_module, analysis = program.graph_module, program.analysis
    if keeps_mutations:
        slots = graph_module.graph.find_nodes(op="placeholder")
        graph_module, analysis = with_mutations_in_graph(graph_module, analysis, list(slots))
    graph = graph_module.graph
    output = graph.output_node()
    returned = list(output.args[0])  # type: ignore[call-overload]
    mutations = [info.mutation for info in analysis.inputs]
    forward = [returned[m.position] for m in mutations if m is not None]
    forward += [returned[info.position] for info in analysis.outputs]
    gradients: list[Any] = []
    if analysis.has_backward:
        forward += [returned[position] for position in analysis.bases]  # tangents of views belong to bases
        if program.traced.example_tangents:
            add_tangents_of_repeated_outputs(graph, analysis)
        found = returned[analysis.num_forward_outputs :]
        gradients = [None if index is None else found[index] for index in analysis.gradients]
    output.args = ((*forward, *gradients),)
    return graph_module, len(forward)


def _thread_tokens(graph_module: torch.fx.GraphModule, traced: TracedProgram) -> int:
    """Orders side effects by tokens, one for each kind of effect, and returns their number."""
    tokens = thread_tokens(graph_module, traced.fake_mode)
    if tokens.backward:
        raise UnsupportedByRefimpl(
            seen="an op with side effects in the backward of an exported graph",
            supported="side effects in the forward",
            do="export without trace_joint",
        )
    output = graph_module.graph.output_node()
    output.args = (tuple(output.args[0]),)  # type: ignore[arg-type]
    return len(tokens.forward)


def _take_primals_and_tangents(exported: ExportedFunction) -> None:
    """Makes a joint graph take (primals, tangents) and return (outputs, gradients), each a list."""
    graph = exported.graph_module.graph
    output = graph.output_node()
    returned = list(output.args[0])  # type: ignore[call-overload]
    num_outputs = exported.num_tokens + exported.num_forward_outputs
    num_gradients = len(returned) - num_outputs
    num_primals = exported.num_tokens + num_gradients
    num_tangents = len(graph.find_nodes(op="placeholder")) - num_primals
    in_spec = pytree.tree_structure(([0] * num_primals, [0] * num_tangents))
    out_spec = pytree.tree_structure(([0] * num_outputs, [0] * num_gradients))
    graph.set_codegen(PyTreeCodeGen(PyTreeInfo(["primals", "tangents"], in_spec, out_spec)))
    output.args = (returned,)
    exported.graph_module.recompile()


# Tangents of repeated outputs, as in `return y, y`. The caller of an exported joint graph passes a tangent for each output. In a
# compiled function a repeated output is one object with one gradient, so the trace makes no second tangent.

_add = torch.ops.aten.add.Tensor


def add_tangents_of_repeated_outputs(graph: torch.fx.Graph, analysis: ProgramAnalysis) -> None:
    """Adds a tangent placeholder for each repeated output, and names all tangents in the order of outputs: `tangents_1`, ..."""
    outputs = analysis.outputs
    if not any(info.kind is OutputKind.REPEATED for info in outputs):
        return
    placeholders = graph.find_nodes(op="placeholder")
    first_op = placeholders[-1].next
    given = placeholders[len(placeholders) - len(analysis.differentiable) :]
    tangents = dict(zip(analysis.differentiable, given, strict=True))
    ordered: list[torch.fx.Node] = []
    sums: list[torch.fx.Node] = []
    totals = {node: node for node in given}  # what backward reads for a tangent
    for info in outputs:
        source = info if info.kind is not OutputKind.REPEATED or info.source is None else outputs[info.source]
        tangent = tangents.get(source.position)
        if tangent is None:
            continue
        if source is not info:
            with graph.inserting_before(first_op):
                second = graph.placeholder("tangents")
                total = graph.call_function(_add, (totals[tangent], second))
            second.meta, total.meta = dict(tangent.meta), dict(tangent.meta)
            totals[tangent].replace_all_uses_with(total, delete_user_cb=lambda user, total=total: user is not total)
            totals[tangent] = total
            sums.append(total)
            tangent = second
        ordered.append(tangent)
    for node in (*ordered, *(node for node in given if node not in ordered), *sums):
        first_op.prepend(node)
    for number, node in enumerate(graph.find_nodes(op="placeholder")[len(placeholders) - len(given) :], start=1):
        node.name = node.target = f"tangents_{number}"
