"""Tensors that an export reads and is not given: where the program reads them, and an error that says it.

Counterpart: torch/_dynamo/eval_frame.py check_signature_rewritable; torch/_dynamo/output_graph.py source_to_user_stacks
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from refimpl.capture.config import config
from refimpl.capture.public.errors import UserError, UserErrorType
from refimpl.capture.sources import KeptSource, OwnAttributeSource, Source

_STACKS = "_source_to_user_stacks"  # upstream's name, of a graph module
_OF_MODULES = ("_parameters", "_buffers")


def note_free_tensors(graph: fx.GraphModule, inputs: Sequence[Any], flat_args: Sequence[Any]) -> None:
    """Notes on the graph the sources of tensors that have to be arguments and are none, each with the places that use it.

    inputs: what the placeholders stand for. Under `config.install_free_tensors_for_export` there are no such tensors.
    """
    stacks: dict[Source, list[str]] = {}
    given = {id(arg) for arg in flat_args}
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=True):
        is_given = id(value) in given or not isinstance(value, torch.Tensor)
        if not config.install_free_tensors_for_export and not is_given and not _is_constant(node.meta["source"]):
            stacks[node.meta["source"]] = [user.meta.get("stack_trace", "") for user in node.users]
    setattr(graph, _STACKS, stacks)


def _is_constant(source: Source) -> bool:
    """Whether it is the result of a call that is assumed to be constant, or a parameter or buffer of a module."""
    way = list(source.way())
    in_tables = any(isinstance(step, OwnAttributeSource) and step.attribute in _OF_MODULES for step in way)
    return isinstance(source, KeptSource) or in_tables


def check_signature_rewritable(graph: fx.GraphModule) -> None:
    """Raises UserError that names every tensor which an exported graph would need and its caller does not give.

    Raises AssertionError for a graph that is none of capture's: its inputs say where they come from.
    """
    problems: list[str] = []
    for node in graph.graph.nodes:
        if node.op != "placeholder":
            continue
        assert "source" in node.meta, f"input {node.name} has no source\n  expected: a graph that capture made"
        assert hasattr(graph, _STACKS), (
            f"the graph has no {_STACKS}\n  expected: a graph that was captured for an export"
        )
        source: Source = node.meta["source"]
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
