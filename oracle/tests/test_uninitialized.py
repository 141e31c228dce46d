"""Memory that nobody has written holds what was chosen; results that depend on it are not taken for wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.program import Call, Program
from oracle.program.build import instantiate
from oracle.reruns.uninitialized import IS_CHOSEN, LARGE, ZEROS, uninitialized_memory
from oracle.subjects.registry import load, of_callable, resolve
from oracle.verdict import Status

pytestmark = pytest.mark.skipif(not IS_CHOSEN, reason="only glibc's allocator fills memory when it is told to")

# An offset that overlaps: each row of the queries is the row before it, moved by one. The kernel leaves a part unwritten.
ATTENTION = (
    "def inputs(call):\n"
    "    return (torch.randn(2000).as_strided((2, 1, 16, 16), (1, 1, 1, 1)), torch.randn(2, 1, 5, 16)), {}\n"
    "def program(q, k):\n"
    "    return torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, scale=1.0)\n"
)


def statuses(source: str, *calls: Call, runs: int) -> set[Status]:
    found = set()
    for seed in range(runs):
        program = Program(name="t", source="import torch\n" + source, calls=calls or (Call(),), seed=seed)
        state = EagerState(make=lambda program=program: instantiate(program))
        found.add(judge_subject(eager=state, subject=load(resolve("eager")), options=CaseOptions()).verdict.status)
    return found


@pytest.mark.parametrize("size", [1, 16, 100, 1000, 5000, 10**5, 10**6])
def test_new_memory_holds_what_was_chosen(size: int) -> None:
    for byte, value in ((ZEROS, 0), (LARGE, 0x7F)):
        with uninitialized_memory(byte):
            blocks = [torch.empty(size, dtype=torch.uint8) for _ in range(100)]
        holding = sum(block.unique().tolist() == [value] for block in blocks)
        # a thread keeps a few small blocks that it has freed, and is given them again as they are
        assert holding == 100 if size > 1032 else holding > 50


def test_what_reads_uninitialized_memory_differs_between_eagers_two_runs_every_time() -> None:
    assert statuses("def program(): return torch.empty(5000) * 2\n", runs=30) == {Status.EAGER_TWO_RUNS_DIFFER}


def test_a_kernel_that_leaves_memory_unwritten_is_told_every_time() -> None:
    found = statuses(ATTENTION, runs=8)
    assert found in (
        {Status.EAGER_TWO_RUNS_DIFFER},
        {Status.PASS},
    )  # PASS where the kernel of this processor writes it all


def test_a_result_that_hides_the_memory_is_judged() -> None:
    assert statuses(
        "def program(): return torch.empty(5000).zero_() + torch.empty(5000).isnan().logical_not()\n", runs=3
    ) == {Status.PASS}


def test_a_subject_that_leaves_a_part_of_its_result_unwritten_is_found_whatever_was_there_before() -> None:
    def zeros_but_not_all(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            (result,) = gm.forward(*args)
            found = torch.empty_like(result)
            found[:-1] = result[:-1]
            return (found,)

        return run

    for seed in range(5):
        torch.zeros(1000)  # freed: what is found there next is often right
        source = "import torch\ndef program(x): return x * 0\ndef inputs(call): return (torch.ones(1000),), {}\n"
        program = Program(name="t", source=source, seed=seed)
        state = EagerState(make=lambda program=program: instantiate(program))
        verdict = judge_subject(eager=state, subject=of_callable(zeros_but_not_all), options=CaseOptions()).verdict
        assert verdict.status is Status.FAIL_ACCURACY, verdict
