"""Levels by name; and `AlsoCompiled`, which compiles each kernel to machine code before another level runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from refimpl.codegen.emulator import KernelError
from refimpl.codegen.kernel import Kernel, Level
from refimpl.codegen.levels.by_device import AsEager, LevelByDevice
from refimpl.codegen.levels.cubin import compile_to_cubin
from refimpl.codegen.levels.device import DeviceLevel
from refimpl.codegen.levels.emulated import EmulatorLevel
from refimpl.codegen.levels.interpreter import InterpreterLevel, check_interpreter

LevelName = Literal["emulator", "interpreter", "device"]
# Most bytes that a thread may spill from registers. Kernels that spill more have too large blocks.
MOST_SPILLS = 1024
# Alignment of addresses in bytes, which a GPU's launcher passes to Triton.
ALIGNMENT = 16


class TooManySpills(KernelError):
    """A kernel compiles, but spills too many bytes per thread from registers to memory."""

    def __init__(self, kernel: str, spills: int, capability: int, most: int) -> None:
        super().__init__(
            kernel, seen=f"{spills} bytes spilled by each thread on a GPU of capability {capability}",
            expected=f"at most {most}", do="make its blocks smaller, or split it",
        )  # fmt: skip


class AlsoCompiled:
    """Runs kernels on another level, after compiling each to machine code before its first launch. That needs no GPU.

    capabilities: of the GPUs to compile for. Launches raise WouldNotCompile with the compiler's words, TooManySpills, and what
    the other level raises.
    """

    def __init__(self, level: Level, capabilities: Sequence[int]) -> None:
        self._level = level
        self._capabilities = tuple(capabilities)
        self._compiled: set[tuple[Any, ...]] = set()

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        arguments: Sequence[torch.Tensor | int | float],
        constants: Mapping[str, Any],
    ) -> None:
        """See Level."""
        is_aligned = all(a.data_ptr() % ALIGNMENT == 0 for a in arguments if isinstance(a, torch.Tensor))
        key = kernel.hash, is_aligned, *sorted(constants.items())
        if key not in self._compiled:
            for capability in self._capabilities:
                made = compile_to_cubin(kernel, constants, capability, has_aligned_tensors=is_aligned)
                if made.spills > MOST_SPILLS:
                    raise TooManySpills(kernel.name, made.spills, capability, MOST_SPILLS)
            self._compiled.add(key)
        self._level.launch(kernel, grid, arguments, constants)


def level_named(name: LevelName | None, *, cubin: Sequence[int] = ()) -> Level:
    """The level of this name; None runs each kernel where its tensors are. `cubin`: capabilities to compile kernels for as well.

    On the emulator races are errors, too. Raises LevelUnavailable for a level that this process cannot run kernels on.
    """
    match name:
        case "emulator":
            level: Level = AsEager(EmulatorLevel(asserts=True, races=True))
        case "interpreter":
            check_interpreter()
            level = AsEager(InterpreterLevel(asserts=True))
        case "device":
            level = DeviceLevel()
        case None:
            level = LevelByDevice()
    return AlsoCompiled(level, cubin) if cubin else level
