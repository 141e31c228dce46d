"""RecordedSuite: every line of a recording as a program."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import torch

from oracle.errors import UsageError
from oracle.program import Call, Program
from oracle.recording import RecordedCall, find_overload, read_recording
from suites.base import Selection, SuiteProgram

_SOURCE = """\
import torch


def program(*args, **kwargs):
    return torch.ops.{op}(*args, **kwargs)
"""
_NO_SOURCE = """\
def program():
    raise RuntimeError({why!r})  # in eager too, so that nothing is compared
"""
_CALLS = 2  # each on other values


class RecordedSuite:
    """Groups are overloads. Programs are "aten.addmm.default/float32/forward/7", where 7 is the line of the recording.

    A backward program differentiates a call that had an argument which requires grad, unless the operator writes to it.
    Calls that cannot be replayed, and operators that this torch lacks, are programs that say so.
    """

    def groups(self, selection: Selection) -> list[str]:
        """Raises UsageError without a recording, and for one that cannot be read."""
        return sorted({call.op for call in _recording(selection) if selection.may_want_group(call.op)})

    def programs(self, selection: Selection, group: str) -> Iterator[SuiteProgram]:
        """Raises UsageError as `groups` does."""
        for direction in selection.directions or ("forward", "backward"):
            chosen = [
                (name, call)
                for call in _recording(selection)
                if call.op == group
                and (direction == "forward" or _is_differentiated(call))
                and selection.wants(
                    group=group, name=(name := f"{group}/{call.dtype or 'none'}/{direction}/{call.line}")
                )
            ]
            for name, call in chosen[: selection.max_samples]:
                yield SuiteProgram(
                    program=_program(name, call, backward=direction == "backward"),
                    group=group,
                    dtype=call.dtype,
                    direction=direction,
                )


def _recording(selection: Selection) -> list[RecordedCall]:
    if not selection.recording:
        raise UsageError(
            seen="suite recorded without a recording",
            expected="the file that `torch-oracle record` wrote",
            do="name it with --recording FILE",
        )
    return _read(Path(selection.recording))


@functools.cache
def _read(path: Path) -> list[RecordedCall]:
    return read_recording(path)


def _is_differentiated(call: RecordedCall) -> bool:
    overload = find_overload(call.op)
    return call.needs_grad and overload is not None and not overload._schema.is_mutable


def _program(name: str, call: RecordedCall, *, backward: bool) -> Program:
    why = call.unreplayable and f"not replayable: {call.unreplayable}"
    if find_overload(call.op) is None:
        why = f"torch {torch.__version__} has no operator {call.op}"
    if why:
        return Program(name=name, source=_NO_SOURCE.format(why=why), calls=(Call(args=[]),))
    return Program(name=name, source=_SOURCE.format(op=call.op), calls=(call.to_call(backward=backward),) * _CALLS)
