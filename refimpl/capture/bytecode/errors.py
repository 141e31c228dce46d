"""Errors for code objects that cannot be read."""

from __future__ import annotations

from types import CodeType


class UnsupportedCode(Exception):
    """This code object is not interpreted, for a reason. The caller runs the function without capture."""

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
    """Bytecode breaks an invariant of CPython's compiler: it was misread here, or the code object was made by hand."""
