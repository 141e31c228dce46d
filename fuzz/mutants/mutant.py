"""Mutant: the description of a planted bug, with a program that shows it and one that does not."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from oracle.program import Call, Program

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One planted bug.

    `trigger` and `control` are bodies of module source with a function `program` (or class, with `is_module`) and `inputs(call)`.
    """

    function: Callable[..., Any]  # the backend, or the compiler
    bug: str  # the bug, in one line
    stage: str  # "graph" | "forward" | "backward" | "runtime" | "guards" | "compile"
    statuses: tuple[str, ...]  # the judge's status for the trigger is one of these
    rarity: str  # "common": any program with the operator shows it; "some": under one condition; "rare": under several
    trigger: str
    control: str
    calls: int = 1
    before: Sequence[str] = ()  # statements that run before each call
    backward: bool = False
    is_module: bool = False
    is_compiler: bool = False
    expects_raise: bool = False  # eager raises on the trigger

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def subject(self) -> str:
        """The name for `--subject`."""
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


def planting(mutants: list[Mutant], **defaults: Any) -> Callable[..., Callable[[_Function], _Function]]:
    """A decorator for the backends and compilers of one module, which describes each and adds it to the list of mutants."""

    def mutant(bug: str, rarity: str, trigger: str, control: str, **fields: Any) -> Callable[[_Function], _Function]:
        def add(function: _Function) -> _Function:
            given: dict[str, Any] = {**defaults, **fields}
            mutants.append(Mutant(function=function, bug=bug, rarity=rarity, trigger=trigger, control=control, **given))
            return function

        return add

    return mutant
