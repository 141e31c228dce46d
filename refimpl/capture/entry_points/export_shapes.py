"""The `dynamic_shapes` of `export`: a tree of dimensions that matches the arguments.

Counterpart: torch/export/dynamic_shapes.py _process_dynamic_shapes
Differs: a dimension is recognised by its attributes (`__name__`, `min`, `max`, `root`), so those of torch.export are accepted
too.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from refimpl.capture.guards.size_history import SizeHistory
from refimpl.capture.guards.sources import Source
from refimpl.capture.public.errors import UserError, UserErrorType
from refimpl.symbolic.dynamic_shapes import DimSpec, InputPolicy

_HINTS = {"AUTO": DimSpec("DUCK"), "DYNAMIC": DimSpec("DYNAMIC"), "STATIC": DimSpec("STATIC")}


@dataclass(slots=True)
class SpecifiedSizes(SizeHistory):
    """The sizes that `dynamic_shapes` specifies. All other sizes are numbers."""

    policies: Mapping[int, InputPolicy] = field(default_factory=dict)  # by id of a tensor
    numbers: Mapping[str, DimSpec] = field(default_factory=dict)  # by the source of an integer
    # the positions of these integers among the leaves of the arguments
    positions: Mapping[str, int] = field(default_factory=dict)
    asked: dict[str, None] = field(default_factory=dict)  # sources of integers that capture has read

    def policy(self, source: Hashable, tensor: torch.Tensor) -> InputPolicy:
        """The specified policy of a tensor. If there is none, all of its sizes are static."""
        known = self.policies.get(id(tensor))
        return InputPolicy({dim: DimSpec.static() for dim in range(tensor.dim())}) if known is None else known

    def is_varying(self, source: Hashable, number: int) -> bool:
        """Integers are constants of an export, except those that were specified."""
        if isinstance(source, Source):
            self.asked[source.name] = None
        return self.promise(source) is not None

    def promise(self, source: Hashable) -> DimSpec | None:
        """The specified size of an integer; None if there is none."""
        return self.numbers.get(source.name) if isinstance(source, Source) else None


def specified_sizes(
    dynamic_shapes: Mapping[str, Any] | Sequence[Any],
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    is_strict: bool = True,
) -> SpecifiedSizes:
    """The input policies of all tensors among the arguments.

    dynamic_shapes: by name of an argument, or in the order of the signature. For a tensor a dict from dimension to Dim, int or
        None, or a sequence of these; a dimension that is left out, or None, is static. For a container the same kind of
        container.
    is_strict: refuse a program that does not work for all sizes of a dimension.

    Raises UserError where the tree does not fit the arguments.
    """
    given = signature.bind(*args, **kwargs).arguments
    if isinstance(dynamic_shapes, Mapping):
        if set(dynamic_shapes) != set(given):
            raise _misfit(f"dynamic_shapes of {sorted(dynamic_shapes)}", f"the arguments {list(given)}")
        pairs = [(name, value, dynamic_shapes[name]) for name, value in given.items()]
    else:
        if len(dynamic_shapes) != len(given):
            raise _misfit(f"dynamic_shapes of {len(dynamic_shapes)} entries", f"one for each of {list(given)}")
        pairs = [(name, value, spec) for (name, value), spec in zip(given.items(), dynamic_shapes, strict=True)]
    policies: dict[int, InputPolicy] = {}
    for name, value, spec in pairs:
        _collect(name, value, spec, policies, is_strict)
    return SpecifiedSizes(policies=policies)


def _collect(name: str, value: Any, spec: Any, policies: dict[int, InputPolicy], is_strict: bool) -> None:
    if isinstance(value, torch.Tensor):
        policies[id(value)] = _of_tensor(name, value, spec, is_strict)
    elif isinstance(value, Mapping):
        if spec is not None and (not isinstance(spec, Mapping) or set(spec) != set(value)):
            raise _misfit(f"dynamic_shapes of {name}: {spec!r}", f"a dict with the keys {list(value)}")
        for key, inner in value.items():
            _collect(f"{name}[{key!r}]", inner, None if spec is None else spec[key], policies, is_strict)
    elif isinstance(value, (list, tuple)):
        if spec is not None and (not isinstance(spec, (list, tuple)) or len(spec) != len(value)):
            raise _misfit(f"dynamic_shapes of {name}: {spec!r}", f"a sequence of {len(value)}")
        for index, inner in enumerate(value):
            _collect(f"{name}[{index}]", inner, None if spec is None else spec[index], policies, is_strict)
    elif spec is not None:
        raise _misfit(f"dynamic_shapes of {name}: {spec!r}", f"None for a {type(value).__name__}")


def _of_tensor(name: str, tensor: torch.Tensor, spec: Any, is_strict: bool) -> InputPolicy:
    dims = {dim: DimSpec.static() for dim in range(tensor.dim())}
    items: Mapping[int, Any] = {}
    if isinstance(spec, Mapping):
        items = spec
    elif isinstance(spec, (list, tuple)):
        if len(spec) != tensor.dim():
            raise _misfit(f"dynamic_shapes of {name}: {spec!r}", f"one for each of {tensor.dim()} dimensions")
        items = dict(enumerate(spec))
    elif spec is not None:
        raise _misfit(f"dynamic_shapes of {name}: {spec!r}", "a dict or sequence of dimensions, or None")
    for dim, said in items.items():
        if not isinstance(dim, int) or not 0 <= dim < tensor.dim():
            raise _misfit(f"dynamic_shapes of {name}: dimension {dim!r}", f"one below {tensor.dim()}")
        dims[dim] = _dim_spec(f"{name}.shape[{dim}]", said, tensor.shape[dim], is_strict)
    return InputPolicy(dims)


def _dim_spec(name: str, said: Any, size: int, is_strict: bool) -> DimSpec:
    if said is None:
        return DimSpec.static()
    if isinstance(said, int):
        if said != size:
            raise UserError(UserErrorType.CONSTRAINT_VIOLATION, f"{name} is said to be {said}, and is {size}")
        return DimSpec.static()
    hint = getattr(getattr(said, "type", said), "name", None)
    if isinstance(hint, str) and hint in _HINTS:
        return _HINTS[hint]
    if not hasattr(said, "min") or not hasattr(said, "__name__"):
        raise _misfit(f"{name} is said to be {said!r}", "a Dim, a number, or None")
    if not is_strict:
        return DimSpec("DUCK")
    root = getattr(said, "root", said)
    spec = DimSpec.dynamic(root.__name__, min=root.min, max=_bound(root.max), strict=True)
    if root is said:
        return spec
    offset = said.fn(0)
    return spec.times(said.fn(1) - offset).plus(offset)


def _bound(limit: Any) -> int | None:
    """The bound as an int; None for a value that means there is no bound."""
    return limit if type(limit) is int and limit < 2**62 else None


def _misfit(seen: str, expected: str) -> UserError:
    return UserError(UserErrorType.INVALID_INPUT, f"{seen}\n  expected: {expected}")
