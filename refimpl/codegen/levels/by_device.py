"""`LevelByDevice`: each kernel where its tensors are: emulated with assertions on the CPU, launched on a CUDA GPU.

`AsEager`: a level whose failed assertions are the errors that eager raises on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refimpl.codegen.emulator import AssertionFailed
from refimpl.codegen.kernel import Kernel, Launcher, Level, LevelUnavailable, bound
from refimpl.codegen.levels.device import DeviceLevel
from refimpl.codegen.levels.emulated import EmulatorLevel
from refimpl.codegen.printing.functions import BOUNDS_MESSAGES


class AsEager:
    """Another level whose failed assertions become eager's exceptions: IndexError for an index out of bounds, RuntimeError for
    others, those of gather and scatter included."""

    def __init__(self, level: Level) -> None:
        self._level = level

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        arguments: Sequence[torch.Tensor | int | float],
        constants: Mapping[str, Any],
    ) -> None:
        """See Level."""
        try:
            self._level.launch(kernel, grid, arguments, constants)
        except AssertionFailed as error:
            kind = IndexError if error.message == BOUNDS_MESSAGES["checked_index"] else RuntimeError
            raise kind(error.message) from error


class LevelByDevice:
    """The default level of compiled graphs."""

    def __init__(self) -> None:
        self._emulator = AsEager(EmulatorLevel(asserts=True))

    @functools.cached_property
    def _gpu(self) -> DeviceLevel:
        return DeviceLevel()

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        arguments: Sequence[torch.Tensor | int | float],
        constants: Mapping[str, Any],
    ) -> None:
        """See Level. Raises eager's exceptions: IndexError or RuntimeError for an index out of bounds, RuntimeError for an
        invalid probability; and LevelUnavailable for a device without a level."""
        self.bind(kernel, constants)(grid, arguments)

    def bind(self, kernel: Kernel, constants: Mapping[str, Any]) -> Launcher:
        """A function that launches a kernel on the device of its tensors."""
        gpu: Launcher | None = None
        emulated = bound(self._emulator, kernel, constants)

        def launch(grid: tuple[int, ...], arguments: Sequence[Any]) -> None:
            nonlocal gpu
            tensor = next(argument for argument in arguments if isinstance(argument, torch.Tensor))
            if tensor.is_cuda:
                gpu = gpu or self._gpu.bind(kernel, constants)
                if torch.cuda.current_device() == tensor.get_device():
                    gpu(grid, arguments)
                    return
                with torch.cuda.device(tensor.device):
                    gpu(grid, arguments)
                return
            if not tensor.is_cpu:
                raise LevelUnavailable(
                    tensor.device.type, seen=f"tensors on {tensor.device}", do="move them to the CPU or a CUDA GPU"
                )
            emulated(grid, arguments)

        return launch
