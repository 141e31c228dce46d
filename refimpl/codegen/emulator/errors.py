"""Errors of a launch: each names the kernel, says what was seen and expected, and what to do.

`KernelError` is the class of them all, and of launches that do not fit their kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from refimpl.errors import RefimplError


class KernelError(RefimplError):
    """A kernel is wrong, or a launch does not fit it. Base class of all errors of launches."""

    def __init__(self, kernel: str, *, seen: str, expected: str, do: str) -> None:
        super().__init__(f"kernel {kernel!r}: {seen}\n  expected: {expected}\n  what to do: {do}")
        self.kernel, self.seen, self.expected, self.do = kernel, seen, expected, do

    def name_lines(self, lines: Sequence[str]) -> None:
        """Add to the message which lines of a PyTorch program the kernel computes."""
        self.args = ("".join([self.args[0], *(f"\n  computes: {line}" for line in lines)]),)

    def as_json(self) -> dict[str, str]:
        """The arguments from which `KernelError(**...)` makes the same error."""
        return {"kernel": self.kernel, "seen": self.seen, "expected": self.expected, "do": self.do}


@dataclass(frozen=True, slots=True, kw_only=True)
class BadAccess:
    """One lane of one program at one place of memory. `place` is the element's index from the argument's first one."""

    kernel: str
    parameter: str
    program: tuple[int, ...]
    lane: tuple[int, ...]
    place: int
    extent: int  # elements from the first to the last that the argument's shape and strides reach
    line: str = ""


class OutOfBounds(KernelError):
    """An active lane loads or stores outside of the memory that its argument's shape and strides span."""

    def __init__(self, what: str, access: BadAccess, count: int) -> None:
        super().__init__(
            access.kernel,
            seen=f"{what} of {access.parameter}[{access.place}] by program {access.program}, lane {access.lane}"
            f"{access.line}; {count} such lanes in this instruction",
            expected=f"an element from 0 to {access.extent - 1}" if access.extent else "none: the argument is empty",
            do="mask the lane, or mend the index",
        )
        self.access = access


class Race(KernelError):
    """The memory after the launch, or a value that was read, depends on the order in which programs or lanes run."""

    def __init__(self, what: str, access: BadAccess, other: tuple[int, ...] | None) -> None:
        by = f" and program {other}" if other is not None else " and another lane"
        super().__init__(
            access.kernel,
            seen=f"{what} {access.parameter}[{access.place}]: program {access.program}, lane {access.lane}{by}{access.line}",
            expected="at most one program that writes an element, none that reads what another one writes",
            do="give each program elements of its own, or use an atomic",
        )
        self.access = access


class AssertionFailed(KernelError):
    """A device_assert does not hold for an active lane."""

    def __init__(self, kernel: str, message: str, line: str = "") -> None:
        super().__init__(
            kernel, seen=f"{message or 'a condition that does not hold'}{line}", expected="a condition that holds",
            do="mend the arguments, or the kernel",
        )  # fmt: skip
        self.message = message


class WouldNotCompile(KernelError):
    """Triton's compiler refuses this kernel."""

    def __init__(self, kernel: str, reason: str, line: str = "") -> None:
        super().__init__(
            kernel, seen=f"{reason}{line}", expected="what Triton's compiler takes", do="mend the kernel's source"
        )


class NotEmulated(KernelError):
    """Triton can do this, the emulator cannot."""

    def __init__(self, kernel: str, what: str, line: str = "") -> None:
        super().__init__(
            kernel, seen=f"{what}{line}", expected="the subset of triton.language that the emulator has",
            do="run this kernel in the interpreter or on a GPU",
        )  # fmt: skip
