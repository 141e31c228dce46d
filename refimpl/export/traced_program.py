"""Traces a program above autograd, without functionalization; used by strict and non-strict export.

Counterpart: torch/export/_trace.py _export_to_aten_ir_make_fx
Differs: runtime asserts are recorded while the trace runs, and then moved to the first node with their symbols; upstream inserts
them by a pass that interprets the graph again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from refimpl._torch import FakeTensor, FakeTensorMode, leaving_transforms, pytree
from refimpl.capture.config import config
from refimpl.capture.entry_points.export_signature import check_leaves
from refimpl.capture.public.errors import UserErrorType
from refimpl.export.asserting_trace import AssertingTrace
from refimpl.export.assigned_buffers import read_copies_of, write_assigned
from refimpl.export.errors import translated
from refimpl.export.shapes.policies import InputLeaf
from refimpl.export.submodule_calls import SubmoduleCall, SubmoduleCallsState
from refimpl.export.wrappers import is_wrapper, record_wrapper, refuse_operands
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.trace.metadata import copied_meta
from refimpl.trace.options import TraceOptions

# A function of (parameters and buffers by name, args, kwargs) that returns the program's result, and the values that the program
# assigned to buffers.
ProgramCall = Callable[
    [Mapping[str, torch.Tensor], tuple[Any, ...], dict[str, Any]], tuple[Any, Mapping[str, torch.Tensor]]
]

OPTIONS = TraceOptions(
    tracing_mode="symbolic",
    pre_dispatch=True,
    record_module_stack=True,
    specializes_integers=True,
    allow_non_fake_inputs=True,
    lifts_constants=True,
)


@dataclass(frozen=True, kw_only=True)
class FakeProgram:
    """A program with fake inputs and state, to be traced."""

    root: torch.nn.Module
    """The user's module, whose names parameters, buffers and constants have."""
    call: ProgramCall
    scopes: torch.nn.Module | None
    """The module for `nn_module_stack`; None if the nodes that are interpreted have one."""
    parameters: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor]
    leaves: Sequence[InputLeaf]
    inputs: Sequence[Any]
    """Fake inputs in the order of `leaves`."""
    in_spec: pytree.TreeSpec
    argument_names: Sequence[str]
    fake_mode: FakeTensorMode
    shape_env: ShapeEnv
    preserved: Sequence[str] = ()
    """Names of submodules whose call signatures are preserved."""


@dataclass(frozen=True, kw_only=True)
class TracedProgram:
    """The graph takes (*parameters, *buffers, *leaves) and returns the leaves of the result."""

    graph_module: torch.fx.GraphModule
    out_spec: pytree.TreeSpec
    calls: Mapping[str, SubmoduleCall] = field(default_factory=dict)


def traced(program: FakeProgram) -> TracedProgram:
    """Trace the program. Raises UserError for unsupported results, data-dependent control flow and violated constraints on sizes,
    and the errors of the program."""
    names = (*program.parameters, *program.buffers)
    specs: list[pytree.TreeSpec] = []
    written: list[str] = []
    trace = AssertingTrace(OPTIONS, shape_env=program.shape_env)
    calls = SubmoduleCallsState(program.root, program.preserved)

    def run(*values: Any) -> tuple[Any, ...]:
        named = dict(zip(names, values, strict=False))
        args, kwargs = pytree.tree_unflatten(list(values[len(names) :]), program.in_spec)
        assert trace.recording is not None
        with calls.watching(trace.recording.node_of, trace.innermost_call):
            result, assigned = program.call(named, args, kwargs)
        leaves, spec = pytree.tree_flatten(result)
        leaves = write_assigned(named, assigned, leaves)
        written.extend(name for name in assigned if name in named)
        check_leaves(leaves, UserErrorType.INVALID_OUTPUT, "outputs")
        specs.append(spec)
        for leaf in leaves:
            record_wrapper(trace.recording, leaf)
        for leaf in pytree.tree_leaves(values):
            if is_wrapper(leaf):
                trace.recording.node_of(leaf)  # raises for a wrapper to which the program has assigned another tensor
        if (
            program.shape_env.settings.prefer_deferred_runtime_asserts_over_guards
            and not config.do_not_emit_runtime_asserts
        ):
            program.shape_env.defer_guards()
        trace.assert_conditions()
        return tuple(leaves)

    _forget_steps_of_capture(program)
    if program.scopes is not None:
        run._orig_mod = program.scopes  # type: ignore[attr-defined]
    try:
        with leaving_transforms():
            graph_module = trace.run(run, (*program.parameters.values(), *program.buffers.values(), *program.inputs))
    except RuntimeError as error:
        known = translated(error)
        if known is error:
            raise
        raise known from error
    trace.check_complete()
    inputs = dict(zip(names, graph_module.graph.find_nodes(op="placeholder"), strict=False))
    read_copies_of(graph_module.graph, [inputs[name] for name in written])
    graph_module.recompile()
    refuse_operands(graph_module.graph)
    _note_bindings(graph_module.graph, program.shape_env)
    _assert_metadata_of_conversions(graph_module.graph)
    return TracedProgram(graph_module=graph_module, out_spec=specs[0], calls=calls.calls)


def _forget_steps_of_capture(program: FakeProgram) -> None:
    """Forget symbols of steps inside of a captured call, such as `x[:u0] = y`; and numbers that capture read from an input
    and then found a value for (`torch._check(u0 == 3)`): the trace has to read and check them itself."""
    env = program.shape_env
    env.pending_fresh_unbacked_symbols.clear()
    for value in program.inputs:
        read = value.item_memo if isinstance(value, FakeTensor) else None
        if isinstance(read, torch.SymInt) and read.node.expr.is_number:
            value.item_memo = None


_CONVERSIONS = (torch.ops.aten.to.device, torch.ops.aten.to.dtype, torch.ops.aten.to.dtype_layout)


def _assert_metadata_of_conversions(graph: torch.fx.Graph) -> None:
    """Before each `to`, assert the dtype, device and layout of its input. Whether `to` copies depends on them, and a functional
    graph has either the copy or nothing.

    Counterpart: torch/_export/utils.py _insert_aten_to_metadata_assert_pass
    """
    for node in graph.nodes:
        given = node.args[0] if node.target in _CONVERSIONS else None
        before = node.prev
        if given is None or (
            before.target is torch.ops.aten._assert_tensor_metadata.default and before.args[0] is given
        ):
            continue
        value = given.meta["val"]
        with graph.inserting_before(node):
            made = graph.call_function(
                torch.ops.aten._assert_tensor_metadata.default,
                (given,),
                {"dtype": value.dtype, "device": value.device, "layout": value.layout},
            )
        made.meta = {**copied_meta(node, "stack_trace", "nn_module_stack"), "val": None}


def _note_bindings(graph: torch.fx.Graph, env: ShapeEnv) -> None:
    """Note unbacked bindings on nodes that have none because a fake input caches its item (`x.item()` twice). A symbol that the
    program has asserted to be a number or a size of an input is bound by no node: no value has it."""
    bound: set[Any] = set()
    for node in graph.nodes:
        given = node.meta.pop("unbacked_bindings", {})
        kept = {symbol: path for symbol, path in given.items() if env.has_unbacked(env.replace(symbol))}
        if kept:
            node.meta["unbacked_bindings"] = kept
        bound.update(node.meta.get("unbacked_bindings") or ())
        value = node.meta.get("val")
        expr = value.node.expr if isinstance(value, torch.SymInt) else None
        if expr in env.unbacked and expr not in bound:
            node.meta["unbacked_bindings"] = {expr: ()}
            bound.add(expr)
