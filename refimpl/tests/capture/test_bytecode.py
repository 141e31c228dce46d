"""Normalised bytecode: every code object at hand is read, its stack fits, and what cannot be read is refused."""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import dis
import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from refimpl.capture.bytecode.decode import decode
from refimpl.capture.bytecode.effects import effect
from refimpl.capture.bytecode.errors import MalformedCode, UnsupportedCode
from refimpl.capture.bytecode.instructions import JUMPS, Handler, Instruction, NormalizedCode, Op
from refimpl.capture.bytecode.normalize import normalize
from refimpl.tests.capture.bytecode_checks import verify

MODULES = (argparse, ast, contextlib, dataclasses, dis, enum, inspect, types, typing)


def code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code object and those inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


def code_of(source: str) -> types.CodeType:
    """The code of the function `f` that the source defines."""
    namespace: dict[str, object] = {}
    exec(source, namespace)
    function = namespace["f"]
    assert isinstance(function, types.FunctionType)
    return function.__code__


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_code_of_a_module_is_read_and_its_stack_fits(module: types.ModuleType) -> None:
    source = inspect.getsource(module)
    read = 0
    for code in code_objects(compile(source, module.__name__, "exec")):
        if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            continue
        if any(found.argrepr == "INTRINSIC_TYPEALIAS" for found in dis.get_instructions(code)):  # `type Alias = ...`
            with pytest.raises(UnsupportedCode, match="a declaration of types"):
                normalize(code)
            continue
        normalized = normalize(code)
        verify(normalized)
        assert str(normalized).count("\n") == len(normalized.instructions)
        read += 1
    assert read > 20


def test_every_line_with_code_is_the_line_of_an_instruction() -> None:
    for code in code_objects(compile(inspect.getsource(contextlib), "contextlib", "exec")):
        if code.co_flags & inspect.CO_COROUTINE or code.co_flags & inspect.CO_ASYNC_GENERATOR:
            continue
        known = {line for _, _, line in code.co_lines()} | {None}
        assert {instruction.line for instruction in normalize(code).instructions} <= known


def test_decoding_agrees_with_dis() -> None:
    for code in code_objects(compile(inspect.getsource(argparse), "argparse", "exec")):
        expected = [
            (found.opname, found.arg or 0, found.argval if found.opcode in (*dis.hasjrel, *dis.hasjabs) else None)
            for found in dis.get_instructions(code)
            if found.opname not in ("CACHE", "EXTENDED_ARG")
        ]
        has_argument = [name for name in dis.opname if dis.opmap.get(name, 0) >= dis.HAVE_ARGUMENT]
        seen = [(raw.name, raw.arg if raw.name in has_argument else 0, raw.target) for raw in decode(code)]
        if sys.version_info < (3, 13):  # later dis takes the argument of some instructions apart
            assert [(name, arg if name in has_argument else 0, target) for name, arg, target in expected] == seen
        else:
            assert [(name, target) for name, _, target in expected] == [(name, target) for name, _, target in seen]


def test_a_code_object_is_read_once() -> None:
    code = code_of("def f(x): return x + 1")
    assert normalize(code) is normalize(code)


def test_equal_code_objects_of_two_places_are_kept_apart() -> None:
    first, second = code_of("def f(x): return x"), code_of("def f(x): return x")
    assert first == second
    assert normalize(first).code is first
    assert normalize(second).code is second


def test_calls_have_no_nulls_and_count_what_they_take() -> None:
    found = normalize(code_of("def f(g, o, a): return g(a, o.m(a, k=1), *a, **a)")).instructions
    assert [i.op for i in found].count(Op.CALL_EX) == 1
    assert [(i.op, i.arg) for i in found if i.op in (Op.CALL, Op.CALL_KW)] == [(Op.CALL_KW, 2)]


def test_a_handler_says_how_much_of_the_stack_stays() -> None:
    code = normalize(code_of("def f(x):\n for i in x:\n  try:\n   i()\n  except ValueError:\n   pass"))
    call = next(i for i in code.instructions if i.op is Op.CALL)
    assert call.handler is not None
    assert call.handler.depth == 1  # the iterator
    assert code.instructions[call.handler.target].op is Op.PUSH_EXC_INFO


def test_cells_arguments_and_free_variables_have_one_slot_each() -> None:
    outer = code_of("def f(a, b):\n c = 1\n d = 2\n def g(): return a, c\n return g, b, d")
    code = normalize(outer)
    assert sorted(code.slots) == ["a", "b", "c", "d", "g"]
    assert sorted(code.slots[slot] for slot in code.cells) == ["a", "c"]
    inner = normalize(next(c for c in outer.co_consts if isinstance(c, types.CodeType)))
    assert inner.slots[inner.first_free :] == ("a", "c")


@pytest.mark.parametrize(
    "source",
    [
        "async def f(): pass",
        "async def f():\n yield 1",
        "async def f(x):\n async with x: pass",
    ],
)
def test_async_code_is_refused_with_its_place(source: str) -> None:
    with pytest.raises(UnsupportedCode, match=r"async functions are not interpreted\n  expected: .*\n  what to do: "):
        normalize(code_of(source))


def test_tracing_the_function_does_not_change_what_is_read() -> None:
    source = "def f(x):\n for i in range(3):\n  x += i\n return x"
    before = normalize(code_of(source))
    traced = code_of(source)
    function = types.FunctionType(traced, {"range": range})
    old = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        for _ in range(100):  # specialised and, from 3.12 on, instrumented
            function(1)
        after = normalize(traced)
    finally:
        sys.settrace(old)
    assert after.instructions == before.instructions


# ------------------------------------------------------------------------------------------- the check finds wrong code


def changed(code: NormalizedCode, op: Op, change: Callable[[Instruction], Instruction]) -> NormalizedCode:
    """The code with its first instruction of a kind changed."""
    index = next(i for i, instruction in enumerate(code.instructions) if instruction.op is op)
    instructions = list(code.instructions)
    instructions[index] = change(instructions[index])
    return replace(code, instructions=tuple(instructions))


@pytest.mark.parametrize(
    ("op", "change"),
    [
        (Op.CALL, lambda i: replace(i, arg=i.arg + 1)),
        (Op.CALL, lambda i: replace(i, arg=i.arg - 1)),
        (Op.POP, lambda i: replace(i, op=Op.LOAD_CONST)),
        (Op.FOR_ITER, lambda i: replace(i, arg=10_000)),
        (Op.FOR_ITER, lambda i: replace(i, arg=1)),
        (Op.LOAD_FAST, lambda i: replace(i, arg=99)),
        (Op.CALL, lambda i: replace(i, handler=Handler(0, 50))),
        (Op.CALL, lambda i: replace(i, handler=Handler(0, 0))),
        (Op.RETURN_VALUE, lambda i: replace(i, op=Op.POP)),
    ],
)
def test_code_that_does_not_fit_is_found(op: Op, change: Callable[[Instruction], Instruction]) -> None:
    code = normalize(code_of("def f(x):\n for i in x:\n  x(i)\n return i"))
    verify(code)
    with pytest.raises(MalformedCode):
        verify(changed(code, op, change))


def test_every_operation_has_an_effect_on_the_stack() -> None:
    for op in Op:
        argument = (1, 1) if op is Op.UNPACK_EX else 1
        taken, put = effect(op, None if op in JUMPS else argument)
        assert taken >= 0
        assert put >= 0
