"""What a verdict costs: `python -m oracle.benchmarks.judge_cost`, one thread, medians in microseconds or milliseconds.

The bounds are what a sweep of 20 000 cases can afford beside compiles of about 40 ms.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from oracle.judge import Evidence, Runs, judge
from oracle.judge.values import compare_values
from oracle.observe.outcome import Outcome
from oracle.tests.outcomes import observation, returned, returned_calls


def median_seconds(run: Callable[[], object], *, repeats: int) -> float:
    run()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def verdict(eager: Outcome, subject: Outcome, truth: Outcome | None = None) -> None:
    judge(Evidence(eager=eager, again=eager, subject=subject, runs=Runs(truth=lambda: truth)))


def cases() -> list[tuple[str, Callable[[], object], int, float]]:
    """(what, run, repeats, bound in seconds)"""
    small = torch.randn(10)
    near = torch.nextafter(small, torch.tensor(9.0))
    one = returned(small, args=(small + 1,))
    model = [torch.randn(64) for _ in range(200)]
    state = {f"weight{number}": weight for number, weight in enumerate(model)}
    whole = returned_calls(observation(small, state=state, gradients=state))
    large = torch.randn(10_000_000)
    rounded = large * (1 + 2**-23)
    broken = rounded.clone()
    broken[1_234_567] += 3
    wide = returned(large.double())
    return [
        ("two equal tensors of 10 elements", partial(compare_values, small, small.clone()), 2000, 100e-6),
        ("two close tensors of 10 elements", partial(compare_values, small, near), 500, 1e-3),
        (
            "a case of one output and one argument",
            partial(verdict, one, returned(small.clone(), args=(small + 1,))),
            1000,
            1e-3,
        ),
        ("the same with an output that is close", partial(verdict, one, returned(near, args=(small + 1,))), 500, 2e-3),
        ("a model of 200 parameters with gradients", partial(verdict, whole, whole), 20, 50e-3),
        ("10 million equal floats", partial(verdict, returned(large), returned(large.clone())), 3, 1.0),
        ("10 million close floats", partial(verdict, returned(large), returned(rounded)), 3, 5.0),
        ("10 million floats, one wrong", partial(verdict, returned(large), returned(broken), wide), 3, 10.0),
    ]


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    is_slow = False
    for what, run, repeats, bound in cases():
        seconds = median_seconds(run, repeats=repeats)
        is_slow |= seconds > bound
        print(
            f"{what:<45} {seconds * 1e6:>12.1f} us   bound {bound * 1e6:>12.1f} us{'   TOO SLOW' * (seconds > bound)}"
        )
    return int(is_slow)


if __name__ == "__main__":
    sys.exit(main())
