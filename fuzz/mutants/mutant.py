"""Mutant: a planted bug, described; and programs that do and do not show it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oracle.program import Call, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One planted bug.

    `trigger` and `control` are bodies of module source with a function `program` (or class, with `is_module`) and `inputs(call)`.
    """

    function: Callable[..., Any]  # the backend, or the compiler
    bug: str  # what it does wrong, in one line
    stage: str  # "graph" | "forward" | "backward" | "runtime" | "guards" | "compile"
    statuses: tuple[str, ...]  # what the judge says of the trigger: one of these
    rarity: str  # "common": any program with the operator; "some": an ordinary condition on top; "rare": two or more
    trigger: str
    control: str
    calls: int = 1
    before: Sequence[str] = ()  # what is executed before each call
    backward: bool = False
    is_module: bool = False
    is_compiler: bool = False
    expects_raise: bool = False  # eager raises on the trigger

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def subject(self) -> str:
        """As `--subject` takes it."""
        path = f"{self.function.__module__}:{self.function.__name__}"
        return f"compile:{path}" if self.is_compiler else path

    def program(self, source: str) -> Program:
        """The trigger or the control as a program."""
        before = (*self.before, *[""] * self.calls)[: self.calls]
        return Program(
            name=self.name,
            source="import torch\n\n" + textwrap.dedent(source).strip() + "\n",
            calls=tuple(Call(before=text, backward=self.backward) for text in before),
            is_module=self.is_module,
            expects_raise=self.expects_raise and source == self.trigger,
        )
