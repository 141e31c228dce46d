"""The harness of all benchmarks: cases are timed side by side, in interleaved rounds.

A benchmark is a function in `benchmarks/cases` that yields cases:

    @benchmark(repeat=9)
    def softmax(rows: int = 1024) -> Iterator[Case]:
        '''Softmax of rows, our kernel beside torch's.'''
        for dtype in (torch.float32, torch.float64):
            x = torch.randn(rows, 64, dtype=dtype)
            yield Case(str(dtype), lambda x=x: {"refimpl": partial(ours, x), "torch": partial(torch.softmax, x, -1)})

The first side is ours. A ratio is a peer's time over ours in the same round, so above 1 ours is faster. Each round calls every
side once, and the order is reversed from round to round, so that other load on the machine affects all sides alike.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import math
import pkgutil
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch

from oracle.errors import UsageError
from oracle.measure import Speed, summarise

Side = Callable[[], Any]
Clocks = Callable[[], tuple[float, float]]


class Figures(dict[str, Any]):
    """Returned by a side to add columns to its row: medians of numbers over the rounds, the last one of other values.
    `processor_s` and `wall_s`, if given, replace the measured times.
    """


@dataclass(frozen=True, slots=True)
class Case:
    """One row: a name, and a set-up function that makes the sides and is not timed."""

    name: str
    make: Callable[[], Mapping[str, Side]]
    calls: int = 1  # of a side in a round; times are of one call
    # With `processor`, CPU time including child processes, which does not depend on other load.
    clock: Literal["wall", "processor"] = "wall"
    before: Callable[[], Any] | None = None  # called before each timing, not timed
    derive: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None  # columns from medians and figures, by name
    bound_s: float | None = None  # seconds above which our side is reported as too slow
    parts: tuple[str, ...] = ()  # sides that are not peers: only `derive` uses them
    bench: Callable[[Sequence[Side]], Sequence[float]] | None = None  # seconds of each side, by another clock


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A function that yields cases, and how often their sides are called."""

    function: Callable[..., Iterator[Case]]
    repeat: int
    warm_up: Literal["each", "first", "never"]  # the cases that have an extra round that is not counted

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def parameters(self) -> dict[str, Any]:
        """Name -> default."""
        return {name: found.default for name, found in inspect.signature(self.function).parameters.items()}


REGISTRY: dict[str, Benchmark] = {}


def benchmark(*, repeat: int = 5, warm_up: Literal["each", "first", "never"] = "each") -> Callable[..., Any]:
    """Register a function as the benchmark of its name."""

    def register(function: Callable[..., Iterator[Case]]) -> Callable[..., Iterator[Case]]:
        REGISTRY[function.__name__] = Benchmark(function, repeat, warm_up)
        return function

    return register


def load() -> dict[str, str]:
    """Fill the registry. Returns, by name, why modules were left out: they need a library that is not installed."""
    left_out: dict[str, str] = {}
    for module in pkgutil.iter_modules([str(Path(__file__).with_name("cases"))]):
        try:
            importlib.import_module(f"benchmarks.cases.{module.name}")
        except ModuleNotFoundError as error:
            left_out[module.name] = str(error)
    return left_out


# -------------------------------------------------------------------------------------------------------------- measuring


@dataclass(kw_only=True)
class Row:
    """The measurements of one case. `samples`: (processor, wall) seconds of one call by side and round."""

    benchmark: str
    case: str
    clock: str = "wall"
    samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)  # by side; a side with an error has no times
    is_slow: bool = False
    ours: str = ""  # the first side
    parts: tuple[str, ...] = ()  # sides that have no ratio

    def seconds(self, side: str) -> list[float]:
        """Seconds of one call by round, with the case's clock."""
        return [sample[self.clock == "wall"] for sample in self.samples[side]]

    def medians(self) -> dict[str, float]:
        return {side: statistics.median(self.seconds(side)) for side in self.samples}

    def ratios(self) -> dict[str, Speed]:
        """Each peer's time divided by ours, with a confidence interval. Sides measured separately are paired in order."""
        if self.ours not in self.samples:
            return {}
        ours = self.seconds(self.ours)
        peers = {side: self.seconds(side) for side in self.samples if side not in (self.ours, *self.parts)}
        pairs = {side: tuple(zip(*zip(found, ours, strict=False), strict=True)) for side, found in peers.items()}
        return {side: summarise(list(theirs), list(own)) for side, (theirs, own) in pairs.items()}

    def to_json(self) -> dict[str, Any]:
        """The fields, and values computed from them."""
        sides = {
            side: {"median_s": median, "quartiles_s": quartiles(self.seconds(side)), "rounds": len(self.samples[side])}
            for side, median in self.medians().items()
        }
        ratios = {
            side: {"ratio": found.speedup, "low": found.speedup_low, "high": found.speedup_high}
            for side, found in self.ratios().items()
        }
        return {**asdict(self), "sides": sides, "ratios": ratios}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        return cls(**{each.name: data[each.name] for each in fields(cls) if each.name in data})

    def flat(self) -> dict[str, Any]:
        """A line of a CSV table."""
        medians, ratios = self.medians(), self.ratios()
        wall = {side: statistics.median(sample[1] for sample in found) for side, found in self.samples.items()}
        return {
            "benchmark": self.benchmark,
            "case": self.case,
            **{f"{side}_s": float(f"{value:.4g}") for side, value in medians.items()},
            **(
                {f"{side}_wall_s": float(f"{value:.4g}") for side, value in wall.items()}
                if self.clock != "wall"
                else {}
            ),
            **{f"{side}_over_{self.ours}": round(found.speedup, 3) for side, found in ratios.items()},
            **self.figures,
            "errors": "; ".join(f"{side}: {text}" for side, text in self.errors.items()),
        }


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(statistics.fmean(map(math.log, values)))


