"""A Triton kernel as data (source, parameters and launch options), and `Level`, the protocol of what launches one.

Counterpart: torch/_inductor/codecache.py, torch/_inductor/runtime/triton_heuristics.py CachingAutotuner
Differs: a kernel is text and values only; the level decides how it runs (emulated, interpreted, compiled).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

import torch

from refimpl.codegen.emulator import POINTER_TYPES, SCALAR_TYPES, KernelError
from refimpl.errors import RefimplError

POINTEES: Mapping[str, torch.dtype] = MappingProxyType({name: dtype for dtype, name in POINTER_TYPES.items()})


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel: its name, and its type as Triton's signatures write it ("*fp32", "i64", "constexpr")."""

    name: str
    type: str

    @property
    def is_pointer(self) -> bool:
        return self.type.startswith("*")

    @property
    def is_constant(self) -> bool:
        return self.type == "constexpr"


@dataclass(frozen=True)
class Kernel:
    """One Triton kernel.

    `source` is the text of a module that imports triton, triton.language as tl, and libdevice if it needs it; in it stands one
    `@triton.jit` function called `name`, after the `@triton.jit` helpers it calls. `parameters` are in that function's order.
    """

    name: str
    source: str
    parameters: tuple[Parameter, ...]
    num_warps: int = 4
    num_stages: int = 1

    def __post_init__(self) -> None:
        for parameter in self.parameters:
            known = (
                parameter.type in POINTEES if parameter.is_pointer else parameter.type in (*SCALAR_TYPES, "constexpr")
            )
            if not known:
                raise KernelError(
                    self.name, seen=f"parameter {parameter.name!r} of type {parameter.type!r}",
                    expected=f"one of {', '.join((*POINTEES, *SCALAR_TYPES, 'constexpr'))}",
                    do="write the type as Triton's signatures do",
                )  # fmt: skip

    @cached_property
    def hash(self) -> str:
        """A digest of everything that decides what the kernel does and how fast. Caches use it as their key."""
        facts = (self.name, self.source, [(p.name, p.type) for p in self.parameters], self.num_warps, self.num_stages)
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        """The parameters that a launch gives values of: all but the constants."""
        return tuple(parameter for parameter in self.parameters if not parameter.is_constant)

    @property
    def constants(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.is_constant)


class Level(Protocol):
    """One way to run kernels."""

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        arguments: Sequence[torch.Tensor | int | float],
        constants: Mapping[str, Any],
    ) -> None:
        """Run every program of `grid` (one to three sizes). `arguments` are the values of `kernel.arguments`, in order;
        `constants` those of `kernel.constants`, by name. Tensors are written in place. Raises KernelError for a launch that
        does not fit the kernel.
        """
        ...


class LevelUnavailable(RefimplError, RuntimeError):
    """This process cannot run kernels on the level, for example without a GPU."""

    def __init__(self, level: str, *, seen: str, do: str) -> None:
        super().__init__(f"level {level!r} is not available: {seen}\n  what to do: {do}")
        self.seen, self.do = seen, do


# Launches a kernel whose constants are bound. Takes a grid and the values of `kernel.arguments`.
Launcher = Callable[[tuple[int, ...], Sequence[Any]], None]


def bound(level: Level, kernel: Kernel, constants: Mapping[str, Any]) -> Launcher:
    """A function that launches one kernel repeatedly. A level may have a method `bind(kernel, constants)` that does once what
    need not be repeated at every launch."""
    bind = getattr(level, "bind", None)
    if bind is not None:
        return bind(kernel, constants)
    return lambda grid, arguments: level.launch(kernel, grid, arguments, constants)


def check_launch(
    kernel: Kernel,
    grid: tuple[int, ...],
    arguments: Sequence[torch.Tensor | int | float],
    constants: Mapping[str, Any],
) -> None:
    """Raise KernelError unless the launch fits the kernel: number and kinds of arguments, dtypes, names of constants, grid."""
    expected = kernel.arguments
    if len(arguments) != len(expected):
        raise KernelError(
            kernel.name, seen=f"{len(arguments)} arguments",
            expected=f"{len(expected)}: {', '.join(p.name for p in expected)}", do="pass one for each, constants apart",
        )  # fmt: skip
    for parameter, argument in zip(expected, arguments, strict=True):
        is_tensor = isinstance(argument, torch.Tensor)
        if is_tensor != parameter.is_pointer:
            seen = f"a {type(argument).__name__} for {parameter.name!r}"
            what = f"a tensor ({parameter.type})" if parameter.is_pointer else f"a number ({parameter.type})"
            raise KernelError(kernel.name, seen=seen, expected=what, do="mend the order of the arguments")
        if isinstance(argument, torch.Tensor) and POINTER_TYPES.get(argument.dtype) != parameter.type:
            raise KernelError(
                kernel.name, seen=f"a tensor of {argument.dtype} for {parameter.name!r}", expected=parameter.type,
                do="convert the tensor, or make the kernel for this dtype",
            )  # fmt: skip
    check_constants(kernel, constants)
    if not 1 <= len(grid) <= 3 or not all(isinstance(size, int) and size >= 0 for size in grid):
        raise KernelError(
            kernel.name, seen=f"grid {grid!r}", expected="one to three sizes of at least 0", do="mend the grid"
        )


def check_constants(kernel: Kernel, constants: Mapping[str, Any]) -> None:
    """Raise KernelError unless the names are those of the kernel's constants."""
    names = {parameter.name for parameter in kernel.constants}
    if names != set(constants):
        raise KernelError(
            kernel.name, seen=f"constants {sorted(constants)}", expected=f"{sorted(names)}", do="give each by its name"
        )
