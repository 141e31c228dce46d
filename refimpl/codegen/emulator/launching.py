"""A launch: runs programs in chunks that fit in memory, and splits them into groups where their control flow differs.

Note [groups]: all programs of a chunk run together until Python must know something on which they disagree: a condition, a
loop's bound. Then memory goes back to what it was when they started, they are split by that value, and each group starts again.
Programs in one group agree on all that they have asked so far, so groups end.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from refimpl.codegen.emulator.errors import KernelError, NotEmulated, WouldNotCompile
from refimpl.codegen.emulator.memory import Buffer, Context, RaceState, Running, buffer_of, forget, roll_back
from refimpl.codegen.emulator.types import SIGNATURE_TYPES, PointerType, type_of_dtype
from refimpl.codegen.emulator.values import Diverged, Rejected, Unsupported, Value, constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a launch: the checks, and how many programs run together.

    elements: so many has the largest value at most, over all programs that run together.
    poison: a load without `other` gives NaN, or the bytes 0x5A, where its mask is off; else 0.
    races: it is an error if two programs store different values to one element, or one loads what another one stores.
    asserts: `device_assert` is checked, as with debugging on; else it does nothing.
    """

    elements: int = 1 << 22
    poison: bool = True
    races: bool = False
    asserts: bool = False


class Launchable(Protocol):
    """A function of the emulator: jit.JitFunction."""

    fn: Callable[..., Any]
    largest: int  # elements of the largest block so far: says how many programs fit into a chunk of the next launch

    @property
    def emulated(self) -> Callable[..., Any]: ...

    @property
    def may_diverge(self) -> bool: ...


def launch(
    function: Launchable, name: str, grid: tuple[int, ...], arguments: Mapping[str, tuple[str, Any]], options: Options
) -> None:
    """Run all programs of the grid. `arguments`: by parameter and in order, the type as in Triton's signatures and the value."""
    x, y, z = (*grid, 1, 1)[:3]
    total = x * y * z
    if total == 0:
        return
    run = function.emulated
    with torch.no_grad(), _one_thread():
        values = _bound(arguments, options)
        running = Running(
            kernel=name, grid=(x, y, z), poison=options.poison, asserts=options.asserts,
            may_diverge=function.may_diverge and total > 1, line=lambda: _line_of(function),
        )  # fmt: skip
        largest = function.largest or _first_guess(arguments)
        start, outer = 0, Context.running
        try:
            while start < total:
                count = max(1, min(total - start, options.elements // largest))
                running.programs = torch.arange(start, start + count)
                Context.running = running
                _run_group(run, values, running)
                start += count
                largest = max(largest if start == count == 1 else 1, running.largest)
        except (Rejected, Unsupported) as error:
            raise _named(error, name, function) from error
        except KernelError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise WouldNotCompile(name, reason, _line_in(error, function)) from error
        finally:
            Context.running = outer
    function.largest = running.largest


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread of torch: blocks are so small that a pool of threads costs more than it saves."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _first_guess(arguments: Mapping[str, tuple[str, Any]]) -> int:
    sizes = [value for kind, value in arguments.values() if kind == "constexpr" and type(value) is int]
    return max(1, math.prod(size for size in sizes if size > 1 and size & (size - 1) == 0)) if sizes else 1024


def _run_group(run: Callable[..., Any], values: list[Any], running: Running) -> None:
    programs = running.programs
    try:
        run(*values)
        forget(running)
        return
    except Diverged as diverged:
        decided = diverged.values
    except BaseException:
        forget(running)
        raise
    roll_back(running)
    for value in decided.unique():
        running.programs = programs[decided == value]
        _run_group(run, values, running)


def _bound(arguments: Mapping[str, tuple[str, Any]], options: Options) -> list[Any]:
    buffers: list[tuple[Tensor, Buffer]] = []
    values: list[Any] = []
    for name, (kind, value) in arguments.items():
        if kind == "constexpr":
            values.append(type_of_dtype(value) if isinstance(value, torch.dtype) else value)
        elif kind.startswith("*"):
            element = SIGNATURE_TYPES[kind[1:]]
            buffer = buffer_of(name, value, element)
            buffers.append((value, buffer))
            values.append(Value(torch.zeros(1, dtype=torch.int64), PointerType(element), buffer))
        else:
            type_ = SIGNATURE_TYPES[kind]
            values.append(constant(value, type_))
    if options.races:
        _watch_races(buffers)
    return values


def _watch_races(buffers: list[tuple[Tensor, Buffer]]) -> None:
    """Record accesses to each storage once, however many arguments view it."""
    shared: dict[tuple[int, int], RaceState] = {}
    for tensor, buffer in buffers:
        width = tensor.element_size()
        key = (tensor.untyped_storage().data_ptr(), width)
        if key not in shared:
            count = tensor.untyped_storage().nbytes() // width
            nobody = torch.full((count,), -1, dtype=torch.int32)
            shared[key] = RaceState(nobody, nobody.clone())
        here = slice(tensor.storage_offset(), tensor.storage_offset() + buffer.extent)
        buffer.races = RaceState(shared[key].writer[here], shared[key].reader[here])


# ------------------------------------------------------------------------------------------------------------------ words


def _named(error: Exception, name: str, function: Launchable) -> KernelError:
    kind = WouldNotCompile if isinstance(error, Rejected) else NotEmulated
    return kind(name, str(error), _line_in(error, function))


def _line_in(error: BaseException, function: Launchable) -> str:
    """ " (file:line: text)" of the innermost line of the kernel's file that led to the error."""
    file = function.fn.__code__.co_filename
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({file}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""


def _line_of(function: Launchable) -> str:
    """The same for the line that runs now."""
    file = function.fn.__code__.co_filename
    frames = [frame for frame in traceback.extract_stack() if frame.filename == file]
    return f" ({file}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""
