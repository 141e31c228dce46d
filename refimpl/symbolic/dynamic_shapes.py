"""What a user says about the sizes of inputs: fixed, free, within bounds, derived from another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Policy = Literal["STATIC", "DUCK", "DYNAMIC", "UNBACKED"]


@dataclass(frozen=True, slots=True)
class DimSpec:
    """One dimension. STATIC: a number. DUCK: shares a symbol with equal sizes. DYNAMIC: a symbol of its own."""

    policy: Policy = "DUCK"
    min: int | None = None
    max: int | None = None
    name: str | None = None

    @staticmethod
    def static() -> DimSpec:
        return DimSpec("STATIC")

    @staticmethod
    def dynamic(*, min: int | None = None, max: int | None = None, name: str | None = None) -> DimSpec:
        return DimSpec("DYNAMIC", min, max, name)


@dataclass(frozen=True, slots=True)
class InputPolicy:
    """The dimensions of an input; those not named follow the environment's default."""

    dims: dict[int, DimSpec] = field(default_factory=dict)


def policy_of(spec: Any) -> InputPolicy | None:
    """An InputPolicy from what callers may write: one, a mapping from dimension to DimSpec, a sequence, or nothing."""
    if spec is None or isinstance(spec, InputPolicy):
        return spec
    items = spec.items() if isinstance(spec, dict) else enumerate(spec)
    return InputPolicy({d: s for d, s in items if s is not None})
