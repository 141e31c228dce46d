"""`DeviceLevel`: kernels on a GPU.

Counterpart: torch/_inductor/runtime/triton_heuristics.py CachingAutotuner, TritonCompileResult
Differs: one configuration, the kernel's own; floating-point contraction is off unless asked for (numerics contract).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refimpl.codegen.kernel import Kernel, KernelError, check_launch
from refimpl.codegen.levels.cubin import compile_source, language_constant
from refimpl.codegen.levels.errors import LevelUnavailable, WouldNotCompile
from refimpl.codegen.levels.interpreter import is_interpreting
from refimpl.codegen.levels.triton_version import require_triton

_ALIGNMENT = 16  # bytes, or multiples of a scalar: what lets loads be wide


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
        check_launch(kernel, grid, arguments, constants)
        if 0 in grid:
            return
        values: list[Any] = []
        aligned: list[int] = []
        given = iter(arguments)
        for position, parameter in enumerate(kernel.parameters):
            if parameter.is_constant:
                values.append(language_constant(constants[parameter.name]))
                continue
            value = next(given)
            values.append(value)
            if isinstance(value, torch.Tensor):
                if not value.is_cuda:
                    raise KernelError(
                        kernel.name, seen=f"a tensor on {value.device} for {parameter.name!r}",
                        expected="tensors on the GPU", do="move the arguments",
                    )  # fmt: skip
                is_aligned = value.data_ptr() % _ALIGNMENT == 0
            else:
                is_aligned = isinstance(value, int) and not isinstance(value, bool) and value % _ALIGNMENT == 0
            if is_aligned:
                aligned.append(position)
        device = torch.cuda.current_device()
        key = (kernel.hash, tuple(sorted(constants.items(), key=lambda item: item[0])), device, tuple(aligned))
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile(kernel, constants, aligned)
        compiled[(*grid, 1, 1)[:3]](*values)

    def _compile(self, kernel: Kernel, constants: Mapping[str, Any], aligned: Sequence[int]) -> Any:
        driver = importlib.import_module("triton.runtime").driver
        target = driver.active.get_current_target()
        typed = {name: language_constant(value) for name, value in constants.items()}
        try:
            return compile_source(kernel, typed, target, fp_fusion=self.fp_fusion, aligned=aligned)
        except Exception as error:
            raise WouldNotCompile(kernel.name, str(error)) from error
