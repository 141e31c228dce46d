"""Stand-ins for interpreters with another torch."""

from __future__ import annotations

import sys
from pathlib import Path


def interpreter(folder: Path, name: str, **variables: str) -> str:
    """An interpreter that sets variables and is this one."""
    path = folder / name
    words = " ".join(f"{key}={value}" for key, value in variables.items())
    path.write_text(f'#!/bin/sh\n{words} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)
