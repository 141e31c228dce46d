"""Subjects that go wrong on purpose, and one that does not: what the fault drill runs. Each is a torch.compile backend."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

Backend = Callable[..., Any]


def good(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Backend:
    return gm.forward


def wrong(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Backend:
    """Adds one to the first float of every result."""

    def run(*args: Any) -> tuple[Any, ...]:
        outputs = list(gm.forward(*args))
        for i, output in enumerate(outputs):
            if isinstance(output, torch.Tensor) and output.is_floating_point() and output.numel():
                outputs[i] = output.detach().clone()
                outputs[i].view(-1)[0] += 1
        return tuple(outputs)

    return run


def segfault(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Backend:
    return lambda *args: ctypes.string_at(0)


def exits(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Backend:
    os._exit(7)


def aborts(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Backend:
    os.abort()


def hangs(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Backend:
    time.sleep(3600)
    return gm.forward


def slow(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Backend:
    time.sleep(1.0)
    return gm.forward


def eats_memory(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Backend:
    held = []
    while True:
        held.append(torch.ones(16 * 2**20))  # 64 MiB a step, touched
        time.sleep(0.005)


def leaks_state(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Backend:
    def run(*args: Any) -> Any:
        outputs = gm.forward(*args)
        # At run time: what a backend changes while it compiles, Dynamo puts back.
        torch.set_default_dtype(torch.float64)
        return outputs

    return run


def overflows_the_stack(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Backend:
    def down(n: int) -> int:
        return max(map(down, (n + 1,)))  # through C, which the recursion limit alone does not stop

    sys.setrecursionlimit(10**8)
    down(0)
    return gm.forward


def raises(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Backend:
    raise NotImplementedError("no such operator")


not_callable = 3


def returns_a_number(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> int:
    return 3
