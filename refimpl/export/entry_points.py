"""`export`, the entry point: a module as one graph.

Counterpart: torch/export/__init__.py export; torch/export/_trace.py _export, _export_for_training;
  torch/export/_trace.py _get_params_buffers_to_node_meta; torch/export/_trace.py ExportDynamoConfig,
  DEFAULT_EXPORT_DYNAMO_CONFIG
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from refimpl._torch import exporting_flags, hints_for_kernels, is_opaque_object, pytree, without_fake_mode
from refimpl.aot.attribute_assignment import _detect_attribute_assignment
from refimpl.capture.config import ConfigPatch, config
from refimpl.capture.entry_points.export_signature import check_leaves
from refimpl.capture.public.errors import UserErrorType
from refimpl.capture.public.running import capturing
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.caller_fakes import with_hints_as_sizes
from refimpl.export.decomposition_table import composite_decompositions
from refimpl.export.errors import invalid_input, translated
from refimpl.export.exported_program import ExportedProgram
from refimpl.export.graph_signature import ExportGraphSignature, InputKind
from refimpl.export.lifted_graph import lifted
from refimpl.export.module_call_graph import module_call_graph
from refimpl.export.non_strict import non_strict_program
from refimpl.export.outside_containers import containers_kept
from refimpl.export.placeholder_names import name_nested_placeholders
from refimpl.export.shapes.additional_inputs import found_shapes, verify_additional, without_wrappers
from refimpl.export.shapes.policies import argument_names, input_leaves, signature_of
from refimpl.export.shapes.range_constraints import call_conditions, check_promises, range_constraints
from refimpl.export.statistics import logged
from refimpl.export.strict.export import strict_program
from refimpl.export.strict.signatures import take_signatures
from refimpl.export.traced_program import FakeProgram, traced
from refimpl.export.verifier import TrainingIRVerifier, verify_metadata, verify_placeholder_names
from refimpl.trace.metadata import copied_meta

# Which graph the running export is to give: one above autograd, or the functional one below it. A flag of events only.
_DISPATCH: ContextVar[str] = ContextVar("_DISPATCH", default="pre_dispatch")


def export(
    mod: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    preserve_module_call_signature: tuple[str, ...] = (),
    prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> ExportedProgram:
    """The ExportedProgram of `mod(*args, **kwargs)`, in the mode (training or not) the module is in.

    args, kwargs: example inputs: tensors and numbers, in pytree containers. Numbers and strings are constants: calls with other
        ones are refused.
    dynamic_shapes: the dynamic sizes, by argument: for a tensor a dict from dimension to `Dim`, int or None, or a list; for a
        container the same container; None if all are static. Or a ShapesCollection.
    strict: capture bytecode instead of running Python. Side effects on Python objects are then seen, and refused or replayed.
    preserve_module_call_signature: names of submodules whose inputs and outputs `module_call_graph` has.
    prefer_deferred_runtime_asserts_over_guards: conditions on sizes become runtime asserts in the graph.

    The graph is pre-dispatch (above autograd) and has in-place ops; `run_decompositions` makes it functional.

    Raises ValueError if `mod` is no module; UserError for arguments that do not match each other, unsupported types of inputs
    and outputs, violated constraints on sizes (with suggested fixes), and data-dependent control flow; UnsupportedByRefimpl for
    kinds of tensors without symbolic sizes; with `strict` the errors of capture for a graph break.
    """
    flags = frozenset({"strict" if strict else "non_strict", _DISPATCH.get()})
    with logged(mod, flags) as done, DEFAULT_EXPORT_DYNAMO_CONFIG.patched():
        program = _exported(
            mod, args, kwargs, dynamic_shapes, preserve_module_call_signature, strict=strict,
            prefer_deferred_runtime_asserts_over_guards=prefer_deferred_runtime_asserts_over_guards,
        )  # fmt: skip
        done(program)
    return program


def _exported(
    mod: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    preserve_module_call_signature: tuple[str, ...],
    *,
    strict: bool,
    prefer_deferred_runtime_asserts_over_guards: bool,
) -> ExportedProgram:
    check_arguments(mod, args, kwargs, preserve_module_call_signature, strict=strict)
    args, kwargs = tuple(args), dict(kwargs or {})  # calls pass a tuple, also where the examples are a named one
    examples = without_wrappers((args, kwargs))
    additional = dynamic_shapes
    dynamic_shapes = found_shapes(dynamic_shapes, mod, args, kwargs)
    args, kwargs = with_hints_as_sizes(*without_wrappers((args, kwargs)))
    signature = signature_of(mod)
    leaves = input_leaves(signature, args, kwargs, dynamic_shapes)
    check_leaves([v for leaf in leaves if not is_opaque_object(v := leaf.value)], UserErrorType.INVALID_INPUT, "inputs")
    first_half = strict_program if strict else non_strict_program
    with without_fake_mode(), capturing(), exporting_flags(), hints_for_kernels(), containers_kept(mod):
        try:
            program = first_half(
                mod, args, kwargs, leaves, argument_names(signature, args, kwargs),
                prefer_deferred_runtime_asserts_over_guards=prefer_deferred_runtime_asserts_over_guards,
            )  # fmt: skip
        except RuntimeError as error:
            known = translated(error)
            if known is error:
                raise
            raise known from error
        preserved = () if strict else preserve_module_call_signature
        with _detect_attribute_assignment(mod, (*program.parameters.values(), *program.buffers.values())):
            made = exported_program(replace(program, preserved=preserved), examples)
    if strict and preserve_module_call_signature:
        non_strict = export(
            mod, *examples, dynamic_shapes=dynamic_shapes, preserve_module_call_signature=preserve_module_call_signature,
            prefer_deferred_runtime_asserts_over_guards=prefer_deferred_runtime_asserts_over_guards,
        )  # fmt: skip
        take_signatures(made, non_strict)
    verify_additional(additional, made)
    return made


def _export_for_training(
    mod: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    strict: bool = True,
    preserve_module_call_signature: tuple[str, ...] = (),
    prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> ExportedProgram:
    """`export` by the name, and with the default, that upstream's own callers use."""
    return export(
        mod, args, kwargs, dynamic_shapes=dynamic_shapes, strict=strict,
        preserve_module_call_signature=preserve_module_call_signature,
        prefer_deferred_runtime_asserts_over_guards=prefer_deferred_runtime_asserts_over_guards,
    )  # fmt: skip


