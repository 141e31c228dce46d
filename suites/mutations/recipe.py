"""Recipe: a generated program in parts, so that parts can be left out again; rendered as the source of a Program."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from oracle.program import Call, Program, default_plan

GRAD_MODES = ("grad", "no_grad", "inference")


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """One storage that arguments are made of."""

    name: str
    value: str  # expression that makes the leaf
    history: str = "none"  # "none": no gradient; "leaf": the leaf itself; "result": the result of an operation on it

    @property
    def input_text(self) -> str:
        return self.value if self.history == "none" else f"({self.value}).requires_grad_()"

    @property
    def derived_text(self) -> str:
        return f"{self.name} * 1" if self.history == "result" else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument: an expression over the roots."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Roots, arguments made of them, statements, outputs."""

    roots: tuple[Root, ...]
    arguments: tuple[Argument, ...]
    statements: tuple[str, ...]
    outputs: tuple[str, ...]
    is_differentiated: bool = False
    grad_mode: str = "grad"
    calls: int = 1

    def derive_lines(self) -> list[str]:
        """From roots to arguments. Roots with a history become the results of an operation under their own name."""
        results = [f"{root.name} = {root.derived_text}" for root in self.roots if root.history == "result"]
        return [*results, *(f"{argument.name} = {argument.text}" for argument in self.arguments)]

    def body(self) -> str:
        """The function alone: what is shown of a finding, and what makes two recipes one."""
        names = ", ".join(argument.name for argument in self.arguments)
        lines = [*self.statements, f"return {self.output_text()}"]
        return f"def program({names}):\n" + textwrap.indent("\n".join(lines), "    ") + "\n"

    def output_text(self) -> str:
        if len(self.outputs) == 1:
            return self.outputs[0]
        return f"({', '.join(self.outputs)})" if self.outputs else "None"

    def source(self) -> str:
        """Module source as `oracle.program` wants it."""
        roots = ", ".join(root.name for root in self.roots)
        values = ", ".join(root.input_text for root in self.roots)
        arguments = ", ".join(argument.name for argument in self.arguments)
        derive = textwrap.indent("\n".join(self.derive_lines()), "    ")
        return (
            "import torch\nfrom torch.nn import functional\n\n\n"
            f"def inputs(call):\n    return [{values}], {{}}\n\n\n"
            f"def derive({roots}):\n{derive}\n    return [{arguments}], {{}}\n\n\n"
            f"{self.body()}"
        )

    def to_program(self, *, name: str, seed: int = 0) -> Program:
        call = Call(backward=self.is_differentiated and self.grad_mode == "grad", grad_mode=self.grad_mode)
        return Program(
            name=name, source=self.source(), calls=default_plan(call, key=self.body(), count=self.calls), seed=seed
        )
