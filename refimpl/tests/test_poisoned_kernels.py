"""A wrong Python kernel of torch changes no value of what refimpl makes; and the poison that shows it is seen."""

from __future__ import annotations

import csv
import functools
from collections import defaultdict
from typing import Any

import pytest
import torch

import refimpl
from refimpl._torch import FakeTensorMode
from refimpl.tests.poisoned_kernels import (
    CHANGES,
    COLUMNS,
    GRAPH,
    HANDLERS,
    METADATA,
    NOT_REACHED,
    NOTHING,
    REFUSED,
    TABLE,
    VALUES,
    Poison,
    PoisonedKernelError,
    Way,
    Work,
    as_it_is,
    in_child,
    kernels,
    outcomes,
    poisoned,
    reach,
    replaced,
    works,
)

MM = "_meta_registrations.meta_mm"
ARANGE = "_refs.arange"
EVERY_KERNEL = 25  # of the reached meta kernels, these many in the quick sample


@functools.cache
def _rows() -> dict[str, list[dict[str, str]]]:
    """The rows of each kernel that is reached."""
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    with TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["changed"] != NOT_REACHED:
                found[row["kernel"]].append(row)
    return found


@functools.cache
def _works() -> dict[tuple[str, str], Work]:
    return {work.name: work for work in works()}


META = [name for name, rows in _rows().items() if rows[0]["part"] == "meta kernels"]
QUICK = META[::EVERY_KERNEL]


def _again(kernel: str) -> list[dict[str, str]]:
    """The kernel's rows, measured again in a child process."""
    names = dict.fromkeys((row["way"], row["program"]) for row in _rows()[kernel])

    def measure() -> list[tuple[Any, ...]]:
        torch.set_num_threads(1)  # a forked process must not wait for threads of its parent
        chosen = [(work, plain) for name in names if (plain := reach(work := _works()[name])) is not None]
        return outcomes(kernel, chosen)

    return [dict(zip(COLUMNS, map(str, row), strict=True)) for row in in_child(measure)]


@pytest.mark.parametrize(
    "kernel", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in _rows()]
)
def test_a_wrong_kernel_of_torch_changes_no_value(kernel: str) -> None:
    assert kernel in kernels()
    found = _again(kernel)
    assert found
    assert [row for row in found if row["changed"] not in CHANGES or row["changed"] == VALUES] == []
    assert all(int(row["calls"]) > 0 for row in found)


def _work(function: Any, way: Way, *shapes: tuple[int, ...]) -> Work:
    return Work(way=way, program="own", build=lambda: (function, lambda: ([], [torch.ones(shape) for shape in shapes])))


@pytest.mark.parametrize("way", ["fake trace", "symbolic trace"])
@pytest.mark.parametrize(
    ("poison", "changed"),
    [("raises", (REFUSED, REFUSED)), ("shape", (NOTHING, REFUSED)), ("dtype", (NOTHING, REFUSED))],
)
def test_the_operator_itself_says_that_a_kernel_is_wrong(poison: Poison, changed: tuple[str, str], way: Way) -> None:
    """With static sizes the trace takes shape and dtype from the operator's result. None of its sizes can become a symbol."""
    work = _work(lambda a, b: a[:, :1] * (a @ b).shape[1], way, (2, 3), (3, 4))
    plain = reach(work)
    assert plain is not None
    assert MM in plain.kernels
    outcome = poisoned(work, MM, poison, plain)
    assert (outcome.calls, outcome.changed) == (1, changed[way == "symbolic trace"])
    assert ("PoisonedKernelError" in outcome.error) == (poison == "raises")
    assert ("WrongFakeKernel" in outcome.error) == (poison != "raises" and way == "symbolic trace")


def test_values_that_a_poison_changes_are_seen() -> None:
    """No kernel is asked what has no tensor among its operands, so its wrong shape goes on."""
    work = _work(lambda a: a * torch.arange(3).shape[0], "fake trace", (2,))
    plain = reach(work)
    assert plain is not None
    assert poisoned(work, ARANGE, "shape", plain).changed == VALUES
    assert poisoned(work, ARANGE, "dtype", plain).changed == METADATA


def test_kernels_are_back_afterwards_and_poison_is_in_no_cache() -> None:
    code = kernels()[MM].function.__code__
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    with replaced({MM: HANDLERS["shape"]}), FakeTensorMode() as mode:
        assert (mode.from_tensor(a) @ mode.from_tensor(b)).shape == (2, 5)
    with replaced({MM: HANDLERS["raises"]}), pytest.raises(PoisonedKernelError, match="meta_mm"):
        refimpl.make_fx(torch.mm, tracing_mode="fake")(a, b)
    assert kernels()[MM].function.__code__ is code
    node = refimpl.make_fx(torch.mm, tracing_mode="fake")(a, b).graph.find_nodes(
        op="call_function", target=torch.ops.aten.mm.default
    )[0]
    assert node.meta["val"].shape == (2, 4)


def test_kernels_of_every_part_are_known_and_run_as_before_when_only_watched() -> None:
    assert {kernel.part for kernel in kernels().values()} == {
        "Python decompositions",
        "Python references",
        "meta kernels",
    }
    assert len(kernels()) > 600
    with replaced(dict.fromkeys(kernels(), as_it_is)) as calls, FakeTensorMode() as mode:
        assert mode.from_tensor(torch.ones(2, 3)).cumsum(0).shape == (2, 3)
        assert mode.from_tensor(torch.ones(2, 3)).mm(torch.ones(3, 4, device="cpu")).shape == (2, 4)
    assert calls[MM] == 1


def test_the_table_is_of_these_kernels() -> None:
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["changed"] for row in rows} <= {*CHANGES, NOT_REACHED}
    assert GRAPH in {row["changed"] for row in rows}
    assert len(QUICK) >= 4
