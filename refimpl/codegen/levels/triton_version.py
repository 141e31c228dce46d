"""The installed Triton: whether it can run kernels, and constants in its form."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from typing import Any

import torch

from refimpl.codegen.kernel import LevelUnavailable

OLDEST = (3, 6)  # version of the language that kernels are written in


def require_triton(level: str) -> str:
    """The installed version. Raises LevelUnavailable if there is none, or one that is too old."""
    install = "pip install 'torch-oracle[triton]'"
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError as error:
        raise LevelUnavailable(level, seen="Triton is not installed", do=install) from error
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise LevelUnavailable(
            level, seen=f"Triton {version}", do=f"{install}: Triton {oldest} or a later one is needed"
        )
    return version


def language_type(name: str) -> Any:
    """Triton's dtype of this name; torch's bool is int1 there."""
    return getattr(importlib.import_module("triton.language"), "int1" if name == "bool" else name)


def language_constant(value: Any) -> Any:
    """A constant in Triton's form; dtypes become Triton's."""
    return language_type(str(value).removeprefix("torch.")) if isinstance(value, torch.dtype) else value
