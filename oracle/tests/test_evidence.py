"""Leaves of eager's further runs, which of these count, and what a builder of findings adds up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from oracle.judge import Evidence, Runs, judge
from oracle.judge.evidence import LeavesOfRuns, Place, no_leaves
from oracle.judge.findings import GRADIENTS, OUTPUTS, FindingsBuilder
from oracle.observe.outcome import Crashed, Outcome, OutOfMemory, TimedOut
from oracle.tests.outcomes import judged, observation, raised, returned, returned_calls
from oracle.verdict import BiasSum, Compared, Status


def calls(*numbers: float, rng: str = "") -> Outcome:
    """Calls that each return one number. `rng` is a letter for the state that each leaves."""
    states = rng or "a" * len(numbers)
    return returned_calls(
        *(observation(torch.tensor([number]), rng=state) for number, state in zip(numbers, states, strict=True))
    )


def at(call: int) -> Place:
    return call, OUTPUTS, "output"


SINGLE: dict[str, Callable[[Outcome], Runs]] = {
    "truth": lambda run: Runs(truth=lambda: run),
    "still": lambda run: Runs(still=lambda: run),
    "other_seed": lambda run: Runs(other_seed=lambda: run),
}
SEVERAL: dict[str, Callable[[Outcome], Runs]] = {
    "noise": lambda run: Runs(noise=lambda: [run]),
    "loud_noise": lambda run: Runs(loud_noise=lambda: [run]),
    "few_seeds": lambda run: Runs(few_seeds=lambda: [run]),
    "many_seeds": lambda run: Runs(many_seeds=lambda: [run]),
    "other_kernels": lambda run: Runs(other_kernels=lambda name: run if name == "vector loops" else None),
}


def found(name: str, run: Outcome, call: int, like: Outcome | None) -> list[float]:
    leaves = LeavesOfRuns({**SINGLE, **SEVERAL}[name](run), like=like)
    result: Any = getattr(leaves, name)(at(call))
    several = ([] if result is None else [result]) if name in SINGLE else [*result]
    return [leaf.value.item() for leaf in several]


@pytest.mark.parametrize("name", [*SINGLE, *SEVERAL])
def test_a_leaf_is_that_of_its_call_and_path(name: str) -> None:
    run = calls(3.0, 4.0)
    assert found(name, run, 0, None) == [3.0]
    assert found(name, run, 1, None) == [4.0]
    assert found(name, run, 2, None) == []


@pytest.mark.parametrize("name", [*SINGLE, *SEVERAL])
def test_a_run_that_drew_other_numbers_says_nothing_unless_it_has_another_seed(name: str) -> None:
    """This holds from the first call on that leaves another state of the generator."""
    like, run = calls(1.0, 2.0, 3.0, rng="abc"), calls(4.0, 5.0, 6.0, rng="axc")
    says_all = "seed" in name
    assert [found(name, run, call, like) for call in range(3)] == [[4.0], *([[5.0], [6.0]] if says_all else [[], []])]
    assert [found(name, run, call, None) for call in range(3)] == [[4.0], [5.0], [6.0]]


def test_a_run_of_more_or_fewer_calls_says_what_it_did_in_the_same_calls() -> None:
    like = calls(1.0, 2.0)
    assert [found("truth", calls(4.0), call, like) for call in range(2)] == [[4.0], []]
    assert [found("truth", calls(4.0, 5.0, 6.0), call, like) for call in range(3)] == [[4.0], [5.0], []]


@pytest.mark.parametrize(
    "run",
    [
        Crashed(signal=11, exit_code=None, stage="call", traceback=""),
        TimedOut(seconds=1.0, stage="call", traceback=""),
        OutOfMemory(bytes=1, stage="call"),
    ],
)
def test_a_run_that_never_came_back_has_no_leaves(run: Outcome) -> None:
    assert found("noise", run, 0, None) == []
    assert found("truth", run, 0, calls(1.0)) == []


def test_a_run_that_raised_has_the_leaves_of_the_calls_before() -> None:
    run = raised(ValueError("x"), call=1, calls=(observation(torch.tensor([4.0])),))
    assert [found("noise", run, call, None) for call in range(2)] == [[4.0], []]


def test_every_run_starts_once_and_only_when_it_is_asked_for() -> None:
    started: list[str] = []

    def start(name: str, result: Any) -> Callable[..., Any]:
        return lambda *args: (started.append(" ".join([name, *args])), result)[1]

    run = calls(1.0, 2.0)
    several = {name: start(name, [run]) for name in ("noise", "loud_noise", "few_seeds", "many_seeds")}
    single = {name: start(name, run) for name in ("truth", "still", "other_seed", "other_kernels")}
    leaves = LeavesOfRuns(Runs(**several, **single))
    assert started == []
    for name in (*several, *single):
        for call in (0, 1, 0):
            result: Any = getattr(leaves, name)(at(call))
            assert [*result] if name in several or name == "other_kernels" else result
    assert started == [
        "noise", "loud_noise", "few_seeds", "many_seeds", "truth", "still", "other_seed",
        "other_kernels other kernels", "other_kernels vector loops",
    ]  # fmt: skip
    gradients = [*leaves.other_kernels((0, GRADIENTS, "output"))]
    assert gradients == []
    assert started[-1] == "other_kernels scalar loops"


def test_without_runs_there_are_no_leaves() -> None:
    leaves = no_leaves()
    assert leaves.truth(at(0)) is leaves.still(at(0)) is leaves.other_seed(at(0)) is None
    for several in (leaves.noise, leaves.loud_noise, leaves.other_kernels, leaves.few_seeds, leaves.many_seeds):
        assert [*several(at(0))] == []


def test_a_program_promises_nothing_unless_it_says_so() -> None:
    error = raised(ValueError("x"))
    assert judge(Evidence(eager=error, again=error, subject=error)).status is Status.EAGER_FAIL_TO_RUN
    one, other = calls(1.0, rng="a"), calls(1.0, rng="b")
    assert judge(Evidence(eager=one, again=one, subject=other, is_random=True)).status is Status.FAIL_RNG
    assert judge(Evidence(eager=one, again=one, subject=other)).status is Status.FAIL_RNG
    assert judge(Evidence(eager=one, again=calls(2.0), subject=one)).status is Status.EAGER_TWO_RUNS_DIFFER


# --------------------------------------------------------------------------------------------------------------- the builder


def bias(subject: float) -> BiasSum:
    return BiasSum(dtype="float32", eps=2.0**-23, tensors=1, weight=10, subject=subject, eager=0.0, variance=1.0)


def test_a_builder_takes_the_counts_of_attempts() -> None:
    builder = FindingsBuilder(bias=[bias(1.0)])
    builder.count(tensors=1, elements=5, witnesses={"bits": 5})
    for number in (2.0, 3.0):
        attempt = FindingsBuilder(bias=[bias(number)], produced=4)
        attempt.count(tensors=1, elements=4, others=2, unstable=1, witnesses={"bits": 3, "noise": 1})
        builder.take_counts(attempt)
    assert builder.compared == Compared(tensors=3, elements=13, others=4, unstable_elements=2)
    assert dict(builder.witnesses) == {"bits": 11, "noise": 2}
    assert builder.produced == 8
    assert [one.subject for one in builder.bias] == [1.0, 2.0, 3.0]
    assert builder.findings == []


@pytest.mark.parametrize(
    ("seen", "expected"), [([], None), ([None], None), ([0.0], 0.0), ([1.0, 3.0, None, 2.0], 3.0), ([None, 2.0], 2.0)]
)
def test_a_builder_keeps_the_largest_distance(seen: list[float | None], expected: float | None) -> None:
    builder = FindingsBuilder()
    for ulp in seen:
        builder.saw_ulp(ulp)
    assert builder.max_ulp == expected


@pytest.mark.parametrize(
    ("eager", "subject"), [(1.0, torch.tensor(1.0)), (torch.tensor(1.0), 1.0), (None, torch.ones(2))]
)
def test_a_python_value_beside_a_tensor_has_no_metadata_to_compare(eager: Any, subject: Any) -> None:
    x = torch.ones(2)
    verdict = judged(returned(x, eager), returned(x, subject))
    assert verdict.status is Status.FAIL_METADATA
    assert any("call 0: output[1] is " in text for text in (verdict.symptom, *verdict.also))
