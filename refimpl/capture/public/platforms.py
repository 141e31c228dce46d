"""Where capture works.

Counterpart: torch/_dynamo/eval_frame.py check_if_dynamo_supported and others; torch/_dynamo/utils.py is_compile_supported
Differs: capture needs no hook of the interpreter, so it is only as young as its reader of bytecode.
"""

from __future__ import annotations

import importlib.util
import sys

from refimpl.errors import UnsupportedByRefimpl

OLDEST, YOUNGEST = (3, 10), (3, 13)


def check_if_dynamo_supported() -> None:
    """Raises UnsupportedByRefimpl, which is a RuntimeError, for a version of Python that capture does not read."""
    version = sys.version_info[:2]
    if not OLDEST <= version <= YOUNGEST:
        raise UnsupportedByRefimpl(
            seen=f"capture on Python {'.'.join(map(str, version))}",
            supported=f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, YOUNGEST))}",
            do="use one of these",
        )


def is_dynamo_supported() -> bool:
    """The same as a question."""
    try:
        check_if_dynamo_supported()
    except UnsupportedByRefimpl:
        return False
    return True


def check_if_inductor_supported() -> None:
    """The same for backends that make machine code; and RuntimeError on Windows, where those of torch 2.1 make none.

    There is no such backend here yet: what can be asked is whether the platform would stand in its way.
    """
    check_if_dynamo_supported()
    if sys.platform == "win32":
        raise UnsupportedByRefimpl(seen="inductor on Windows", supported="Linux and macOS", do="use another backend")


def is_inductor_supported() -> bool:
    """The same as a question."""
    try:
        check_if_inductor_supported()
    except UnsupportedByRefimpl:
        return False
    return True


def is_compile_supported(device_type: str) -> bool:
    """Whether tensors of a device can be computed by compiled code: on CPUs, and with triton on CUDA."""
    if device_type == "cpu":
        return is_dynamo_supported()
    return device_type == "cuda" and is_dynamo_supported() and importlib.util.find_spec("triton") is not None
