"""How long the phases of capture take, and reports of it.

Counterpart: torch/_dynamo/utils.py dynamo_timed, compile_times, tabulate, print_time_report
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, Literal

from torch import fx

# Name of a function -> seconds of each of its calls; number of a frame, or id of what a backward graph is made for -> phase ->
# seconds.
compilation_time_metrics: defaultdict[str, list[float]] = defaultdict(list)
frame_phase_timing: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
op_count = 0
curr_frame = 0


class _Backward(threading.local):
    compile_id: str | None = None  # while a backward graph is compiled: what it is made for


_BACKWARD = _Backward()


def increment_frame() -> None:
    """Phases that end from now on are of the next frame."""
    global curr_frame
    curr_frame += 1


def increment_op_count(cnt: int) -> None:
    """Counts calls that graphs hold."""
    global op_count
    op_count += cnt


def count_calls(g: fx.Graph) -> int:
    """The nodes of a graph that call something."""
    return sum("call" in node.op for node in g.nodes)


def reset_frame_count() -> None:
    """Forgets all times, and begins with the first frame again."""
    global curr_frame
    curr_frame = 0
    frame_phase_timing.clear()
    compilation_time_metrics.clear()


def dynamo_timed(
    original_function: Callable[..., Any] | None = None, phase_name: str | None = None, fwd_only: bool = True
) -> Any:
    """A decorator, with or without arguments: seconds of each call are kept by the function's qualified name.

    phase_name: they are also added to this phase of the frame that is captured now. fwd_only: False for phases that graphs of a
    backward pass have as well: while one is compiled, they are added to the id that `backward_of` names.
    """
    if original_function is None:
        return functools.partial(dynamo_timed, phase_name=phase_name, fwd_only=fwd_only)
    function = original_function

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds = time.perf_counter() - began
            compilation_time_metrics[function.__qualname__].append(seconds)
            if phase_name is not None:
                _add_time_spent(_phase_key(fwd_only), phase_name, seconds)

    return timed


def _phase_key(fwd_only: bool) -> str:
    of_backward = _BACKWARD.compile_id
    return str(curr_frame) if fwd_only or of_backward is None else of_backward


def _add_time_spent(key: str, phase_name: str, time_spent: float) -> None:
    """Seconds of a phase, of a frame by its number or of a backward graph by its id."""
    frame_phase_timing[key][phase_name] += time_spent


@contextlib.contextmanager
def backward_of(compile_id: str) -> Iterator[None]:
    """While a backward graph is compiled in this thread: its phases are those of this id."""
    before, _BACKWARD.compile_id = _BACKWARD.compile_id, compile_id
    try:
        yield
    finally:
        _BACKWARD.compile_id = before


def calculate_time_spent() -> dict[str, float]:
    """Seconds by phase, over all frames, and of all phases together."""
    spent: dict[str, float] = defaultdict(float)
    for phases in frame_phase_timing.values():
        for phase, seconds in phases.items():
            spent[phase] += seconds
    return {**spent, "total_wall_time": sum(spent.values())} if spent else {}


def print_time_report() -> None:
    """One line: seconds by phase."""
    print("TIMING: " + " ".join(f"{phase}:{round(seconds, 5)}" for phase, seconds in calculate_time_spent().items()))


def compile_times(repr: Literal["str", "csv"] = "str", aggregate: bool = False) -> Any:
    """Seconds of the functions that are timed: a table, or headers and values for "csv"; None for another form.

    aggregate: their sum in the place of one number a call.
    """

    def shown(seconds: list[float], digits: int) -> str:
        return ", ".join(f"{value:.{digits}f}" for value in ([sum(seconds)] if aggregate else seconds))

    if repr == "str":
        rows = [(name, shown(seconds, 4)) for name, seconds in compilation_time_metrics.items()]
        return "TorchDynamo compilation metrics:\n" + tabulate(rows, headers=("Function", "Runtimes (s)"))
    if repr == "csv":
        values = [shown(seconds, 6) for seconds in compilation_time_metrics.values()]
        return list(compilation_time_metrics), values
    return None


def tabulate(rows: Iterable[Sequence[Any]], headers: Sequence[str]) -> str:
    """A table, by the package of this name where it is installed; else lines with commas, the headers first."""
    package = _package("tabulate")
    if package is not None:
        return package.tabulate(rows, headers=headers)
    return "\n".join(", ".join(map(str, row)) for row in [headers, *rows])


def _package(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
