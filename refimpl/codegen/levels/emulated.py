"""`EmulatorLevel`: runs kernels on the emulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refimpl.codegen.emulator import JitFunction, KernelError, Options, launch, run_module
from refimpl.codegen.kernel import Kernel, check_launch


class EmulatorLevel:
    """Runs kernels on CPU tensors. Each kernel's function is cached. The keywords are those of `emulator.Options`."""

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
        """See Level. Raises the emulator's errors, all of them KernelErrors."""
        check_launch(kernel, grid, arguments, constants)
        function = load_kernel(kernel)
        given = iter(arguments)
        typed = {p.name: (p.type, constants[p.name] if p.is_constant else next(given)) for p in kernel.parameters}
        launch(function, kernel.name, grid, typed, self.options)


_loaded: dict[str, JitFunction] = {}


def load_kernel(kernel: Kernel) -> JitFunction:
    """The kernel's function, after running its module on the emulator. Raises KernelError if the module does not define it."""
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