def _export(
    mod: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    strict: bool = True,
    preserve_module_call_signature: tuple[str, ...] = (),
    pre_dispatch: bool = False,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> ExportedProgram:
    """With `pre_dispatch` the result of `export`; else its functional graph, with only composite operators decomposed."""
    token = _DISPATCH.set("pre_dispatch" if pre_dispatch else "aot_dispatch")
    try:
        program = _export_for_training(
            mod, args, kwargs, dynamic_shapes, strict=strict,
            preserve_module_call_signature=preserve_module_call_signature,
            prefer_deferred_runtime_asserts_over_guards=prefer_deferred_runtime_asserts_over_guards,
        )  # fmt: skip
    finally:
        _DISPATCH.reset(token)
    return program if pre_dispatch else program.run_decompositions(composite_decompositions())


def check_arguments(mod: Any, args: Any, kwargs: Any, preserved: tuple[str, ...], *, strict: bool) -> None:
    """Raises ValueError if `mod` is no module, UserError for arguments of wrong types and unknown submodules,
    UnsupportedByRefimpl for backward hooks of modules."""
    if not isinstance(mod, torch.nn.Module):
        raise ValueError(f"Expected `mod` to be an instance of `torch.nn.Module`, got {type(mod)}.")
    if isinstance(mod, torch.jit.ScriptModule):
        raise ValueError(
            "Exporting a ScriptModule is not supported\n"
            "  what to do: export the module that it was made from, or call TS2EPConverter(mod, args, kwargs).convert()"
        )
    if not isinstance(args, tuple):
        raise invalid_input(f"Expecting `args` to be a tuple of example positional inputs, got {type(args)}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise invalid_input(f"Expecting `kwargs` to be a dict of example keyword inputs, got {type(kwargs)}")
    known = {name for name, _ in mod.named_modules(remove_duplicate=False)}
    missing = [name for name in preserved if name not in known]
    if missing:
        raise invalid_input(f"preserve_module_call_signature names {missing}\n  expected: names of submodules")
    _check_hooks(mod, (args, kwargs))
    _refuse_nested(mod, args, kwargs)


def _refuse_nested(mod: torch.nn.Module, args: Any, kwargs: Any) -> None:
    """Raises UnsupportedByRefimpl for nested tensors of the jagged layout among the inputs and the state."""
    leaves = [("an input", leaf) for leaf in pytree.tree_leaves((args, kwargs))]
    state = [*mod.named_parameters(), *mod.named_buffers()]
    for what, value in [*leaves, *state]:
        if isinstance(value, torch.Tensor) and value.is_nested:
            raise UnsupportedByRefimpl(
                seen=f"a nested tensor of layout {value.layout} as {what}",
                supported="export of programs with dense tensors, and with wrapper subclasses whose sizes are integers",
                do="pass its values and offsets, or compile the program",
            )


def _check_hooks(mod: torch.nn.Module, arguments: Any) -> None:
    """Refuse backward hooks of modules: no graph has them, so gradients would be silently wrong."""
    hooked = [name for name, part in mod.named_modules() if part._backward_hooks or part._backward_pre_hooks]
    tensors = (*mod.parameters(), *(leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)))
    if hooked and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        where = ", ".join(repr(name) for name in hooked) if hooked != [""] else "the module itself"
        raise UnsupportedByRefimpl(
            seen=f"backward hooks of modules ({where}) while gradients are enabled",
            supported="modules without backward hooks",
            do="remove the hooks, or export under torch.no_grad()",
        )


def exported_program(program: FakeProgram, examples: tuple[tuple[Any, ...], dict[str, Any]]) -> ExportedProgram:
    """The second half of both modes: trace, check constraints, lift state to inputs, make the signature, verify."""
    graph = traced(program)
    check_promises(program.shape_env)
    made = lifted(program, graph)
    name_nested_placeholders(made.graph_module)
    if isinstance(program.root, fx.GraphModule) and "custom" in program.root.meta:
        made.graph_module.meta["custom"] = program.root.meta["custom"]
    note_users(made.graph_module, made.signature)
    verify_metadata(made.graph_module)
    verify_placeholder_names(made.graph_module, made.signature)
    root = program.root
    state = _state_of(root)
    return ExportedProgram(
        root=made.graph_module,
        graph=made.graph_module.graph,
        graph_signature=made.signature,
        state_dict=state,
        range_constraints=range_constraints(program.shape_env, program.inputs, made.graph_module.graph.nodes),
        module_call_graph=module_call_graph(root, program.in_spec, graph.out_spec, program.argument_names, made.calls),
        example_inputs=examples,
        constants=made.constants,
        verifiers=[TrainingIRVerifier],
        guards=call_conditions(program.shape_env),
        input_names=[f"{leaf.argument}{leaf.path}" for leaf in program.leaves],
    )


def _state_of(root: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The module's state by the names that the graph reads it under: hooks of `state_dict` may rename it, and do not run."""
    hooks = [
        hooks
        for module in root.modules()
        for hooks in (module._state_dict_hooks, module._state_dict_pre_hooks)
        if hooks
    ]
    kept = [dict(each) for each in hooks]
    try:
        for each in hooks:
            each.clear()
        state = root.state_dict(keep_vars=True)
    finally:
        for each, before in zip(hooks, kept, strict=True):
            each.update(before)
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def register_dataclass(cls: type[Any], *, serialized_type_name: str | None = None) -> None:
    """Register a dataclass as a pytree container, with its fields as children."""
    pytree.register_dataclass(cls, serialized_type_name=serialized_type_name)


# Placeholders of parameters and buffers have some metadata of the first node that uses them.

_USER_META_KEYS = ("source_fn_stack", "torch_fn", "quantization_tag")


def note_users(graph_module: fx.GraphModule, signature: ExportGraphSignature) -> None:
    """Copy metadata of its first user to the placeholder of every parameter and buffer."""
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    for spec, node in zip(signature.input_specs, placeholders, strict=True):
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER) or not node.users:
            continue
        user = next(iter(node.users))
        node.meta = {**copied_meta(user, *_USER_META_KEYS), **node.meta}


# Export's settings for capture. Calls of logging functions are left out of the program. Upstream moves them behind the graph,
# where an exported program loses them as well.


@dataclass
class ExportDynamoConfig:
    """allow_rnn: accepted; recurrent modules are captured like others. reorderable_logging_functions: functions whose calls
    are no graph breaks."""

    allow_rnn: bool = True
    reorderable_logging_functions: set[Callable[..., Any]] = field(default_factory=set)

    def patched(self) -> ConfigPatch:
        """A context in which capture has these settings."""
        return config.patch(
            allow_rnn=self.allow_rnn,
            ignore_logging_functions=config.ignore_logging_functions | self.reorderable_logging_functions,
        )


DEFAULT_EXPORT_DYNAMO_CONFIG = ExportDynamoConfig(
    reorderable_logging_functions={
        logging.critical,
        logging.debug,
        logging.error,
        logging.exception,
        logging.info,
        logging.log,
        logging.warning,
        print,
        warnings.warn,
    }
)
