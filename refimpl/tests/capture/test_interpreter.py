"""The interpreter of normalised bytecode does what CPython does: results, exceptions with their lines and contexts, output."""

from __future__ import annotations

import ast
import threading
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import refimpl.capture.interpreter as package
from refimpl.capture.bytecode.errors import UnsupportedCode
from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.interpreter.concrete import ConcreteDomain
from refimpl.capture.interpreter.concrete_calls import frame_of
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.machine import Machine
from refimpl.capture.interpreter.signals import Returned
from refimpl.tests.capture.interpreter_agreement import MODES, InterpretedProgram, difference, programs, random_programs

PROGRAMS = programs()


@pytest.mark.fractional
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_does_what_it_does_in_cpython(program: InterpretedProgram, mode: str) -> None:
    assert difference(program, mode) is None


@pytest.mark.filterwarnings("ignore")
def test_random_programs_do_what_they_do_in_cpython() -> None:
    for program in random_programs(10_000, 40):
        assert difference(program, "inlined") is None, program.source
        assert difference(program, "stepped") is None, program.source


def test_the_comparison_finds_a_wrong_result() -> None:
    program = InterpretedProgram(
        "wrong", "import sys\ndef program():\n    x = 1\n    return sorted(sys._getframe().f_locals)"
    )
    assert "interpreter:" in str(difference(program, "called"))


# ------------------------------------------------------------------------------------------------------- frames are data


def stepped(function: FunctionType, *args: Any) -> list[FrameState]:
    """Frames as they are when `marker` is about to be called."""

    class Stops(ConcreteDomain):
        def call(self, frame: FrameState, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
            if getattr(function, "__name__", "") == "marker":
                raise _Break
            return super().call(frame, function, args, kwargs)

        def user_exception(self, raised: BaseException) -> Any:
            if isinstance(raised, _Break):
                raise raised
            return super().user_exception(raised)

    machine = Machine(Stops(enters=lambda function: function.__name__ != "marker"))
    frame = frame_of(function, args, {})
    assert frame is not None
    with pytest.raises(_Break):
        machine.run(frame)
    return machine.frames


class _Break(Exception):
    pass


def marker() -> int:
    return 100


def inner(x: int) -> int:
    total = 0
    for i in range(x):
        try:
            if i == 1:
                total += marker() + (yield_nothing() or 0)
        finally:
            total += 1
    return total


def yield_nothing() -> None:
    return None


def outer(x: int) -> Any:
    results = (1, len("ab"), inner(x), inner(0))
    return {"results": results}


@pytest.mark.parametrize("answer", [100, -7])
def test_a_run_that_was_stopped_goes_on_from_copies_of_its_frames(answer: int) -> None:
    frames = stepped(outer, 3)
    assert [frame.code.name for frame in frames] == ["outer", "inner"]
    assert frames[-1].current.op is Op.CALL
    machine = Machine(ConcreteDomain(enters=lambda function: True))
    machine.frames = [replace(frame, slots=list(frame.slots), stack=list(frame.stack)) for frame in frames]
    machine.frames[-1].stack.append(answer)  # in the place of the result of the call
    outcome = machine.resume()
    assert isinstance(outcome, Returned)
    assert outcome.value == {"results": (1, 2, answer + 3, 0)}


def test_a_run_that_was_stopped_can_go_on_by_an_exception() -> None:
    frames = stepped(outer, 3)
    machine = Machine(ConcreteDomain(enters=lambda function: True))
    machine.frames = [replace(frame, slots=list(frame.slots), stack=list(frame.stack)) for frame in frames]
    with pytest.raises(LookupError) as caught:
        machine.resume(LookupError("instead"))
    names = [entry.name for entry in caught.traceback if entry.path == Path(__file__)]
    assert names[-2:] == ["outer", "inner"]


# ----------------------------------------------------------------------------------------------------------------- others


def test_threads_run_the_same_function_at_once() -> None:
    domain = ConcreteDomain(enters=lambda function: True)
    seen: list[Any] = []

    def work(n: int) -> None:
        for _ in range(20):
            seen.append(domain.call_function(outer, (n,), {}) == outer(n))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 80


def test_an_async_function_is_refused_where_it_is_asked_for() -> None:
    async def f() -> None: ...

    with pytest.raises(UnsupportedCode, match="async"):
        ConcreteDomain().call_function(f, (), {})


def test_endless_recursion_is_the_users_error() -> None:
    def f(n: int) -> int:
        return f(n + 1)

    with pytest.raises(RecursionError):
        ConcreteDomain(enters=lambda function: True).call_function(f, (0,), {})


def test_the_interpreter_and_the_bytecode_import_nothing_that_needs_torch() -> None:
    folder = Path(str(package.__file__)).parent
    sources = [*folder.glob("*.py"), *(folder.parent / "bytecode").glob("*.py")]
    assert len(sources) > 20
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.startswith(
                    ("refimpl.capture.bytecode", "refimpl.capture.interpreter")
                ) or not name.startswith(("torch", "refimpl")), f"{source.name} imports {name}"
