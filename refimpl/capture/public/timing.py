"""Times of the phases of capture, and reports of them.

Counterpart: torch/_dynamo/utils.py dynamo_timed, compile_times, tabulate, print_time_report, dump_compile_times
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, Literal

from torch import fx

_LOG = logging.getLogger("refimpl.capture")

# Name of a function -> seconds of each of its calls; number of a frame, or id of what a backward graph is made for -> phase ->
# seconds.
compilation_time_metrics: defaultdict[str, list[float]] = defaultdict(list)
frame_phase_timing: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
op_count = 0
curr_frame = 0


class _Backward(threading.local):
    compile_id: str | None = None  # of the backward graph that is being compiled


_BACKWARD = _Backward()


def increment_frame() -> None:
    """Starts a new frame, to which the following phases belong."""
    global curr_frame
    curr_frame += 1


def increment_op_count(cnt: int) -> None:
    """Adds to the number of calls in graphs."""
    global op_count
    op_count += cnt


def count_calls(g: fx.Graph) -> int:
    """The number of call nodes of a graph."""
    return sum("call" in node.op for node in g.nodes)


def reset_frame_count() -> None:
    """Removes all times and restarts the numbering of frames."""
    global curr_frame
    curr_frame = 0
    frame_phase_timing.clear()
    compilation_time_metrics.clear()


def dynamo_timed(
    original_function: Callable[..., Any] | None = None, phase_name: str | None = None, fwd_only: bool = True
) -> Any:
    """A decorator, with or without arguments, that records the time of each call under the function's qualified name.

    phase_name: the time also counts for this phase of the current frame. fwd_only: False for phases that backward graphs have
        as well; while one is compiled, the time counts for the id that `backward_of` names.
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
    """Adds time to a phase of a frame (by its number) or of a backward graph (by its id)."""
    frame_phase_timing[key][phase_name] += time_spent


@contextlib.contextmanager
def backward_of(compile_id: str) -> Iterator[None]:
    """Within the block, phases of this thread belong to the backward graph with this id."""
    before, _BACKWARD.compile_id = _BACKWARD.compile_id, compile_id
    try:
        yield
    finally:
        _BACKWARD.compile_id = before


def calculate_time_spent() -> dict[str, float]:
    """Seconds by phase, summed over all frames, and the total."""
    spent: dict[str, float] = defaultdict(float)
    for phases in frame_phase_timing.values():
        for phase, seconds in phases.items():
            spent[phase] += seconds
    return {**spent, "total_wall_time": sum(spent.values())} if spent else {}


def print_time_report() -> None:
    """One line: seconds by phase."""
    print("TIMING: " + " ".join(f"{phase}:{round(seconds, 5)}" for phase, seconds in calculate_time_spent().items()))


def compile_times(repr: Literal["str", "csv"] = "str", aggregate: bool = False) -> Any:
    """Times of the timed functions: a table for "str", headers and values for "csv"; None for another form.

    aggregate: their sum instead of one number for each call.
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
    """A table, made by the package tabulate if it is installed; else comma-separated lines, the headers first."""
    package = _package("tabulate")
    if package is not None:
        return package.tabulate(rows, headers=headers)
    return "\n".join(", ".join(map(str, row)) for row in [headers, *rows])


def _package(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@atexit.register
def dump_compile_times() -> None:
    """Logs the times of all functions. Also called when the process ends."""
    _LOG.info(compile_times(repr="str", aggregate=True))
