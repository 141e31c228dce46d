"""The simulated night: simple cases have the end that arithmetic gives, and lost devices lose no case."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.measurements.scale import Layout, Night, fixed, run_of, shared, simulate

CERTAIN = Night(devices=10, cases=4000, losses_per_hour=1e-12, hangs=0.0, start_s=5.0, plan_s=7.0)


@pytest.mark.parametrize("sizes", [fixed(40), shared])
def test_equal_cases_on_devices_that_stay_end_when_arithmetic_says(sizes) -> None:
    one = run_of(CERTAIN, np.full(4000, 0.5), 10, sizes, np.random.default_rng(0))
    assert one.end_s == pytest.approx(5.0 + 4000 * 0.5 / (10 * 4), rel=0.02)  # a share need not be a multiple of four
    assert (one.lost, one.again_s) == (0, 0)


def test_one_long_batch_keeps_the_others_waiting() -> None:
    one = run_of(CERTAIN, np.full(4000, 0.5), 10, fixed(4000), np.random.default_rng(0))
    assert one.end_s == pytest.approx(5.0 + 4000 * 0.5 / 4)
    assert one.tail_s == pytest.approx(4000 * 0.5 / 4)


def test_what_lost_devices_had_is_run_again_and_all_work_is_done() -> None:
    night = Night(losses_per_hour=30.0, back_after_s=60.0)
    one = run_of(night, np.full(4000, 5.0), 10, fixed(40), np.random.default_rng(0))
    assert one.lost > 5
    assert one.again_s > 0
    least = 4000 * 5.0 / (10 * 4)
    assert least + one.again_s / 10 < one.end_s - night.start_s < 2 * least + 600


def test_hangs_run_again_at_once_on_each_device_or_in_turn() -> None:
    night = Night(devices=10, cases=4000, losses_per_hour=1e-12, hangs=0.005)
    at_once = simulate(night, Layout(runs=1, at_once=1, sizes=shared, batches=""))
    in_turn = simulate(night, Layout(runs=1, at_once=1, sizes=shared, batches="", is_alone_in_turn=True))
    assert at_once.alone_minutes in (6, 12, 18, 24)
    assert in_turn.alone_minutes > 5 * at_once.alone_minutes
    assert in_turn.hours > at_once.hours
