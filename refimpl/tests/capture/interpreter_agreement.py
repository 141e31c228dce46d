"""Runs programs by CPython and by the interpreter, and says where they differ. Needs no torch and no pytest."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import random
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

from refimpl.capture.interpreter.concrete import ConcreteDomain
from refimpl.capture.interpreter.concrete_calls import frame_of
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.machine import Machine
from refimpl.capture.interpreter.signals import Enter, Returned, Yielded
from refimpl.tests.capture.random_programs import random_program

SOURCES = Path(__file__).with_name("interpreted_programs.txt")


@dataclass(frozen=True)
class InterpretedProgram:
    """Source that defines `program()`, and the version of Python that it needs."""

    name: str
    source: str
    version: tuple[int, int] = (3, 10)


@dataclass(frozen=True)
class Observed:
    """What a run did: its result or exception as text, and what it printed."""

    result: str
    error: Any
    printed: str


class SteppedDomain(ConcreteDomain):
    """Runs one instruction at a time; between two, frames are taken apart and made anew. Generators do not nest machines."""

    def __init__(self, enters: Callable[[FunctionType], bool]) -> None:
        super().__init__(enters)
        self.frames_of_generators: weakref.WeakKeyDictionary[Any, FrameState] = weakref.WeakKeyDictionary()

    def run(self, frame: FrameState, thrown: Any = None) -> Returned | Yielded:
        if thrown is not None:
            try:
                return super().run(frame, thrown)
            finally:
                del thrown
        machine = Machine(self)
        machine.push(frame)
        while True:
            outcome = machine.step()
            if outcome is not None:
                return outcome
            machine.frames[-2:] = [self._remade(known) for known in machine.frames[-2:]]

    def _remade(self, frame: FrameState) -> FrameState:
        if frame.code.is_generator:  # its generator object holds it
            return frame
        return dataclasses.replace(frame, slots=list(frame.slots), stack=list(frame.stack))

    def generator(self, frame: FrameState, function: FunctionType) -> Any:
        made = super().generator(frame, function)
        self.frames_of_generators[made] = frame
        return made

    def next(self, iterator: Any) -> Any:
        return self._resumed(iterator, None) or self._special(iterator, "__next__") or super().next(iterator)

    def truth(self, value: Any) -> bool | Enter:
        return self._special(value, "__bool__") or super().truth(value)

    def binary(self, sign: str, left: Any, right: Any) -> Any:
        entered = self._special(left, "__matmul__", right) if sign == "@" else None
        return entered or super().binary(sign, left, right)

    def store_attr(self, value: Any, name: str, attribute: Any) -> Enter | None:
        return self._special(value, "__setattr__", name, attribute) or super().store_attr(value, name, attribute)

    def delete_attr(self, value: Any, name: str) -> Enter | None:
        return self._special(value, "__delattr__", name) or super().delete_attr(value, name)

    def unpack(self, value: Any, before: int, after: int | None) -> list[Any] | Enter:
        return self._special(value, "__as_list__") or super().unpack(value, before, after)

    def _special(self, value: Any, name: str, *args: Any) -> Enter | None:
        """The frame of a special method that is a function of the program."""
        function = getattr(type(value), name, None)
        if type(function) is not FunctionType or not self.enters(function):
            return None
        frame = frame_of(function, (value, *args), {})
        return None if frame is None or frame.code.is_generator else Enter(frame)

    def send(self, receiver: Any, value: Any) -> Any:
        return self._resumed(receiver, value) or super().send(receiver, value)

    def _resumed(self, iterator: Any, sent: Any) -> Enter | None:
        frame = self.frames_of_generators.get(iterator) if type(iterator) is GeneratorType else None
        if frame is None or frame.is_running or frame.is_done or not frame.is_started:
            return None
        frame.stack.append(sent)
        return Enter(frame)


def programs() -> list[InterpretedProgram]:
    """Those of the text file that this Python can run."""
    found: list[InterpretedProgram] = []
    for part in SOURCES.read_text(encoding="utf-8").split("\n#: ")[1:]:
        header, _, source = part.partition("\n")
        name, _, needs = header.partition(" >=")
        version = tuple(int(number) for number in needs.split(".")) if needs else (3, 10)
        found.append(InterpretedProgram(name, source, (version[0], version[1])))
    return [program for program in found if sys.version_info[:2] >= program.version]


def random_programs(first: int, count: int) -> Iterator[InterpretedProgram]:
    """Generated ones, by seed."""
    for seed in range(first, first + count):
        yield InterpretedProgram(f"random_{seed}", random_program(random.Random(seed)))


MODES = ("inlined", "called", "stepped")


def difference(program: InterpretedProgram, mode: str) -> str | None:
    """What the interpreter does otherwise than CPython; None if nothing.

    Modes: called functions are interpreted too, or run by CPython, or everything is run one instruction at a time.
    """
    expected = observe(program, lambda function: function())
    kind = SteppedDomain if mode == "stepped" else ConcreteDomain
    domain = kind(enters=lambda function: function.__code__.co_filename == program.name and mode != "called")
    seen = observe(program, lambda function: domain.call_function(function, (), {}))
    if expected == seen:
        return None
    return f"{program.name} ({mode}):\n  CPython:     {expected}\n  interpreter: {seen}"


def observe(program: InterpretedProgram, run: Callable[[FunctionType], Any]) -> Observed:
    """Run a program in a namespace of its own."""
    module = sys.modules[program.name] = ModuleType(program.name)  # dataclasses look their class's module up
    namespace = vars(module)
    printed = io.StringIO()
    exec(compile(program.source, program.name, "exec"), namespace)
    result, error = "", None
    with contextlib.redirect_stdout(printed):
        try:
            result = repr(run(namespace["program"]))
        except Exception as raised:
            error = _described(raised, program.name)
    return Observed(_without_addresses(result), error, printed.getvalue())


def _described(error: BaseException | None, name: str, depth: int = 0) -> Any:
    """Type, message, lines of the program it passed through, and the same of cause and context."""
    if error is None or depth > 8:
        return None
    lines: list[tuple[str, int]] = []
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == name:
            lines.append((traceback.tb_frame.f_code.co_name, traceback.tb_lineno))
        traceback = traceback.tb_next
    return (
        type(error).__name__, _without_addresses(str(error)), lines, error.__suppress_context__,
        _described(error.__cause__, name, depth + 1), _described(error.__context__, name, depth + 1),
    )  # fmt: skip


def _without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", text)
