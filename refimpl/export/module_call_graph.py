"""Which submodules an exported program was made of, and how it is called.

Counterpart: torch/export/exported_program.py ModuleCallSignature, ModuleCallEntry; _make_module_call_graph of
torch/export/_trace.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from refimpl._torch import pytree
from refimpl.export.graph_signature import ArgumentSpec


@dataclass
class ModuleCallSignature:
    """How a module is called: what its inputs and outputs are in the graph, and their containers."""

    inputs: list[ArgumentSpec]
    outputs: list[ArgumentSpec]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    forward_arg_names: list[str] | None = None


@dataclass
class ModuleCallEntry:
    """A module by its full name; the signature only of the root, and where it was asked for."""

    fqn: str
    signature: ModuleCallSignature | None = field(default=None)


class CallSpec(NamedTuple):
    """Containers of (args, kwargs), and of the result."""

    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec


def module_call_graph(
    root: torch.nn.Module,
    in_spec: pytree.TreeSpec,
    out_spec: pytree.TreeSpec,
    argument_names: Sequence[str],
    calls: Mapping[str, ModuleCallSignature],
) -> list[ModuleCallEntry]:
    """One entry for every name of every module, the root first, and for every further call that was to be kept."""
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
    """The entries for a graph that was made of another, in which no node need be what its name says."""
    return [entry if entry.fqn == "" else ModuleCallEntry(fqn=entry.fqn) for entry in entries]
