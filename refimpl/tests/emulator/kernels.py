"""Kernels as text, and launches of them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl.codegen.emulator import JitFunction, Options, launch, run_module

_HEAD = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n\n\n@triton.jit\n"


@dataclass(frozen=True)
class EmulatedKernel:
    """A kernel and the types of its parameters."""

    function: JitFunction
    parameters: Mapping[str, str]

    def launch(
        self, grid: tuple[int, ...], arguments: Sequence[Any], *, options: Options | None = None, **constants: Any
    ) -> None:
        """All programs of the grid, with races looked for unless options say otherwise."""
        given = iter(arguments)
        typed = {
            name: (kind, constants[name] if kind == "constexpr" else next(given))
            for name, kind in self.parameters.items()
        }
        launch(self.function, self.function.__name__, grid, typed, options or Options(races=True))


def make(name: str, parameters: str, body: str) -> EmulatedKernel:
    """`parameters` as "x:*fp32 n:i32 B:constexpr"."""
    types = dict(part.split(":") for part in parameters.split())
    signature = ", ".join(p + (": tl.constexpr" if kind == "constexpr" else "") for p, kind in types.items())
    text = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    source = f"{_HEAD}def {name}({signature}):\n{text}\n"
    return EmulatedKernel(run_module(source, f"<{name} {hash(source)}>", name)[name], types)


def normal(*shape: int) -> torch.Tensor:
    """The same normal numbers at every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


ADD = make(
    "add", "x:*fp32 o:*fp32 n:i32 B:constexpr",
    "i = tl.program_id(0) * B + tl.arange(0, B)\nm = i < n\ntl.store(o + i, tl.load(x + i, mask=m) + 1, mask=m)",
)  # fmt: skip
"""One more than each of n elements."""
