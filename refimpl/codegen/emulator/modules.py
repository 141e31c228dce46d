"""How the text or the import of a module gets the emulator in the place of Triton."""

from __future__ import annotations

import builtins
import linecache
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from refimpl.codegen.emulator.errors import KernelError, NotEmulated
from refimpl.codegen.emulator.jit import JitFunction
from refimpl.codegen.emulator.language import MODULES
from refimpl.codegen.emulator.launching import Options
from refimpl.codegen.emulator.values import Unsupported


def run_module(source: str, file: str, kernel: str) -> dict[str, Any]:
    """The namespace of a module in which every `import triton...` gives a stand-in."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {
        "__name__": file,
        "__file__": file,
        "__builtins__": {**vars(builtins), "__import__": _import},
    }
    try:
        exec(compile(source, file, "exec"), namespace)
    except SyntaxError as error:
        raise KernelError(
            kernel, seen=f"source that is no Python: {error}", expected="a module", do="mend it"
        ) from error
    except Unsupported as error:
        raise NotEmulated(kernel, str(error)) from error
    return namespace


def _import(
    name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] | None = (), level: int = 0
) -> ModuleType:
    if name != "triton" and not name.startswith("triton."):
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    if name not in MODULES:
        raise Unsupported(f"import {name}")
    return MODULES[name] if fromlist else MODULES["triton"]


@contextmanager
def triton_emulated(*, races: bool = True) -> Iterator[None]:
    """While open, `import triton` gives the emulator's stand-ins; what is imported then keeps them, and runs emulated.

    Not for longer than an import: torch, too, imports Triton, and wants the real one.
    """
    JitFunction.options = Options(races=races)
    kept = {name: module for name, module in sys.modules.items() if _is_triton(name)}
    for name in kept:
        del sys.modules[name]
    sys.modules.update(MODULES)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if _is_triton(name)]:
            del sys.modules[name]
        sys.modules.update(kept)


def _is_triton(name: str) -> bool:
    return name == "triton" or name.startswith("triton.")
