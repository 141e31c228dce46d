"""Specifications of input dimensions: static, dynamic, within bounds, equal to another dimension or derived from it.

Counterpart: DimDynamic, StatelessSymbolicContext, StrictMinMaxConstraint of torch/fx/experimental/symbolic_shapes.py;
torch/export/dynamic_shapes.py Dim
Differs: one `DimSpec` per dimension holds all of it. refimpl.symbolic.constraints checks the traced program against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

Policy = Literal["STATIC", "DUCK", "OWN", "DYNAMIC", "UNBACKED"]


@dataclass(frozen=True, slots=True)
class DimSpec:
    """One dimension.

    policy: STATIC is an integer. DUCK shares a symbol with equal sizes. OWN has its own symbol, which may be specialised;
        DYNAMIC has a symbol that must not be. UNBACKED has an unbacked symbol, so that no control flow can depend on it.
    min, max: inclusive bounds that the user promises for all inputs; for a derived dimension, bounds of its root.
    name: dimensions with the same name have the same size.
    scale, offset: the size is `scale * name + offset`.
    strict: the program must work for every size within the bounds: a guard that excludes one is an error. If False, only
        specialisation to one number is an error.
    """

    policy: Policy = "DUCK"
    min: int | None = None
    max: int | None = None
    name: str | None = None
    scale: int = 1
    offset: int = 0
    strict: bool = False

    @staticmethod
    def static() -> DimSpec:
        """A static size: the one of the example input."""
        return _STATIC

    @staticmethod
    def dynamic(
        name: str | None = None,
        *,
        min: int | None = None,
        max: int | None = None,
        strict: bool | None = None,
    ) -> DimSpec:
        """A dynamic size within bounds. By default strict if it has a name or bounds."""
        is_strict = name is not None or min is not None or max is not None
        return DimSpec("DYNAMIC", min, max, name, strict=is_strict if strict is None else strict)

    @staticmethod
    def unbacked() -> DimSpec:
        """An unbacked size."""
        return DimSpec("UNBACKED")

    def times(self, scale: int) -> DimSpec:
        """The dimension whose size is `scale` times this named one."""
        return self._derived(self.scale * scale, self.offset * scale)

    def plus(self, offset: int) -> DimSpec:
        """The dimension whose size is this named one plus a number."""
        return self._derived(self.scale, self.offset + offset)

    def _derived(self, scale: int, offset: int) -> DimSpec:
        assert self.name is not None, "expected a dimension with a name to derive another one from"
        assert scale > 0, f"{scale} * {self.name}: expected a positive multiple of a dimension"
        return DimSpec("DYNAMIC", self.min, self.max, self.name, scale, offset, self.strict)

    @property
    def is_plainly_static(self) -> bool:
        """Whether the size is that of the example input, whatever it is."""
        return self == _STATIC

    @property
    def is_derived(self) -> bool:
        """Whether the size is a function of the named one other than itself."""
        return self.scale != 1 or self.offset != 0

    def __str__(self) -> str:
        if self.name is None:
            return self.policy.lower()
        scaled = self.name if self.scale == 1 else f"{self.scale}*{self.name}"
        return scaled if not self.offset else f"{scaled} {'-' if self.offset < 0 else '+'} {abs(self.offset)}"


_STATIC = DimSpec("STATIC")


@dataclass(frozen=True, slots=True)
class InputPolicy:
    """The dimensions of an input; those left out have the default policy: None for that of the shape env."""

    dims: Mapping[int, DimSpec] = field(default_factory=dict)
    default: Policy | None = None


ALL_STATIC = InputPolicy(default="STATIC")


def policy_of(spec: Mapping[int, DimSpec] | Sequence[DimSpec | None] | None) -> InputPolicy | None:
    """Convert a mapping from dimension to DimSpec, or a sequence of DimSpec and None, to an InputPolicy."""
    if spec is None:
        return None
    items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
    return InputPolicy({d: s for d, s in items if s is not None})


def marked_policy(tensor: torch.Tensor) -> InputPolicy | None:
    """The policy from torch's mark_dynamic, mark_static and mark_unbacked on a tensor; None without marks."""
    marks: dict[int, DimSpec] = {}
    for d in getattr(tensor, "_dynamo_weak_dynamic_indices", ()):
        marks[d] = DimSpec("DYNAMIC")
    for d in getattr(tensor, "_dynamo_dynamic_indices", ()):
        marks[d] = DimSpec("DYNAMIC")
    for bounds in getattr(tensor, "_dynamo_dynamic_range", ()):
        marks[bounds.dim] = DimSpec("DYNAMIC", bounds.min, bounds.max)
    for d in getattr(tensor, "_dynamo_unbacked_indices", ()):
        marks[d] = DimSpec("UNBACKED")
    for d in getattr(tensor, "_dynamo_static_indices", ()):
        marks[d] = DimSpec("STATIC")
    return InputPolicy(marks) if marks else None


def dim_spec(policy: InputPolicy | None, dim: int, default: Policy) -> DimSpec:
    """The policy of one dimension."""
    if policy is None:
        return DimSpec(default)
    found = policy.dims.get(dim)
    return DimSpec(policy.default or default) if found is None else found
