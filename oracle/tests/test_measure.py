"""Speed is measured in pairs, and an interval says how much to believe."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from oracle.measure import Speed, interleaved, summarise


class Clock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def work(self, name: str, seconds: float) -> None:
        self.calls.append(name)
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def test_the_speedup_is_eager_over_subject() -> None:
    clock = Clock()
    speed = interleaved(
        lambda: clock.work("eager", 0.3), lambda: clock.work("subject", 0.1), budget_s=4.0, max_pairs=100, clock=clock
    )
    assert speed.eager_s == pytest.approx(0.3)
    assert speed.subject_s == pytest.approx(0.1)
    assert (speed.speedup_low, speed.speedup, speed.speedup_high) == pytest.approx((3.0, 3.0, 3.0))
    assert speed.repeats in (10, 11)  # the budget


def test_the_order_alternates() -> None:
    clock = Clock()
    interleaved(lambda: clock.work("A", 1.0), lambda: clock.work("B", 1.0), budget_s=9.0, max_pairs=3, clock=clock)
    assert clock.calls == ["A", "B", "B", "A", "A", "B"]


def test_the_number_of_pairs_is_bounded_both_ways() -> None:
    clock = Clock()

    def run(**limits: float) -> int:
        return interleaved(lambda: clock.work("A", 1.0), lambda: clock.work("B", 1.0), clock=clock, **limits).repeats  # pyright: ignore

    assert run(budget_s=0.0) == 3
    assert run(budget_s=1e9, max_pairs=7) == 7
    with pytest.raises(ValueError, match="min_pairs"):
        run(max_pairs=0)


def test_drift_of_the_machine_cancels() -> None:
    clock = Clock()

    def work() -> None:
        clock.work("", 1.0 + 0.05 * len(clock.calls))  # every call slower than the one before

    speed = interleaved(work, work, budget_s=1e9, max_pairs=40, clock=clock)
    assert speed.speedup_low <= 1.0 <= speed.speedup_high
    assert speed.speedup == pytest.approx(1.0, abs=0.03)


def test_noise_is_not_a_speedup_and_a_real_one_is() -> None:
    generator = np.random.default_rng(0)
    times = list(generator.lognormal(0.0, 0.2, 60))
    noise = summarise(times, list(generator.lognormal(0.0, 0.2, 60)))
    assert noise.speedup_low <= 1.0 <= noise.speedup_high
    speed = summarise(times, list(generator.lognormal(-0.5, 0.2, 60)))
    assert 1.0 < speed.speedup_low < np.exp(0.5) < speed.speedup_high
    assert speed.speedup_low <= speed.speedup <= speed.speedup_high


def test_the_interval_is_reproducible_and_draws_from_no_global_generator() -> None:
    states = np.random.get_state()[1].tobytes(), random.getstate(), torch.get_rng_state()  # pyright: ignore
    first = summarise([1.0, 2.0, 3.0, 1.5], [1.0, 1.0, 2.0, 1.0], seed=1)
    assert first == summarise([1.0, 2.0, 3.0, 1.5], [1.0, 1.0, 2.0, 1.0], seed=1)
    assert isinstance(first, Speed)
    assert states[0] == np.random.get_state()[1].tobytes()  # pyright: ignore
    assert states[1] == random.getstate()
    assert states[2].equal(torch.get_rng_state())


def test_the_device_is_waited_for_within_the_measured_time() -> None:
    clock = Clock()
    speed = interleaved(
        lambda: None, lambda: None, sync=lambda: clock.work("sync", 0.5), budget_s=9.0, max_pairs=4, clock=clock
    )
    assert (speed.eager_s, speed.subject_s) == (0.5, 0.5)


def test_exceptions_of_the_subject_propagate() -> None:
    with pytest.raises(ZeroDivisionError):
        interleaved(lambda: None, lambda: 1 / 0, budget_s=0.1)


PEAKS = """
import torch
from oracle.measure import peak_memory
print(peak_memory(lambda: torch.ones(64 << 20, dtype=torch.uint8)))
print(peak_memory(lambda: None))
"""


def test_peak_memory_sees_what_is_freed_again(run_fresh: Callable[..., Any]) -> None:
    """The measurement has a process of its own: here it could use memory that earlier tests freed, which would not count."""
    done = run_fresh(PEAKS)
    assert done.returncode == 0, done.stderr
    allocating, nothing = (None if line == "None" else int(line) for line in done.stdout.split())
    assert allocating is None or 60 << 20 <= allocating < 200 << 20
    assert nothing is None or nothing < 8 << 20
