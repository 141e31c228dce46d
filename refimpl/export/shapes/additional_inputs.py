"""AdditionalInputs: `dynamic_shapes` found by comparing several example inputs.

Counterpart: torch/export/dynamic_shapes.py AdditionalInputs, _IntWrapper
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from refimpl._torch import pytree
from refimpl.errors import BadParameter
from refimpl.export.shapes.dims import Dim
from refimpl.export.shapes.policies import map_arguments, signature_of
from refimpl.export.unlift import arranged, with_plain_sizes

Example = tuple[tuple[Any, ...], dict[str, Any]]


class Checked(Protocol):
    """The part of ExportedProgram that `verify` uses."""

    @property
    def call_spec(self) -> Any: ...
    @property
    def module_call_graph(self) -> Any: ...
    def input_contract(self) -> Any: ...


class AdditionalInputs:
    """Example inputs besides those that the program is exported with. A size or integer that differs between them is dynamic."""

    def __init__(self) -> None:
        self._examples: list[Example] = []

    def add(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        """Add an example. Raises AssertionError if `args` is no tuple or `kwargs` no dict."""
        if type(args) is not tuple:
            raise BadParameter(seen=f"Representative args {args}", expected="a tuple")
        if kwargs is not None and type(kwargs) is not dict:
            raise BadParameter(seen=f"Representative kwargs {kwargs}", expected="None or a dict")
        self._examples.append((args, kwargs or {}))

    def dynamic_shapes(self, m: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Any:
        """The `dynamic_shapes` argument for `export`. Raises ValueError if the inputs differ in more than sizes and integers."""
        signature = signature_of(m)
        examples = [(args, dict(kwargs or {})), *self._examples]
        first, *others = [dict(signature.bind(*a, **k).arguments) for a, k in examples]
        return map_arguments(_merged, first, *others)

    def verify(self, ep: Checked) -> None:
        """Raises InputMismatch, a RuntimeError, if the exported program does not take one of the examples. `export` calls it."""
        contract = ep.input_contract()
        whole = ep.module_call_graph[0].signature
        names = (whole.forward_arg_names or ()) if whole is not None else ()
        for args, kwargs in self._examples:
            contract.check(pytree.tree_leaves(arranged(args, kwargs, ep.call_spec.in_spec, names)))


def found_shapes(given: Any, mod: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The `dynamic_shapes` argument without an AdditionalInputs or a ShapesCollection, ours or torch's."""
    return given.dynamic_shapes(mod, args, kwargs) if hasattr(given, "dynamic_shapes") else given


def verify_additional(given: Any, program: Checked) -> None:
    """Check that the program takes the examples, if `dynamic_shapes` was an AdditionalInputs. Raises InputMismatch."""
    if isinstance(given, AdditionalInputs):
        given.verify(program)
    elif hasattr(given, "verify"):  # torch's
        ours = AdditionalInputs()
        for args, kwargs in given._examples:
            ours.add(args, kwargs)
        ours.verify(program)


def _merged(value: Any, *others: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return _merged_number(value, *others)
    if not all(isinstance(other, torch.Tensor) and other.dim() == value.dim() for other in others):
        raise ValueError(f"inputs of differing types or numbers of dimensions cannot be dynamic: {(value, *others)}")
    return tuple(_merged_number(*sizes) for sizes in zip(value.shape, *(other.shape for other in others), strict=True))


def _merged_number(value: Any, *others: Any) -> Any:
    if any(type(other) is not type(value) for other in others):
        raise ValueError(
            "The following inputs were found to have differing types, so they cannot be marked as dynamic: "
            f"{(value, *others)}"
        )
    if all(other == value for other in others):
        return None
    if type(value) is int:
        return Dim.DYNAMIC
    raise ValueError(
        "The following inputs were found to have differing values, but they are no sizes or integers, "
        "so they cannot be marked as dynamic: "
        f"{(value, *others)}"
    )


@dataclass(eq=False)
class IntWrapper:
    """An integer with an identity, so that a ShapesCollection can have a dynamic shape for it."""

    val: int
    dynamism: Any = None


def is_int_wrapper(value: Any) -> bool:
    """Whether this is an IntWrapper, or torch's class of that kind."""
    return isinstance(value, IntWrapper) or type(value).__name__ == "_IntWrapper"


def without_wrappers(arguments: Any) -> Any:
    """The arguments with integers for their wrappers, and tuples for sizes."""
    return with_plain_sizes(pytree.tree_map(lambda leaf: leaf.val if is_int_wrapper(leaf) else leaf, arguments))
