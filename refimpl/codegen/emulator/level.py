"""`EmulatorLevel`: kernels as data, run by the emulator."""

from __future__ import annotations

import builtins
import linecache
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from refimpl.codegen.emulator.jit import JitFunction
from refimpl.codegen.emulator.language import MODULES
from refimpl.codegen.emulator.launching import Options, launch
from refimpl.codegen.emulator.values import Unsupported
from refimpl.codegen.kernel import Kernel, KernelError, check_launch
from refimpl.codegen.level_errors import NotEmulated


class EmulatorLevel:
    """Runs kernels on CPU tensors. Compiled text is kept for each kernel.

    `races`: two programs that store other values to one place, or load what another one stores, are an error.
    `poison`: what a load without `other` gives where its mask is off is NaN, or a pattern; or else 0.
    `asserts`: device_assert is checked, as with debugging on; else it does nothing.
    `elements`: the size of the largest value, over all programs that run together.
    """

    def __init__(
        self, *, races: bool = False, poison: bool = True, asserts: bool = False, elements: int = 1 << 22
    ) -> None:
        self.options = Options(races=races, poison=poison, asserts=asserts, elements=elements)

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        arguments: Sequence[torch.Tensor | int | float],
        constants: Mapping[str, Any],
    ) -> None:
        """See Level. Raises OutOfBounds, Race, WouldNotCompile or NotEmulated, all of them KernelErrors."""
        check_launch(kernel, grid, arguments, constants)
        function = load_kernel(kernel)
        given = iter(arguments)
        typed = {
            p.name: (p.type, _constant(constants[p.name]) if p.is_constant else next(given)) for p in kernel.parameters
        }
        launch(function, kernel.name, grid, typed, self.options)


_loaded: dict[str, JitFunction] = {}


def load_kernel(kernel: Kernel) -> JitFunction:
    """The kernel's function, its module run with the stand-ins. KernelError for a module that does not define it."""
    function = _loaded.get(kernel.hash)
    if function is None:
        namespace = run_module(kernel.source, f"<kernel {kernel.name} {kernel.hash}>", kernel.name)
        function = namespace.get(kernel.name)
        if not isinstance(function, JitFunction):
            raise KernelError(
                kernel.name, seen=f"a module that defines {function!r} under this name",
                expected="a @triton.jit function", do="name the kernel as its function",
            )  # fmt: skip
        if function.arg_names != [p.name for p in kernel.parameters]:
            raise KernelError(
                kernel.name, seen=f"parameters {[p.name for p in kernel.parameters]}",
                expected=f"those of the function: {function.arg_names}", do="mend the list of parameters",
            )  # fmt: skip
        _loaded[kernel.hash] = function
    return function


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


def _constant(value: Any) -> Any:
    """Types are named as text in a launch's constants."""
    if isinstance(value, torch.dtype):
        return getattr(MODULES["triton.language"], str(value).removeprefix("torch."))
    return value
