"""Descriptions of inputs, and a program, for the tests of fuzz."""

from __future__ import annotations

from typing import Any

from oracle.program import Program

FLOOR = Program(
    name="floor",
    source=(
        "import torch\n\n\ndef program(a, b):\n    return a // b\n\n\n"
        "def inputs(call):\n    return (torch.tensor([1.0]), torch.tensor([0.1])), {}\n"
    ),
)


def tensor_spec(*shape: int, dtype: str = "float32", **more: Any) -> dict[str, Any]:
    """A tensor of this shape, with normal numbers unless `more` says otherwise."""
    return {"$": "tensor", "shape": list(shape), "dtype": dtype, **more}
