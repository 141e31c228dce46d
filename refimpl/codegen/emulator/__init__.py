"""The emulator: runs the source of Triton kernels on CPU tensors, without Triton or a GPU, and checks every access to memory.

Counterpart: triton/runtime/interpreter.py
Differs: one operation runs for all programs of the grid at once, two orders of magnitude faster than program after program.

    with triton_emulated():  # `import triton` gives the emulator
        import my_kernels
    my_kernels.add[(4,)](x, out, x.numel(), BLOCK=32)  # raises OutOfBounds, Race, WouldNotCompile ...

What it runs
    `triton_emulated` makes a module that imports Triton run on the emulator; `run_module` does it for a module's text. What
    `@triton.jit` makes in them is a `JitFunction`: `kernel[grid](...)` is a launch, `options` says what it checks (`Options`).
    `launch` is one whose arguments have types as in Triton's signatures (`POINTER_TYPES`, `SCALAR_TYPES`).
What it raises
    `KernelError` and its kinds: `OutOfBounds`, `Race`, `AssertionFailed`, `WouldNotCompile` (Triton's compiler would refuse the
    kernel), `NotEmulated` (Triton has it, the emulator does not). Each names the kernel and its line.
What it counts
    the first bad lane of an access and how many there are (`BadAccess` has program, lane and element); each launch, for
    those in `JitFunction.watchers`. It does not measure time, registers or traffic.

Where a device and Triton's interpreter differ, it computes as the device. These differences and what it lacks: docs/emulator.md.
"""

from refimpl.codegen.emulator.errors import (
    AssertionFailed,
    BadAccess,
    KernelError,
    NotEmulated,
    OutOfBounds,
    Race,
    WouldNotCompile,
)
from refimpl.codegen.emulator.jit import JitFunction
from refimpl.codegen.emulator.language import run_module, triton_emulated
from refimpl.codegen.emulator.launching import Options, launch
from refimpl.codegen.emulator.mathematics import make_libdevice
from refimpl.codegen.emulator.types import POINTER_TYPES, SIGNATURE_TYPES, Type
from refimpl.codegen.emulator.values import Value

SCALAR_TYPES = tuple(SIGNATURE_TYPES)

__all__ = [
    "POINTER_TYPES",
    "SCALAR_TYPES",
    "AssertionFailed",
    "BadAccess",
    "JitFunction",
    "KernelError",
    "NotEmulated",
    "Options",
    "OutOfBounds",
    "Race",
    "Type",
    "Value",
    "WouldNotCompile",
    "launch",
    "make_libdevice",
    "run_module",
    "triton_emulated",
]
