"""Time of training while `oracle.watch` judges some of its calls, beside the same training alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

import oracle
from benchmarks.harness import Case, Figures, Side, benchmark, stopwatch

_WIDTH = 256


def _train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(64, _WIDTH)).square().mean().backward()
        optimizer.step()


def _model() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Dropout(0.1))]
    return nn.Sequential(*layers, nn.Linear(_WIDTH, 1))


def _alone(steps: int) -> Figures:
    model, began = _model(), time.process_time()
    with stopwatch() as found:
        _train(model, steps)
    found["alone_cpu_s"] = time.process_time() - began
    return found


def _watched(steps: int, every: int, subject: str) -> Figures:
    """Only the training is timed: the wait for the last child comes once, at the end."""
    model = _model()
    with oracle.watch(model, every=every, subject=subject) as watching:
        cpu_s = time.process_time()
        with stopwatch() as found:
            _train(model, steps)
        found["watched_cpu_s"] = time.process_time() - cpu_s
        began = time.perf_counter()
    found["wait_s"] = time.perf_counter() - began
    judged = watching.verdicts.total()
    found.update(judged=judged, skipped=watching.skipped, errors=len(watching.errors))
    found["delay_ms"] = 1e3 * watching.delay_s / max(1, judged)
    return found


def _ratio(found: Mapping[str, Any]) -> dict[str, float]:
    """CPU time of the training process itself, which does not depend on other load, watched over alone."""
    return {"own_cpu_ratio": found["watched_cpu_s"] / found["alone_cpu_s"]}


@benchmark(repeat=5, warm_up="first")
def watching(steps: int = 1000, subject: str = "inductor") -> Iterator[Case]:
    """Training of a small model, watched and alone; the wall time includes what the children take from the machine."""
    for every in (10, 100):

        def sides(every: int = every) -> dict[str, Side]:
            return {"watched": lambda: _watched(steps, every, subject), "alone": lambda: _alone(steps)}

        yield Case(f"every {every}, {subject}", sides, derive=_ratio)
