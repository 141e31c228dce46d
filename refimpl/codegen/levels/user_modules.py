"""Hand-written kernels: user modules that import Triton, run on the emulator or in the repaired interpreter.

A process keeps to one of them, since a module keeps what it has imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from refimpl.codegen.emulator import JitFunction, KernelError, NotEmulated, OutOfBounds, Race, WouldNotCompile
from refimpl.codegen.kernel import LevelUnavailable
from refimpl.codegen.levels.interpreter import is_interpreting

_KINDS: dict[type[KernelError], str] = {
    OutOfBounds: "out_of_bounds", Race: "race", WouldNotCompile: "would_not_compile", NotEmulated: "not_emulated",
}  # fmt: skip


def interpret_triton() -> None:
    """Repairs the interpreter. Raises LevelUnavailable unless the process was started with TRITON_INTERPRET=1."""
    if not is_interpreting():
        raise LevelUnavailable(
            "interpreter", seen="TRITON_INTERPRET is not set", do="start the process with TRITON_INTERPRET=1"
        )
    importlib.import_module("refimpl.codegen.levels.interpreter_repairs").repair()


def kind_of_error(error: BaseException) -> str | None:
    """The kind of a launch's error: "out_of_bounds", "race", "would_not_compile", "not_emulated" or "launch". None for other
    errors."""
    seen: BaseException | None = error
    while seen is not None:
        if type(seen).__name__ == "OutsideOfArguments":
            return "out_of_bounds"
        for kind, name in _KINDS.items():
            if isinstance(seen, kind):
                return name
        if isinstance(seen, KernelError) or type(seen).__name__ in (
            "InterpreterError",
            "CompilationError",
            "PTXASError",
        ):
            cause = seen.__cause__
            if cause is None or type(cause).__name__ != "OutsideOfArguments":
                return "launch"
        seen = seen.__cause__
    return None


def is_kernel(value: Any) -> bool:
    """Whether the value is a `@triton.jit` function, of the emulator or of Triton."""
    return isinstance(value, JitFunction) or type(value).__name__ in (
        "JITFunction", "InterpretedFunction", "Autotuner", "Heuristics",
    )  # fmt: skip


@contextmanager
def launches_watched(
    watch: Callable[[str], None], around: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> Iterator[None]:
    """While open, `watch(name)` is called before each launch, and each launch runs inside of `around()`, on every level."""

    def told(name: str, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        watch(name)

    JitFunction.watchers.append(told)
    JitFunction.around.append(around)
    triton = sys.modules.get("triton.runtime.jit")
    interface = triton.KernelInterface if triton is not None else None
    stock = interface.__getitem__ if interface is not None else None

    def get_item(self: Any, grid: Any) -> Any:
        watch(getattr(self, "__name__", type(self).__name__))
        assert stock is not None
        run = stock(self, grid)

        def launch(*args: Any, **kwargs: Any) -> Any:
            with around():
                return run(*args, **kwargs)

        return launch

    if interface is not None:
        interface.__getitem__ = get_item
    try:
        yield
    finally:
        JitFunction.watchers.remove(told)
        JitFunction.around.remove(around)
        if interface is not None:
            interface.__getitem__ = stock
