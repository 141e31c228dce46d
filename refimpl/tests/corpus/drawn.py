"""Programs of views and writes that fuzz has drawn, kept as text: `drawn.txt` holds functions and how their inputs are made.

fuzz is a layer above refimpl, so its tests cannot draw. A program stands below a line `# name: number`, and `# refused way:
message` where a way refuses it. `inputs` makes arguments by `memory`, `program` is run on what `derive` makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refimpl.tests.corpus.program import Inputs, Topic

TEXT = Path(__file__).with_name("drawn.txt").read_text(encoding="utf-8")
TOPIC = Topic("drawn", "functionalize")


def memory(
    shape: Sequence[int], dtype: torch.dtype, stride: Sequence[int], offset: int = 0, whole: Tensor | None = None
) -> Tensor:
    """A tensor of small whole numbers with this geometry, in the memory of `whole` where it is given."""
    if whole is None:
        size = offset + 1 + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
        whole = ((torch.arange(max(size, 1)) * 5 + 2) % 7 - 3).to(dtype)
    return whole.as_strided(shape, stride, offset)


def _inputs(names: dict[str, Any]) -> Callable[[bool], Inputs]:
    def make(requires_grad: bool) -> Inputs:
        made = names["inputs"]()
        arguments = names["derive"](*made)[0] if "derive" in names else made
        return Inputs([], list(arguments))

    return make


def _add(section: str) -> None:
    (name,) = re.findall(r"^# name: (\S+)$", section, re.M)
    names: dict[str, Any] = {"torch": torch, "memory": memory}
    exec(compile(section, f"drawn.txt, program {name}", "exec"), names)
    refused = {way: re.escape(message) for way, message in re.findall(r"^# refused (\S+): (.*)$", section, re.M)}
    TOPIC.add(f"drawn-{name}", lambda: names["program"], _inputs(names), with_gradients=(False,), refused=refused)


for _section in re.split(r"(?m)^(?=# name: )", TEXT)[1:]:
    _add(_section)
