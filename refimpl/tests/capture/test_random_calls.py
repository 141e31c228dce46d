"""Tests of Python's `random` in captured code: one graph, with the numbers of eager mode and the same state afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import refimpl
from refimpl.capture.public.errors import Unsupported
from refimpl.tests.capture.capturing import IN_EVERY_MODE, MODES, captured_with, each_of, same

NUMBERS = [1, 2.5, 3]
GENERATOR = random.Random(3)


def scaled(x: Any) -> Any:
    return x * random.random() + random.randint(1, 5), random.uniform(2, 3)


def seeded(x: Any) -> Any:
    random.seed(4)
    return x * random.random(), random.randint(0, 5)


def unused(x: Any) -> Any:
    random.random()
    y = x * random.gauss(0, 1)
    random.randrange(7)
    return y


def in_a_loop(x: Any) -> Any:
    for _ in range(3):
        x = x + random.random()
    return x


def of_integers(x: Any) -> Any:
    return x.long() * random.random(), x.long() + random.getrandbits(10)


def indexed(x: Any) -> Any:
    return x[random.randint(0, 1)] * 2, x[:, random.randrange(2)]


def only_numbers(x: Any) -> Any:
    return random.random(), random.randint(1, 3)


WHOLE = (scaled, seeded, unused, in_a_loop, of_integers, indexed, only_numbers)


def branches(x: Any) -> Any:
    return (x + 1 if random.random() < 0.5 else x * 2) * random.random()


def as_a_size(x: Any) -> Any:
    return torch.zeros(random.randint(1, 4)) + x[0, 0]


def between_breaks(x: Any) -> Any:
    y = x * random.random()
    print(end="")
    return y * random.random(), f"{random.random():.3f}"


def chosen(x: Any) -> Any:
    return x * random.choice(NUMBERS), random.sample(range(10), 3), x * random.choice([True, False])


def shuffled(x: Any) -> Any:
    items = [1, 2, 3, 4]
    random.shuffle(items)
    return x * items[0], items


def restored(x: Any) -> Any:
    state = random.getstate()
    y = x * random.random()
    random.setstate(state)
    return y * random.random()


def of_another_generator(x: Any) -> Any:
    return x * GENERATOR.random() + GENERATOR.randint(1, 3)


def in_a_branch(x: Any) -> Any:
    return torch.cond(x.sum() > 1, lambda a: a * random.random(), lambda a: a + 1, (x,))


def in_vmap(x: Any) -> Any:
    return torch.vmap(lambda row: row * random.random())(x)


def large(x: Any) -> Any:
    return x, random.getrandbits(64), random.randint(0, 2**64)


BREAKING = (branches, as_a_size, between_breaks, chosen, shuffled, restored, of_another_generator, in_vmap, large)


def seen(function: Callable[..., Any], seed: int) -> Any:
    random.seed(seed)
    GENERATOR.seed(seed)
    leaf = torch.ones(2, 2, requires_grad=True)
    result = function(leaf)
    tensors = result if isinstance(result, tuple) else (result,)
    totals = [each.sum() for each in tensors if isinstance(each, torch.Tensor) and each.requires_grad]
    gradient = torch.autograd.grad(sum(totals, torch.zeros(())), leaf) if totals else ()
    return result, gradient, random.getstate(), GENERATOR.getstate()


@pytest.mark.fractional
@each_of(*WHOLE)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_numbers_are_inputs_of_one_graph(program: Callable[..., Any], backend: str) -> None:
    captured = refimpl.compile(program, backend=backend, fullgraph=True)
    for seed in range(3):
        assert same(seen(captured, seed), seen(program, seed))


@each_of(*WHOLE)
def test_one_graph_serves_all_numbers(program: Callable[..., Any]) -> None:
    captured, recorder, options = captured_with(program)
    for seed in range(3):
        seen(captured, seed)
    assert len(recorder.graphs) == 1
    assert not options.breaks


@pytest.mark.fractional
@each_of(*WHOLE, *BREAKING)
@IN_EVERY_MODE
def test_numbers_are_drawn_once_and_in_order(program: Callable[..., Any], mode: str) -> None:
    captured = captured_with(program, breaks_at=MODES[mode], recompile_limit=64)[0]
    for seed in range(4):
        assert same(seen(captured, seed), seen(program, seed))


def test_a_failed_guard_draws_nothing() -> None:
    """A backend's condition on where inputs are in memory is checked before."""

    def program(x: Any, y: Any) -> Any:
        x.add_(random.random())
        return x * y

    captured = refimpl.compile(program, backend="aot_eager")
    for is_shared in (False, True, False, True):
        results = []
        for function in (captured, program):
            random.seed(1)
            base = torch.arange(6.0)
            results.append((function(base[:3], base[1:4] if is_shared else base[3:]), random.getstate()))
        assert same(*results)


def test_an_error_of_the_graph_does_not_draw_again() -> None:
    def program(x: Any) -> Any:
        return x[random.randint(2, 5)]

    states = []
    for function in (program, captured_with(program)[0]):
        random.seed(0)
        for _ in range(2):
            with pytest.raises(IndexError):
                function(torch.ones(2))
        states.append(random.getstate())
    assert states[0] == states[1]


def test_a_branch_that_may_not_run_draws_nothing_in_advance() -> None:
    captured = captured_with(in_a_branch)[0]
    with pytest.raises(Exception, match="random"):
        captured(torch.ones(2, 2))


def test_export_refuses_it() -> None:
    with pytest.raises(Unsupported, match="random"):
        refimpl.export_graph(scaled)(torch.ones(2, 2))
