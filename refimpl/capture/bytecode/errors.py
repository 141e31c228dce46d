"""What is said of code objects that cannot be read."""

from __future__ import annotations

from types import CodeType


class UnsupportedCode(Exception):
    """A code object that is not interpreted, with the reason. What asks for it runs the function as it is."""

    def __init__(self, code: CodeType, reason: str, line: int | None = None) -> None:
        self.code = code
        self.reason = reason
        super().__init__(
            f"{getattr(code, 'co_qualname', code.co_name)} "
            f"({code.co_filename}:{line or code.co_firstlineno}): {reason}\n"
            "  expected: a function or generator of CPython 3.10 to 3.13 without async\n"
            "  what to do: leave the function out of what is captured"
        )


class MalformedCode(AssertionError):
    """Bytecode that breaks an invariant of CPython's compiler: our own error in reading it, or code made by hand."""
