"""Programs that a process compiles with the cache, and compares with eager mode. Prints what the cache did for each."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import refimpl
from refimpl.aot.options import aot_settings
from refimpl.tests.compile_cache.looking_up import counted
from refimpl.tests.corpus import PROGRAMS
from refimpl.tests.corpus.compare import assert_same_or_more, observe

# Programs of the corpus, by what a wrong hit would change.
NAMES = [
    name
    for topic in ("mutation", "views", "gradients", "randomness", "storage", "containers")
    for name in [name for name, program in PROGRAMS.items() if program.topic == topic and "aot" in program.rooms][::6]
]


class Model(nn.Module):
    """A module with parameters, buffers that it writes to, random numbers, a constant, and results that are views."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.linear, self.norm, self.dropout = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()
        self.register_buffer("count", torch.zeros(()))
        self.scale = torch.arange(4.0)

    def forward(self, x: Tensor) -> Any:
        self.count.add_(1)
        y = self.dropout(self.linear(self.norm(x)).relu()) * torch.tensor([1.0, 2.0, 3.0, 4.0]) + self.scale
        return y.view(-1, 2), x.t(), x


def resized(x: Tensor) -> Tensor:
    return (x * x.shape[0]).sin().reshape(-1, 2).sum(0)


def half(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return torch.mm(x, x).relu()


def _cases() -> Iterator[tuple[str, Callable[..., Any], Callable[[], Any], nn.Module | None]]:
    for name in NAMES:
        program = PROGRAMS[name]
        for requires_grad in program.with_gradients:
            yield f"{name} {requires_grad}", program.build(), (lambda p=program, r=requires_grad: p.make(r)), None
    model = Model()
    yield "model", model, lambda: ([], [torch.randn(6, 4)]), model

    def square() -> Any:
        x = torch.arange(16.0).view(4, 4).requires_grad_()
        return [x], [x]

    yield "resized", resized, square, None
    yield "half", half, square, None


def report(folder: str, backend: str = "aot_eager") -> dict[str, dict[str, int]]:
    """What the cache counted for each program. Raises AssertionError where a program differs from eager mode."""
    found: dict[str, dict[str, int]] = {}
    for dynamic in (False, True):
        for name, function, make, module in _cases():
            if dynamic and "storage" in name:
                continue
            state = None if module is None else {key: value.clone() for key, value in module.state_dict().items()}
            expected = observe(function, make, module=module)
            if module is not None and state is not None:
                module.load_state_dict(state)
                module.zero_grad()
            refimpl.reset()
            with aot_settings(enable_autograd_cache=True, autograd_cache_folder=folder):
                run = refimpl.compile(function, backend=backend, dynamic=dynamic)
                actual, counts = counted(lambda run=run, make=make, module=module: observe(run, make, module=module))
            assert_same_or_more(expected, actual, what=f"{name}, dynamic={dynamic}: ")
            found[f"{name} {'dynamic' if dynamic else 'static'}"] = counts
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(report(*sys.argv[1:])))
