"""Records of the submodules of an exported program, with the signatures of their calls.

Counterpart: torch/export/exported_program.py ModuleCallSignature, ModuleCallEntry; _make_module_call_graph of
torch/export/_trace.py
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from refimpl._torch import pytree
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.graph_signature import ArgumentSpec


@dataclass
class ModuleCallSignature:
    """The signature of a module call: its inputs and outputs in the graph, and their pytree specs."""

    inputs: list[ArgumentSpec]
    outputs: list[ArgumentSpec]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    forward_arg_names: list[str] | None = None


@dataclass
class ModuleCallEntry:
    """A module by its full name. Only the root and preserved submodules have a signature."""

    fqn: str
    signature: ModuleCallSignature | None = field(default=None)


class CallSpec(NamedTuple):
    """The pytree specs of (args, kwargs) and of the result."""

    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec


def module_call_graph(
    root: torch.nn.Module,
    in_spec: pytree.TreeSpec,
    out_spec: pytree.TreeSpec,
    argument_names: Sequence[str],
    calls: Mapping[str, ModuleCallSignature],
) -> list[ModuleCallEntry]:
    """One entry for every name of every module, the root first, and for every further preserved call."""
    names = [name for name, _ in root.named_modules(remove_duplicate=False)]
    assert names[0] == "", f"the first module is {names[0]!r}, not the root"
    whole = ModuleCallSignature(
        inputs=[], outputs=[], in_spec=in_spec, out_spec=out_spec, forward_arg_names=list(argument_names)
    )
    again = [call for call in calls if "@" in call]
    entries = [ModuleCallEntry(fqn=name, signature=calls.get(name)) for name in (*names, *again)]
    entries[0].signature = whole
    return entries


def without_submodule_signatures(entries: Sequence[ModuleCallEntry]) -> list[ModuleCallEntry]:
    """The entries for a graph made from another one, in which nodes may have other names."""
    return [entry if entry.fqn == "" else ModuleCallEntry(fqn=entry.fqn) for entry in entries]


def check_entries(entries: Sequence[ModuleCallEntry], replaced: Collection[str]) -> None:
    """Raises UnsupportedByRefimpl if the preserved call of a submodule takes or returns an input that the graph no longer has."""
    for entry in entries:
        values = [] if entry.signature is None else [*entry.signature.inputs, *entry.signature.outputs]
        missing = [value.name for value in values if value.name in replaced]
        if missing:
            raise UnsupportedByRefimpl(
                seen=f"the preserved call of {entry.fqn!r} with {missing[0]}, a wrapper subclass, in a decomposed program",
                supported="preserved calls with tensors that are no parameters or buffers of wrapper subclasses",
                do="export without preserve_module_call_signature",
            )
