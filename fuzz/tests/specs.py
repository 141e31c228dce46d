"""Descriptions of inputs for the tests of programs."""

from __future__ import annotations

from typing import Any


def tensor_spec(*shape: int, dtype: str = "float32", **more: Any) -> dict[str, Any]:
    """A tensor of this shape, with normal numbers unless `more` says otherwise."""
    return {"$": "tensor", "shape": list(shape), "dtype": dtype, **more}