def read_clocks() -> tuple[float, float]:
    """CPU seconds, including ended children, and wall seconds."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime, time.perf_counter()


def measure(
    name: str,
    case: Case,
    *,
    repeat: int,
    warm_up: int = 1,
    only: Sequence[str] = (),
    known: Row | None = None,
    enough_s: float = math.inf,
    clocks: Clocks = read_clocks,
) -> Row:
    """The row of a case of benchmark `name`; a side that raises has an error and no times.

    `only`: sides to measure. `known`: a row of an earlier run, to which they are added. No round begins after `enough_s`
    seconds. Raises UsageError for a side that the case does not have.
    """
    row = known or Row(benchmark=name, case=case.name)
    row.clock, row.errors = case.clock, {side: text for side, text in row.errors.items() if only and side not in only}
    torch.manual_seed(0)
    try:
        made = dict(case.make())
    except Exception as error:  # a failure of the measured code becomes a row
        row.errors["set-up"] = _first_line(error)
        return row
    row.ours, row.parts = next(iter(made)), case.parts
    if set(only) - set(made):
        raise UsageError(
            seen=f"no side {', '.join(sorted(set(only) - set(made)))} in {name}, {case.name}",
            expected=f"some of {', '.join(made)}",
            do="name others with --sides",
        )
    sides = {side: call for side, call in made.items() if side in (only or made)}
    row.samples.update((side, []) for side in sides)
    figures: dict[str, list[Any]] = {}
    ended_at = clocks()[1] + enough_s
    for number in range(-warm_up, repeat):
        if number > 0 and clocks()[1] > ended_at:
            break
        for side, sample in _round(
            case, sides, row, is_reversed=bool(number % 2), is_counted=number >= 0, clocks=clocks
        ):
            if number >= 0:
                row.samples[side].append((sample.pop("processor_s"), sample.pop("wall_s")))
                for key, value in sample.items():
                    figures.setdefault(key, []).append(value)
        sides = {side: call for side, call in sides.items() if side not in row.errors}
    row.samples = {side: row.samples[side] for side in (*made, *row.samples) if row.samples.get(side)}
    row.figures.update({key: _middle(values) for key, values in figures.items()})
    if case.derive is not None:
        row.figures.update(case.derive({**row.medians(), **row.figures}))
    row.is_slow = case.bound_s is not None and row.medians().get(row.ours, 0.0) > case.bound_s
    return row


def _round(
    case: Case, sides: Mapping[str, Side], row: Row, *, is_reversed: bool, is_counted: bool, clocks: Clocks
) -> Iterator[tuple[str, Figures]]:
    order = list(sides)[:: -1 if is_reversed else 1]
    if case.bench is not None and is_counted:
        try:
            found = case.bench([sides[side] for side in order])
        except Exception as error:  # as above
            row.errors.update((side, _first_line(error)) for side in order)
            return
        for side, seconds in zip(order, found, strict=True):
            if math.isfinite(seconds):
                yield side, Figures(processor_s=seconds, wall_s=seconds)
            else:
                row.errors[side] = "could not be launched"
        return
    for side in order:
        if case.before is not None:
            case.before()
        try:
            yield side, _timed(sides[side], case.calls, clocks)
        except Exception as error:  # as above
            row.errors[side] = _first_line(error)


def _timed(side: Side, calls: int, clocks: Clocks) -> Figures:
    gc.collect()
    gc.disable()  # a full collection takes longer than most sides, and could hit any of them
    try:
        result = None
        processor, wall = clocks()
        for _ in range(calls):
            result = side()
        after = clocks()
    finally:
        gc.enable()
    times = {"processor_s": (after[0] - processor) / calls, "wall_s": max((after[1] - wall) / calls, 1e-12)}
    return Figures({**times, **(result if isinstance(result, Figures) else {})})


@contextmanager
def stopwatch() -> Iterator[Figures]:
    """Times a block within a side; the side returns its figures."""
    figures, before = Figures(), read_clocks()
    yield figures
    after = read_clocks()
    figures.update(processor_s=after[0] - before[0], wall_s=after[1] - before[1])


def _middle(values: Sequence[Any]) -> Any:
    if not all(isinstance(value, (int, float)) for value in values):
        return values[-1]
    return statistics.median_low(values) if all(isinstance(v, int) for v in values) else statistics.median(values)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:160]
