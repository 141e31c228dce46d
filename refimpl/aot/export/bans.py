"""Checks that raise an ExportError for a program that a graph without a runtime wrapper cannot represent.

Counterpart: the checks of torch/_functorch/aot_autograd.py create_aot_state under is_export, and of AOTDedupeWrapper and
AOTSyntheticBaseWrapper
Differs: errors about an input name it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from refimpl._torch import is_traceable_wrapper_subclass
from refimpl.aot.analysis.inputs import alias_groups, duplicate_groups
from refimpl.aot.analysis.metadata import InputMutation
from refimpl.aot.export_errors import (
    AliasedMutatedInput,
    DifferentiableInputMutation,
    DuplicatedMutatedInput,
    InputMetadataMutation,
    RandomStateInExport,
    SubclassInExport,
    TangentWanted,
    WrittenConstant,
)
from refimpl.aot.joint.trace import TracedProgram
from refimpl.aot.options import current_settings
from refimpl.functionalize.aliases import AliasMap


def check_exportable(
    traced: TracedProgram, leaves: Sequence[Any], names: Sequence[str], *, is_joint: bool, has_tangents: bool
) -> None:
    """Raises an ExportError if the graph alone cannot reproduce the program's effects, such as `x.t_()` on an input."""
    analysis = traced.analysis
    mutations = [(i, info.mutation) for i, info in enumerate(analysis.inputs) if info.mutation is not None]
    for position, mutation in mutations:
        change = _geometry_change(mutation)
        if change:
            raise InputMetadataMutation(names[position], change)
    for position, mutation in mutations:
        before = analysis.inputs[position].requires_grad
        if is_joint and (before or mutation.requires_grad):
            raise DifferentiableInputMutation(names[position], required_before=before)
    written = {position for position, mutation in mutations if mutation.writes_data}
    for group in duplicate_groups(leaves):
        if written & set(group):
            raise DuplicatedMutatedInput([names[i] for i in group])
    for group in alias_groups(leaves):
        if written & set(group):
            raise AliasedMutatedInput([names[i] for i in group])
    _refuse_written_constants(traced.graph_module)
    for _, error in analysis.refused:
        raise error
    if is_joint and not has_tangents and len(analysis.differentiable) > 1:
        raise TangentWanted(len(analysis.differentiable))


def _geometry_change(mutation: InputMutation) -> str:
    if mutation.sets_storage:
        return "views other memory than before"
    if mutation.resizes:
        return "is resized"
    if mutation.geometry is not None:
        return f"has shape {tuple(mutation.geometry.size)} and strides {tuple(mutation.geometry.stride)} afterwards"
    if not mutation.writes_data:
        return f"has requires_grad={mutation.requires_grad} afterwards"
    return ""


def _refuse_written_constants(graph_module: torch.fx.GraphModule) -> None:
    constants = graph_module.graph.find_nodes(op="get_attr")
    if not constants:
        return
    aliases = AliasMap(graph_module.graph)
    for node in constants:
        if aliases.writes_to(node):
            raise WrittenConstant(str(node.target))


def refuse_subclass(value: object, name: str) -> None:
    """Raises SubclassInExport for a traceable wrapper subclass."""
    if isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value):
        raise SubclassInExport(name, type(value))


def refuse_random_state() -> None:
    """Raises RandomStateInExport if the configuration asks for functional random ops (`functionalize_rng_ops`)."""
    if current_settings().functionalize_rng_ops:
        raise RandomStateInExport
