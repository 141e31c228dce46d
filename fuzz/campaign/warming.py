"""What a compiler does once in a process, done once for all workers: they are forked from the process that did it.

Registering lowerings and decompositions, tracing patterns, filling caches takes seconds of the first program of each process;
Inductor's ten processes a worker would spend the first minute of a campaign on it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import torch

TRIAL_S = 150.0  # of a trial, which calls the C++ compiler
_ENDED_WELL = 0


def inductor() -> None:
    _warm("inductor")
    _hash_sources()


def aot_eager() -> None:
    _warm("aot_eager")


def _warm(backend: str) -> None:
    """Compile and run a few operations by `backend`, where a forked process tried that and came to no harm.

    Nothing happens on a machine with an accelerator: autograd's threads for it do not survive a fork.
    """
    if torch.accelerator.is_available() or not _ends_well(lambda: _compile(backend)):
        return
    with contextlib.suppress(Exception):  # whatever it is, programs will show it
        _compile(backend)
    torch._dynamo.reset()


def _hash_sources() -> None:
    """Inductor's caches ask for a hash of its own sources, which it remembers. No program of the warming up has any cache."""
    key: Any = getattr(importlib.import_module("torch._inductor.codecache"), "torch_key", None)
    if key is not None:
        key()


def _ends_well(action: Callable[[], None]) -> bool:
    """Whether the action returns, in a child: it may crash or hang, and then it shall not be this process."""
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
    """Forward and backward, a matrix product, reductions, views, a write, a random number."""
    inductor_config: Any = importlib.import_module("torch._inductor.config")
    functorch_config: Any = importlib.import_module("torch._functorch.config")
    random_state = torch.get_rng_state()
    try:
        # With their caches on, a process loads what the trial made, and does nothing of what it is to have done.
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
