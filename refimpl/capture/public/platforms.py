"""The platforms that capture supports.

Counterpart: torch/_dynamo/eval_frame.py check_if_dynamo_supported and others; torch/_dynamo/utils.py is_compile_supported
Differs: capture hooks nothing into CPython; it depends on the versions whose bytecode it reads.
"""

from __future__ import annotations

import importlib.util
import sys

from refimpl.errors import UnsupportedByRefimpl

OLDEST, YOUNGEST = (3, 10), (3, 13)


def check_if_dynamo_supported() -> None:
    """Raises UnsupportedByRefimpl (a RuntimeError) for a version of Python whose bytecode capture does not read."""
    version = sys.version_info[:2]
    if not OLDEST <= version <= YOUNGEST:
        raise UnsupportedByRefimpl(
            seen=f"capture on Python {'.'.join(map(str, version))}",
            supported=f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, YOUNGEST))}",
            do="use one of these",
        )


def is_dynamo_supported() -> bool:
    """Whether capture supports this version of Python."""
    try:
        check_if_dynamo_supported()
    except UnsupportedByRefimpl:
        return False
    return True


def check_if_inductor_supported() -> None:
    """Raises UnsupportedByRefimpl where capture does not work, and on Windows, as upstream does for inductor.

    Only the platform is checked: the backend of that name is refimpl's code generator.
    """
    check_if_dynamo_supported()
    if sys.platform == "win32":
        raise UnsupportedByRefimpl(seen="inductor on Windows", supported="Linux and macOS", do="use another backend")


def is_inductor_supported() -> bool:
    """Whether `check_if_inductor_supported` passes."""
    try:
        check_if_inductor_supported()
    except UnsupportedByRefimpl:
        return False
    return True


def is_compile_supported(device_type: str) -> bool:
    """Whether compiled code can compute on a device: on CPUs, and on CUDA with triton."""
    if device_type == "cpu":
        return is_dynamo_supported()
    return device_type == "cuda" and is_dynamo_supported() and importlib.util.find_spec("triton") is not None
