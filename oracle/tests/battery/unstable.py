"""Wrong subjects of unstable elements: any number where rounding decides which of a few it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from oracle.tests.battery.entries import Change, Entry, Target, Wrap, is_float
from oracle.tests.battery.programs import FLOATS, NAMES, Template, program_of


def wrong_entry(
    kind: str, template: Template, name: str, wrap: Wrap, dtype: torch.dtype, size: int | None = None, **options: Any
) -> Entry:
    elements = template.size if size is None else size
    return Entry(
        kind=kind, name=name, program=template.name, dtype=dtype, size=elements, is_wrong=True,
        case=program_of(template, dtype=dtype, size=elements), wrap=wrap, **options,
    )  # fmt: skip


def times(factor: float) -> Change:
    def change(value: Tensor) -> Tensor:
        return (value.to(torch.float64) * factor).to(value.dtype)

    return change


PERTURBED_RUNS = 24
PERTURBATION = 2.0  # units of the last place by which each argument moves


def unstable_elements(target: Target, args: Sequence[Any]) -> list[tuple[Any, Any]]:
    """For each leaf of the result, the elements that depend on a rounding of the arguments, and how far each element moves.

    Runs on rounded arguments differ there: at all for integers, bools and Python numbers, by more than 10% for floats.
    """
    generator = torch.Generator().manual_seed(5)

    def perturbed(value: Any) -> Any:
        if not is_float(value):
            return value
        noise = (torch.rand(value.shape, generator=generator, dtype=torch.float64) * 2 - 1) * PERTURBATION
        return (value.detach().double() * (1 + noise * torch.finfo(value.dtype).eps)).to(value.dtype)

    with torch.no_grad():
        honest = tree_flatten(target(*args))[0]
        runs = [tree_flatten(target(*map(perturbed, args)))[0] for _ in range(PERTURBED_RUNS)]
    found: list[tuple[Any, Any]] = []
    for at, value in enumerate(honest):
        if not isinstance(value, Tensor):
            found.append((any(run[at] != value for run in runs), None))
            continue
        moves = torch.stack([(run[at].double() - value.double()).abs() for run in runs]).amax(0)
        found.append((moves > 0.1 * value.double().abs() if is_float(value) else moves > 0, moves))
    return found


Answer = Callable[[Any, Any], Any]  # (the honest leaf, how far it moves) -> a wrong one, used where it is unstable


def unstable_replaced(answer: Answer) -> Wrap:
    def wrap(target: Target) -> Target:
        def run(*args: Any) -> Any:
            leaves, tree = tree_flatten(target(*args))
            for at, (where, moves) in enumerate(unstable_elements(target, args)):
                leaf = leaves[at]
                if isinstance(leaf, Tensor) and leaf.dtype is not torch.bool:
                    leaves[at] = torch.where(where, answer(leaf, moves), leaf).to(leaf.dtype)
                elif not isinstance(leaf, (bool, Tensor)) and where:
                    leaves[at] = type(leaf)(answer(leaf, moves))
            return tree_unflatten(leaves, tree)

        return run

    return wrap


def _worst_candidate(target: Target) -> Target:
    """Returns an index that is in range and that no rounding makes the largest: that of the smallest product."""

    def run(a: Tensor, b: Tensor) -> Any:
        index = target(a, b)
        (where, _), = unstable_elements(target, (a, b))  # fmt: skip
        return torch.where(where, (a * torch.softmax(b, -1)).argmin(-1), index)

    return run


def _huge(value: Any, moves: Any) -> Any:
    return min(1e30, torch.finfo(value.dtype).max / 2) if isinstance(value, Tensor) else 1e30


INDICES: dict[str, Answer] = {"index_123456": lambda v, m: 123456, "index_minus_1": lambda v, m: -1}
INTEGERS: dict[str, Answer] = {"minus_999999": lambda v, m: -999999, "three_up": lambda v, m: v + 3}
FLOAT_ANSWERS: dict[str, Answer] = {
    "huge": _huge,
    "nan": lambda v, m: torch.nan,
    "hundred_moves_away": lambda v, m: v + 100 * m,
}


def unstable(kind: str = "unstable") -> Iterator[Entry]:
    for dtype in FLOATS:
        for program in ("argmax", "nearly_tied_argmax"):
            for name, answer in INDICES.items():
                yield wrong_entry(kind, NAMES[program], name, unstable_replaced(answer), dtype, is_measured=True)
        yield wrong_entry(
            kind, NAMES["nearly_tied_argmax"], "not_a_candidate", _worst_candidate, dtype, is_measured=True
        )
        for program in ("floor_of_sums", "round_of_sums", "bucketize", "searchsorted"):
            for name, answer in INTEGERS.items():
                yield wrong_entry(kind, NAMES[program], name, unstable_replaced(answer), dtype, is_measured=True)
        for program in ("square_root", "difference", "cancelling_sum"):
            for name, answer in FLOAT_ANSWERS.items():
                yield wrong_entry(kind, NAMES[program], name, unstable_replaced(answer), dtype, is_measured=True)
        yield wrong_entry(kind, NAMES["mask"], "seven", unstable_replaced(lambda v, m: 7.0), dtype, is_measured=True)
        yield wrong_entry(
            kind, NAMES["python_floor"], "999999", unstable_replaced(lambda v, m: 999999), dtype, is_measured=True
        )
        yield wrong_entry(kind, NAMES["python_rest"], "huge", unstable_replaced(_huge), dtype, is_measured=True)
