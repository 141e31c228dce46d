"""The installed version of Triton, and whether it can run kernels."""

from __future__ import annotations

import importlib.metadata
import re

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
