"""`export`: captures a whole function as one graph, which is called like the function.

Counterpart: torch/_dynamo/eval_frame.py export; torch/_dynamo/eval_frame.py check_signature_rewritable;
torch/_dynamo/output_graph.py source_to_user_stacks
Differs: the function does not run. Its one segment is captured, and its result is made of tensors without data.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.fx import traceback as fx_traceback

from refimpl._torch import pytree
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.config import config
from refimpl.capture.entry_points.contexts import function_of, innermost_fn
from refimpl.capture.entry_points.export_shapes import SpecifiedSizes, specified_sizes
from refimpl.capture.entry_points.export_signature import Captured, with_signature
from refimpl.capture.entry_points.reset import remove_from_cache
from refimpl.capture.guards.size_history import SizeHistory
from refimpl.capture.guards.sources import DrawsSource, KeptSource, OwnAttributeSource, Source
from refimpl.capture.interpreter.concrete_calls import frame_of
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.public.errors import Unsupported, UserError, UserErrorType
from refimpl.capture.public.fake_values import as_raised
from refimpl.capture.public.platforms import check_if_dynamo_supported
from refimpl.capture.public.running import capturing
from refimpl.capture.public.usage import log_api_usage, log_export_usage
from refimpl.capture.segment import Segment
from refimpl.capture.translate import translate
from refimpl.errors import BadParameter, MismatchedBranches
from refimpl.symbolic.dynamic_shapes import ALL_STATIC
from refimpl.trace.make_fx import make_fx
from refimpl.trace.metadata import notes_of

_TRACING_MODES = ("real", "fake", "symbolic")


class ExportResult(NamedTuple):
    """The graph and its guards. It has exactly two fields, because users unpack it."""

    graph_module: fx.GraphModule
    guards: Any


@dataclass(frozen=True, kw_only=True)
class _Options:
    aten_graph: bool
    pre_dispatch: bool
    decomposition_table: Mapping[Any, Callable[..., Any]] | None
    tracing_mode: str
    dynamic_shapes: Any
    assume_static_by_default: bool
    same_signature: bool
    is_strict: bool


def export(
    f: Callable[..., Any],
    *extra_args: Any,
    aten_graph: bool = False,
    pre_dispatch: bool = False,
    decomposition_table: Mapping[Any, Callable[..., Any]] | None = None,
    tracing_mode: str = "symbolic",
    dynamic_shapes: Any = None,
    specialize_float: bool = True,
    assume_static_by_default: bool = False,
    same_signature: bool = True,
    disable_constraint_solver: bool = False,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
    _log_export_usage: bool = True,
    constraints: Any = None,
    **extra_kwargs: Any,
) -> Any:
    """A function of example arguments that gives an ExportResult: the graph of a call of `f`, and its guards.

    `f`: function, method or module; tensors in its arguments and results may be in containers that torch.utils._pytree knows.
    aten_graph: the graph has aten overloads, traced again with `decomposition_table` and above autograd under `pre_dispatch`.
    tracing_mode: "symbolic" lets sizes be symbols; dynamic_shapes: which of them, within which bounds (`specified_sizes`).
    same_signature: the graph is called like `f`; else with its own flat inputs.
    `export(f, *args)` does it at once, with a FutureWarning.

    What was captured of `f` before, by any backend, is forgotten. A tensor that is read and is no argument becomes an attribute
    of the graph; under `config.install_free_tensors_for_export=False` it is refused, unless it is a parameter or buffer.

    Raises AssertionError for options that do not fit each other; UserError for arguments and results that are neither tensors nor
    constants, and for dynamic_shapes that do not fit them; ConstraintViolationError where the program does not take all sizes
    that it should; Unsupported where a graph would break; TorchRuntimeError where an operator raises.
    """
    check_if_dynamo_supported()
    if _log_export_usage:
        log_export_usage(event="export.private_api", flags={"_dynamo"})
    options = _Options(
        aten_graph=aten_graph, pre_dispatch=pre_dispatch, decomposition_table=decomposition_table, tracing_mode=tracing_mode,
        dynamic_shapes=dynamic_shapes, assume_static_by_default=assume_static_by_default, same_signature=same_signature,
        is_strict=not disable_constraint_solver,
    )  # fmt: skip
    _check(options)
    if extra_args or extra_kwargs:
        warnings.warn(
            "arguments beside the function are deprecated\n  what to do: export(f)(x), and not export(f, x)",
            FutureWarning,
            stacklevel=2,
        )
        return _exported(f, extra_args, extra_kwargs, options)
    return lambda *args, **kwargs: _exported(f, args, kwargs, options)


def _check(options: _Options) -> None:
    if options.tracing_mode not in _TRACING_MODES:
        raise BadParameter(
            seen=f"tracing_mode={options.tracing_mode!r}", expected=f"one of {', '.join(_TRACING_MODES)}"
        )
    for name in ("decomposition_table", "pre_dispatch"):
        assert options.aten_graph or not getattr(options, name), (
            f"{name}={getattr(options, name)!r} says how aten_graph=True traces, and aten_graph is False\n"
            f"  what to do: set aten_graph=True, or leave {name} out"
        )


def _exported(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: _Options) -> ExportResult:
    log_api_usage("export")
    f = innermost_fn(f)
    function, receiver = function_of(f)
    remove_from_cache(f)
    signature = inspect.signature(f.forward if isinstance(f, torch.nn.Module) else f)
    flat_args, in_spec = pytree.tree_flatten((args, kwargs))
    sizes = None
    if isinstance(options.dynamic_shapes, SpecifiedSizes):
        sizes = options.dynamic_shapes
    elif options.dynamic_shapes is not None:
        sizes = specified_sizes(options.dynamic_shapes, signature, args, kwargs, is_strict=options.is_strict)
    segment, kept, frames = _captured(function, (*receiver, *args), kwargs, options, sizes)
    remove_from_cache(f)
    if segment.graph is None:
        assert options.same_signature, (
            f"{f} has no operators on tensors\n  expected: a function that computes something, or same_signature=True"
        )
    if not options.same_signature:
        assert segment.graph is not None
        return ExportResult(segment.graph, list(segment.guards))
    captured = Captured.of(segment, kept, frames, sizes.positions if isinstance(sizes, SpecifiedSizes) else None)
    if segment.graph is not None:
        note_free_tensors(segment.graph, captured.inputs, flat_args)
        check_signature_rewritable(segment.graph)
    specified = sizes.policies if isinstance(sizes, SpecifiedSizes) else {}
    policies = [specified.get(id(arg), ALL_STATIC) for arg in flat_args]
    module = with_signature(captured, flat_args, in_spec, argument_names(signature, args, kwargs), policies)
    if options.aten_graph:
        module = _as_aten(module, flat_args, options)
    return ExportResult(module, list(segment.guards))


def _captured(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: _Options, sizes: SizeHistory | None
) -> tuple[Segment, tuple[Any, ...], list[FrameState]]:
    """The one segment of a call, the objects it reads of the arguments, and the frame that holds the arguments."""
    frame = frame_of(function, args, kwargs)
    if frame is None:  # the arguments do not fit: the call raises the function's own TypeError
        function(*args, **kwargs)
        raise UserError(UserErrorType.INVALID_INPUT, f"{function} cannot be called with these arguments")
    frame.is_running = True
    is_static = options.assume_static_by_default or options.tracing_mode != "symbolic"
    settings = config.patch(
        specialize_int=True,
        specialize_float=True,
        assume_static_by_default=is_static,
        automatic_dynamic_shapes=False,
        capture_dynamic_output_shape_ops=True,
        capture_scalar_outputs=True,
    )
    try:
        with settings, capturing():
            segment = translate([frame], lambda module, examples: module, fullgraph=True, sizes=sizes)
    except GraphBreak as reason:
        raise as_error(reason) from reason.__cause__
    if any(isinstance(each, DrawsSource) for source in segment.sources for each in source.way()):
        raise as_error(GraphBreak("call_of_native_code", what="a function of Python's random"))
    kept = segment.check([frame])
    assert kept is not None, f"a guard does not hold for what it was made of: {segment.guards.failing([frame])}"
    return segment, kept, [frame]


_DYNAMIC_CONTROL_FLOW = ("branch_on_tensor",)


def as_error(reason: GraphBreak) -> Exception:
    """The error for a graph break in an export."""
    raised = as_raised(reason)
    if raised is not reason:
        return raised
    if reason.kind.name in _DYNAMIC_CONTROL_FLOW:
        return UserError(
            UserErrorType.DYNAMIC_CONTROL_FLOW,
            "Dynamic control flow is not supported at the moment. Please use functorch.experimental.control_flow.cond to "
            f"explicitly capture the control flow.\n{reason}",
            case_name="cond_operands",
        )
    return Unsupported.of(reason)


def argument_names(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """A name for every argument of a call, positional ones first; those of `*args` are numbered."""
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{number}" for number in range(len(args) - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) and len(names) < len(args):
            names.append(parameter.name)
    return [*names[: len(args)], *kwargs]


def _as_aten(module: fx.GraphModule, flat_args: list[Any], options: _Options) -> fx.GraphModule:
    """Traces the graph again, down to aten overloads."""
    tensors = [arg for arg in flat_args if isinstance(arg, torch.Tensor)]
    others = [arg for arg in flat_args if not isinstance(arg, torch.Tensor)]
    codegen = module.graph._codegen
    interpreter = fx.Interpreter(module)

    def run(*leaves: Any) -> Any:
        with fx_traceback.preserve_node_meta():
            return interpreter.run(*leaves, enable_io_processing=False)

    assert len(tensors) + len(others) == len(flat_args)
    mode = "symbolic" if options.tracing_mode == "symbolic" and not options.assume_static_by_default else "fake"
    trace = make_fx(
        run, decomposition_table=dict(options.decomposition_table or {}), tracing_mode=mode,
        _allow_non_fake_inputs=True, pre_dispatch=options.pre_dispatch,
    )  # fmt: skip
    try:
        traced = trace(*flat_args)
    except MismatchedBranches as error:
        raise UserError(UserErrorType.DYNAMIC_CONTROL_FLOW, str(error), case_name="cond_operands") from error
    traced.graph.set_codegen(codegen)
    traced.recompile()
    return traced


# Tensors that an export reads but that are no arguments: where the program reads them, and the error for them.

_STACKS = "_source_to_user_stacks"  # upstream's name for an attribute of the graph module
_OF_MODULES = ("_parameters", "_buffers")


def note_free_tensors(graph: fx.GraphModule, inputs: Sequence[Any], flat_args: Sequence[Any]) -> None:
    """Notes on the graph the sources of tensors that would have to be arguments, with the program's lines that use them.

    inputs: what the placeholders stand for. Under `config.install_free_tensors_for_export` there are no such tensors.
    """
    stacks: dict[Source, list[str]] = {}
    given = {id(arg) for arg in flat_args}
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=True):
        is_given = id(value) in given or not isinstance(value, torch.Tensor)
        if not config.install_free_tensors_for_export and not is_given and not _is_constant(notes_of(node).source):
            stacks[notes_of(node).source] = [user.meta.get("stack_trace", "") for user in node.users]
    setattr(graph, _STACKS, stacks)


def _is_constant(source: Source) -> bool:
    """Whether it is the result of a call that is assumed to be constant, or a parameter or buffer of a module."""
    way = list(source.way())
    in_tables = any(isinstance(step, OwnAttributeSource) and step.attribute in _OF_MODULES for step in way)
    return isinstance(source, KeptSource) or in_tables


def check_signature_rewritable(graph: fx.GraphModule) -> None:
    """Raises UserError that names every tensor which an exported graph reads but its caller does not pass.

    Raises AssertionError for a graph without sources, which capture did not make.
    """
    problems: list[str] = []
    for node in graph.graph.nodes:
        if node.op != "placeholder":
            continue
        assert notes_of(node).source is not None, (
            f"input {node.name} has no source\n  expected: a graph that capture made"
        )
        assert hasattr(graph, _STACKS), (
            f"the graph has no {_STACKS}\n  expected: a graph that was captured for an export"
        )
        source: Source = notes_of(node).source
        stacks: list[str] | None = getattr(graph, _STACKS).get(source)
        if stacks is None:
            continue
        known = next((stack for stack in stacks if stack), None)
        if known is None:
            problems.append(f"{source.name}, a closed over free variable")
            continue
        more = f"(elided {len(stacks) - 1} more accesses)" if len(stacks) > 1 else ""
        problems.append(f"{source.name}, accessed at:\n{known}{more}")
    if problems:
        raise UserError(
            UserErrorType.INVALID_INPUT,
            "Cannot export model which references tensors that are neither buffers/parameters/constants nor are direct inputs.\n"
            + "\n\n".join(problems)
            + "\n  what to do: make each of them a dummy argument of the function, or read it in a function that is marked with "
            "@assume_constant_result, so that it becomes a constant",
        )
