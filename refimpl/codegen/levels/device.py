"""`DeviceLevel`: kernels on a GPU.

Counterpart: torch/_inductor/runtime/triton_heuristics.py CachingAutotuner, TritonCompileResult
Differs: one configuration, the kernel's own; floating-point contraction is off unless asked for (numerics contract).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refimpl.codegen.emulator import KernelError, WouldNotCompile
from refimpl.codegen.kernel import Kernel, Launcher, LevelUnavailable, Parameter, check_launch
from refimpl.codegen.levels.cubin import compile_source
from refimpl.codegen.levels.interpreter import is_interpreting
from refimpl.codegen.levels.triton_version import language_constant, require_triton

_ALIGNMENT = 16  # bytes, or multiples of a scalar; lets loads be vectorized


class DeviceLevel:
    """Launches on the current CUDA device and stream. A compiled kernel is kept for each kernel, constants and alignment.

    Raises LevelUnavailable when made where there is no GPU, no Triton, or Triton is interpreting.
    """

    def __init__(self, *, fp_fusion: bool = False) -> None:
        if not torch.cuda.is_available():
            raise LevelUnavailable("device", seen="no CUDA device", do="use the emulator or the interpreter")
        require_triton("device")
        if is_interpreting():
            raise LevelUnavailable("device", seen="TRITON_INTERPRET is set", do="unset it and start again")
        self.fp_fusion = fp_fusion
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        arguments: Sequence[torch.Tensor | int | float],
        constants: Mapping[str, Any],
    ) -> None:
        """See Level. The launch is asynchronous, as any on a device."""
        self.bind(kernel, constants)(grid, arguments)

    def bind(self, kernel: Kernel, constants: Mapping[str, Any]) -> Launcher:
        """A function that launches a kernel. Its first launch per device and alignment of arguments is checked, and compiles."""
        identity = kernel.hash, tuple(sorted(constants.items(), key=lambda item: item[0]))
        ready: dict[tuple[Any, ...], Any] = {}

        def prepare(key: tuple[Any, ...], grid: tuple[int, ...], arguments: Sequence[Any]) -> Any:
            check_launch(kernel, grid, arguments, constants)
            self._check_device(kernel, arguments)
            if (identity, key) not in self._compiled:
                given = [at for at, parameter in enumerate(kernel.parameters) if not parameter.is_constant]
                aligned = [position for position, is_aligned in zip(given, key[1:], strict=True) if is_aligned]
                self._compiled[identity, key] = self._compile(kernel, constants, aligned)
            ready[key] = self._compiled[identity, key]
            return ready[key]

        names: dict[str, Any] = {"ready": ready, "prepare": prepare}
        names.update({f"constant_{name}": language_constant(value) for name, value in constants.items()})
        exec(_launcher_source(kernel), names)
        return names["launch"]

    def _check_device(self, kernel: Kernel, arguments: Sequence[Any]) -> None:
        """Raises KernelError for a tensor that is not on a GPU."""
        for parameter, argument in zip(kernel.arguments, arguments, strict=True):
            if isinstance(argument, torch.Tensor) and not argument.is_cuda:
                raise KernelError(
                    kernel.name, seen=f"a tensor on {argument.device} for {parameter.name!r}",
                    expected="tensors on the GPU", do="move the arguments",
                )  # fmt: skip

    def _compile(self, kernel: Kernel, constants: Mapping[str, Any], aligned: Sequence[int]) -> Any:
        driver = importlib.import_module("triton.runtime").driver
        target = driver.active.get_current_target()
        typed = {name: language_constant(value) for name, value in constants.items()}
        try:
            return compile_source(kernel, typed, target, fp_fusion=self.fp_fusion, aligned=aligned)
        except Exception as error:
            raise WouldNotCompile(kernel.name, str(error)) from error


def _launcher_source(kernel: Kernel) -> str:
    """Source of a function that finds the compiled kernel by device and alignment of the arguments, and launches it."""
    names = {parameter: f"a{position}" for position, parameter in enumerate(kernel.arguments)}
    values = [names.get(parameter, f"constant_{parameter.name}") for parameter in kernel.parameters]
    device = next((f"{name}.get_device()" for parameter, name in names.items() if parameter.is_pointer), "0")
    key = ", ".join([device, *(_is_aligned(parameter, name) for parameter, name in names.items())])
    return f"""\
def launch(grid, arguments):
    {"".join(f"{name}, " for name in names.values())}= arguments
    key = ({key},)
    compiled = ready.get(key)
    if compiled is None:
        compiled = prepare(key, grid, arguments)
    if 0 not in grid:
        compiled[(*grid, 1, 1)[:3]]({", ".join(values)})
"""


def _is_aligned(parameter: Parameter, name: str) -> str:
    if parameter.is_pointer:
        return f"{name}.data_ptr() % {_ALIGNMENT} == 0"
    return f"{name} % {_ALIGNMENT} == 0" if parameter.type[0] in "iu" and parameter.type != "i1" else "False"
