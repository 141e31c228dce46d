"""Warms up the compiler once, in the process that workers are forked from.

Registering lowerings and decompositions, tracing patterns and filling caches takes seconds in each process's first program; with
ten processes per worker, Inductor would spend the first minute of a campaign on it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import torch

TRIAL_S = 150.0  # limit of a trial, which calls the C++ compiler
_ENDED_WELL = 0


def inductor() -> None:
    _warm("inductor")
    _hash_sources()


def aot_eager() -> None:
    _warm("aot_eager")


def _warm(backend: str) -> None:
    """Compile and run a few operations with `backend`, if a forked process did the same without harm.

    It does nothing on a machine with an accelerator, since autograd's threads for it do not survive a fork.
    """
    if torch.accelerator.is_available() or not _ends_well(lambda: _compile(backend)):
        return
    with contextlib.suppress(Exception):  # an error is ignored: programs will show it
        _compile(backend)
    torch._dynamo.reset()


def _hash_sources() -> None:
    """Compute the hash of Inductor's sources, which its caches need; the programs below run without caches."""
    key: Any = getattr(importlib.import_module("torch._inductor.codecache"), "torch_key", None)
    if key is not None:
        key()


def _ends_well(action: Callable[[], None]) -> bool:
    """Run the action in a forked child, which may crash or hang. Returns whether it ended well."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(_ENDED_WELL)
        finally:
            os._exit(1)
    deadline = time.monotonic() + TRIAL_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status) == _ENDED_WELL
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def _compile(backend: str) -> None:
    """Compile a program with a matrix product, reductions, views, a write and a random number, and its backward."""
    inductor_config: Any = importlib.import_module("torch._inductor.config")
    functorch_config: Any = importlib.import_module("torch._functorch.config")
    random_state = torch.get_rng_state()
    try:
        # With caches on, this process would load the trial's results and not warm up.
        with inductor_config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
            x = torch.arange(16.0).reshape(4, 4).requires_grad_()
            torch.compile(_program, backend=backend)(x, torch.ones(4)).sum().backward()
    finally:
        torch.set_rng_state(random_state)


def _program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.softmax(x @ x.t() + y, dim=-1)
    y.add_(1)
    noise = torch.nn.functional.dropout(z, 0.5)
    return torch.cat([z.view(-1), noise.transpose(0, 1).reshape(-1)]) * y.mean()
