"""Draft export: exports programs that `export` refuses, and reports the assumptions it made.

Counterpart: torch/export/_draft_export.py draft_export
Differs: if constraints on sizes are violated, the export is tried again without them, and the report has the violations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from refimpl._torch import exporting_flags, hints_for_kernels, is_opaque_object, without_fake_mode
from refimpl.aot.attribute_assignment import _detect_attribute_assignment
from refimpl.capture.entry_points.export_signature import check_leaves
from refimpl.capture.public.errors import UserError, UserErrorType
from refimpl.capture.public.running import capturing
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.caller_fakes import with_hints_as_sizes
from refimpl.export.draft_report import DraftExportReport, FailureReport, FailureType
from refimpl.export.draft_values import DraftFailuresState, DraftFakeMode, DraftShapeEnv, give_values
from refimpl.export.entry_points import check_arguments, exported_program
from refimpl.export.exported_program import ExportedProgram
from refimpl.export.non_strict import non_strict_program
from refimpl.export.outside_containers import containers_kept
from refimpl.export.shapes.additional_inputs import found_shapes, verify_additional, without_wrappers
from refimpl.export.shapes.policies import InputLeaf, argument_names, input_leaves, signature_of
from refimpl.symbolic.dynamic_shapes import DimSpec


def draft_export(
    mod: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    preserve_module_call_signature: tuple[str, ...] = (),
    strict: bool = False,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> ExportedProgram:
    """`export` for programs that it refuses. `report` of the result lists the assumptions:

    * a data-dependent branch is taken as for the example inputs, and the graph asserts its condition;
    * the results of a custom operator with a missing or wrong fake kernel are those of its real kernel;
    * violated constraints on sizes are ignored.

    The program also runs on real tensors, on copies of its state and inputs, with the side effects of its operators.
    Raises the errors of `export` for invalid arguments, and UnsupportedByRefimpl for `strict=True`.
    """
    if strict:
        raise UnsupportedByRefimpl(
            seen="draft_export with strict=True", supported="strict=False", do="leave strict out"
        )
    check_arguments(mod, args, kwargs, preserve_module_call_signature, strict=False)
    kwargs = dict(kwargs or {})
    examples = without_wrappers((args, kwargs))
    additional = dynamic_shapes
    dynamic_shapes = found_shapes(dynamic_shapes, mod, args, kwargs)
    args, kwargs = with_hints_as_sizes(*without_wrappers((args, kwargs)))
    signature = signature_of(mod)
    leaves = input_leaves(signature, args, kwargs, dynamic_shapes)
    check_leaves([v for leaf in leaves if not is_opaque_object(v := leaf.value)], UserErrorType.INVALID_INPUT, "inputs")
    names = argument_names(signature, args, kwargs)
    earlier: list[FailureReport] = []
    while True:
        noted = DraftFailuresState()
        env = DraftShapeEnv(
            noted,
            duck_shape=False,
            names_symbols_by_source=True,
            prefer_deferred_runtime_asserts_over_guards=prefer_deferred_runtime_asserts_over_guards,
        )
        try:
            exported = _attempt(
                mod, args, kwargs, leaves, names, DraftFakeMode(env, noted), preserve_module_call_signature, examples
            )
            break
        except UserError as error:
            if error.error_type is not UserErrorType.CONSTRAINT_VIOLATION or earlier:
                raise
            earlier.append(_violated(error, dynamic_shapes))
            leaves = _without_promises(leaves)
    exported.report = DraftExportReport(failures=(*earlier, *noted.failures), op_profiles=noted.profiles)
    verify_additional(additional, exported)
    return exported


def _violated(error: UserError, dynamic_shapes: Any) -> FailureReport:
    return FailureReport(
        failure_type=FailureType.GUARD_ADDED,
        place="dynamic_shapes",
        data={"reason": str(error), "dynamic_shapes": dynamic_shapes},
    )


def _attempt(
    mod: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[InputLeaf],
    names: Sequence[str],
    fake_mode: DraftFakeMode,
    preserved: tuple[str, ...],
    examples: tuple[tuple[Any, ...], dict[str, Any]],
) -> ExportedProgram:
    """The exported program, for which the mode knows the values of parameters, buffers and inputs."""
    with without_fake_mode(), capturing(), exporting_flags(), hints_for_kernels(), containers_kept(mod):
        program = non_strict_program(mod, args, kwargs, leaves, names, fake_mode=fake_mode)
        named = {
            **dict(mod.named_parameters(remove_duplicate=False)),
            **dict(mod.named_buffers(remove_duplicate=False)),
        }
        fakes = {**program.parameters, **program.buffers}
        give_values(list(fakes.values()), [named[name] for name in fakes])
        give_values(program.inputs, [leaf.value for leaf in leaves])
        state = (*program.parameters.values(), *program.buffers.values())
        with _detect_attribute_assignment(mod, state):
            return exported_program(replace(program, preserved=preserved), examples)


def _without_promises(leaves: Sequence[InputLeaf]) -> list[InputLeaf]:
    """The leaves with dynamic sizes that may be specialised. They keep their bounds, unless the example is outside of them."""
    return [
        replace(
            leaf,
            policy=None
            if leaf.policy is None
            else replace(
                leaf.policy,
                dims={dim: _relaxed(spec, leaf.value.shape[dim]) for dim, spec in leaf.policy.dims.items()},
            ),
            number=None if leaf.number is None else _relaxed(leaf.number, leaf.value),
        )
        for leaf in leaves
    ]


def _relaxed(spec: DimSpec, size: int) -> DimSpec:
    if spec.policy != "DYNAMIC":
        return spec
    low, high = (None if root is None else spec.scale * root + spec.offset for root in (spec.min, spec.max))
    if (low is not None and size < low) or (high is not None and size > high):
        low = high = None
    return DimSpec("OWN", low, high)
