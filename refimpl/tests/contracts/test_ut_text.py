"""Contracts of capture's helpers (rows UT of docs/contracts.md): text of guards and of instructions, arguments, static shapes,
hooks on saved tensors."""

from __future__ import annotations

import dis
import enum
import linecache
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest
import torch
from torch import fx
from torch.autograd.graph import saved_tensors_hooks

import refimpl
from refimpl._torch import upstream_shape_error
from refimpl.capture.config import config
from refimpl.capture.guards.sources import AttributeSource, ItemSource, OwnAttributeSource, SlotSource
from refimpl.capture.guards.static_shapes import (
    TensorStaticReason,
    tensor_always_has_static_shape,
    tensor_static_reason_to_message,
)
from refimpl.capture.values import ArrayValue, ConstantValue, LazyValue, NumberValue, ObjectValue, Value
from refimpl.symbolic.fake_inputs import fake_int
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.tests.contracts.contract_backend import Backend, backend, nothing_is_left
from refimpl.upstream import argument_checks as checks
from refimpl.upstream import guard_text, positions

__all__ = ["backend", "nothing_is_left"]  # fixtures

Tensor = torch.Tensor


# ----------------------------------------------------------------------------------------------------------- arguments


def test_arguments_are_asked_all_at_once() -> None:
    """UT-24"""
    size = fake_int(5, ShapeEnv(), "L['n']", "DYNAMIC")
    number, constant, other = NumberValue(size), ConstantValue(3), ObjectValue(object())
    array = ArrayValue(fx.Graph().placeholder("x"), torch.ones(2))
    cases: list[tuple[list[Value], tuple[bool, bool, bool, bool]]] = [
        ([], (True, False, True, False)),
        ([constant], (True, False, True, False)),
        ([number], (False, True, True, False)),
        ([number, constant], (False, True, True, False)),
        ([number, other], (False, False, False, False)),
        ([constant, array], (False, False, False, True)),
    ]
    asked = (
        checks.check_constant_args, checks.check_unspec_python_args, checks.check_unspec_or_constant_args,
        checks.check_numpy_ndarray_args,
    )  # fmt: skip
    for values, expected in cases:
        named = {f"k{index}": value for index, value in enumerate(values)}
        assert tuple(check(values, {}) for check in asked) == expected, values
        assert tuple(check([], named) for check in asked) == expected, values
    with pytest.raises(AssertionError, match="is a lazy value"):
        checks.check_constant_args([LazyValue(3, SlotSource(0, 0, "n"))], {})


def test_a_symbolic_number_that_is_needed_as_a_constant_is_guarded() -> None:
    """UT-24"""
    env = ShapeEnv()
    size = fake_int(5, env, "L['n']", "DYNAMIC")
    specialised = checks.specialize_symnode(NumberValue(size))
    assert isinstance(specialised, ConstantValue)
    assert (specialised.value, type(specialised.value)) == (5, int)
    assert len(env.guards) == 1
    plain = ConstantValue("text")
    assert checks.specialize_symnode(plain) is plain
    assert checks.guard_if_dyn(NumberValue(fake_int(7, env, "L['m']", "DYNAMIC"))) == 7
    assert checks.guard_if_dyn(plain) == "text"
    other = ObjectValue(object())
    assert checks.guard_if_dyn(other) is other
    with pytest.raises(upstream_shape_error("GuardOnDataDependentSymNode")):
        checks.guard_if_dyn(NumberValue(env.create_unbacked_symint()))


# ------------------------------------------------------------------------------------------------------ text of guards


class Color(enum.Enum):
    RED = 1

    def __str__(self) -> str:
        return "no name"


def test_constants_as_guards_write_them() -> None:
    """UT-25"""
    assert guard_text.enum_repr(Color.RED, local=True) == 'L["Color"].RED'
    assert guard_text.enum_repr(Color.RED, local=False) == 'G["Color"].RED'
    written = {
        (1,): "(1,)", (): "()", (1, "a"): "(1,'a')", (Color.RED, (2,)): '(L["Color"].RED,(2,))', len: "len", int: "int",
        torch.nn.Linear: "torch.nn.modules.linear.Linear", 1.5: "1.5", None: "None", torch.float32: "torch.float32",
    }  # fmt: skip
    assert {key: guard_text.const_repr(key, local=True) for key in written} == written
    assert guard_text.const_repr([1, "a"], local=True) == "[1,'a']"
    assert guard_text.dict_keys_repr({"a": 1, Color.RED: 2, 3: 3}, local=False) == "['a',G[\"Color\"].RED,3]"


def test_keys_that_are_known_by_their_identity() -> None:
    """UT-25"""
    tensor, module = torch.ones(2), torch.nn.ReLU()
    assert all(map(guard_text.key_is_id, (tensor, module, "text".__str__)))
    assert not any(map(guard_text.key_is_id, (1, "a", Color.RED, torch.sin)))
    assert guard_text.key_to_id({tensor: 0, "a": 1, module: 2}) == [id(tensor), "a", id(module)]
    assert guard_text.GLOBAL_KEY_PREFIX == "__dict_key"


# ------------------------------------------------------------------------------------------------------- static shapes


def test_parameters_and_what_modules_own_have_numbers_for_sizes() -> None:
    """UT-44"""
    local = SlotSource(0, 0, "x")
    of_module = ItemSource(OwnAttributeSource(local, "_buffers"), "running_mean")
    parameter, tensor = torch.nn.Parameter(torch.ones(2)), torch.ones(2)
    reason = TensorStaticReason
    assert tensor_always_has_static_shape(tensor, True, of_module) == (True, reason.NN_MODULE_PROPERTY)
    assert tensor_always_has_static_shape(parameter, True, of_module) == (True, reason.NN_MODULE_PROPERTY), (
        "asked first"
    )
    assert tensor_always_has_static_shape(parameter, True, local) == (True, reason.PARAMETER)
    assert tensor_always_has_static_shape(3, False, local) == (True, reason.NOT_TENSOR)
    assert tensor_always_has_static_shape(parameter, False, local) == (True, reason.PARAMETER)
    assert tensor_always_has_static_shape(tensor, True, AttributeSource(local, "plain")) == (False, None)
    with config.patch(force_nn_module_property_static_shapes=False):
        assert tensor_always_has_static_shape(tensor, True, of_module) == (False, None)
        assert tensor_always_has_static_shape(parameter, True, of_module) == (True, reason.PARAMETER)
        with config.patch(force_parameter_static_shapes=False):
            assert tensor_always_has_static_shape(parameter, True, of_module) == (False, None)

    class Derived(torch.nn.Parameter):
        pass

    assert tensor_always_has_static_shape(Derived(torch.ones(2)), True, local) == (False, None), "exactly a parameter"


def test_every_reason_has_a_sentence() -> None:
    """UT-44"""
    said = [tensor_static_reason_to_message(reason) for reason in TensorStaticReason]
    assert [("parameter" in text, "non tensor" in text, "nn module" in text) for text in said] == [
        (True, False, False), (False, True, False), (False, False, True),
    ]  # fmt: skip
    unknown: Any = "because"
    with pytest.raises(AssertionError, match="Illegal reason because"):
        tensor_static_reason_to_message(unknown)


class WithBuffer(torch.nn.Module):
    held: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("held", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.held.sum()


def test_settings_decide_whether_sizes_of_buffers_become_symbols(backend: Backend) -> None:
    """UT-44, DY-09"""

    def captured() -> int:
        refimpl.reset()
        before = backend.n
        compiled = refimpl.optimize(backend)(lambda module, x: module(x))
        for size in (2, 3, 4, 5):
            assert compiled(WithBuffer(size), torch.ones(1)).item() == 1 + size
        return backend.n - before

    assert captured() == 4
    with config.patch(force_nn_module_property_static_shapes=False):
        assert captured() == 2


# -------------------------------------------------------------------------------------------------- source positions

SOURCE = """\
def program(f, g, x, y, z):
    r = f(g(
         h(x)))
    s = x + y*z
    é = x ** (y)
    w = (x.foo[y]
       + z)
    return x.abc.method(y, z)
"""
SHOWN = {
    ("CALL", "h(x)"): """\
         h(x)))
         ~^^^
""",
    ("CALL", "g("): """\
    r = f(g(
          ~^
         h(x)))
         ^^^^^
""",
    ("CALL", "f(g("): """\
    r = f(g(
        ~^^^
         h(x)))
         ^^^^^^
""",
    ("BINARY_OP", "y*z"): """\
    s = x + y*z
            ~^~
""",
    ("BINARY_OP", "x + y*z"): """\
    s = x + y*z
        ~~^~~~~
""",
    ("BINARY_OP", "x ** (y)"): """\
    é = x ** (y)
        ~~^^~~~~
""",
    ("BINARY_OP", "x.foo[y]"): """\
    w = (x.foo[y]
         ~~~~~~~~
       + z)
       ^~~
""",
    ("CALL", "x.abc.method(y, z)"): """\
    return x.abc.method(y, z)
           ~~~~~~~~~~~~^^^^^^
""",
    ("LOAD_ATTR", "x.abc"): """\
    return x.abc.method(y, z)
           ^^^^^
""",
}
WITH_POSITIONS = sys.version_info >= (3, 11)


def _program(name: str) -> CodeType:
    lines: list[str] = [*SOURCE.splitlines(keepends=True)]
    linecache.cache[name] = (len(SOURCE), None, lines, name)
    scope: dict[str, Any] = {}
    exec(compile(SOURCE, name, "exec"), scope)
    return scope["program"].__code__


def _text_at(inst: dis.Instruction) -> str:
    """The source text of the instruction, up to the end of its first line."""
    at: Any = getattr(inst, "positions")
    first = SOURCE.splitlines()[at.lineno - 1].encode()
    return first[at.col_offset : at.end_col_offset if at.lineno == at.end_lineno else None].decode()


@pytest.mark.skipif(not WITH_POSITIONS, reason="code has positions of instructions since Python 3.11")
def test_what_an_instruction_does_is_underlined() -> None:
    """UT-51"""
    code = _program("<positions>")
    shown = {
        (inst.opname, _text_at(inst)): positions.get_instruction_source_311(code, inst)
        for inst in dis.get_instructions(code)
        if None not in (getattr(inst, "positions").lineno, getattr(inst, "positions").col_offset)
    }
    assert {key: shown[key] for key in SHOWN} == SHOWN


@pytest.mark.skipif(not WITH_POSITIONS, reason="code has positions of instructions since Python 3.11")
def test_an_instruction_without_positions_or_without_a_file_has_no_text() -> None:
    """UT-51"""
    code = _program("<positions>")
    call = next(inst for inst in dis.get_instructions(code) if inst.opname == "CALL")
    assert positions.get_instruction_source_311(code, call)
    assert positions.get_instruction_source_311(code.replace(co_filename="<nowhere>"), call) == ""
    assert positions.get_instruction_source_311(code, object()) == ""


def test_offsets_of_bytes_are_offsets_of_characters() -> None:
    """UT-51"""
    assert [positions._fix_offset("é=ü", offset) for offset in (0, 2, 3, 5)] == [0, 1, 2, 3]


# ----------------------------------------------------------------------------------------------- hooks on saved tensors


def _with_hooks(function: Callable[[Tensor], Tensor]) -> tuple[list[str], Tensor]:
    """What hooks were called with, and the gradient."""
    log: list[str] = []

    def pack(tensor: Tensor) -> Tensor:
        log.append(f"pack {type(tensor).__name__} {tuple(tensor.shape)}")
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        log.append("unpack")
        return tensor

    w = torch.ones(3, requires_grad=True)
    with saved_tensors_hooks(pack, unpack):
        result = function(w)
    result.backward()
    assert w.grad is not None
    return log, w.grad


def test_hooks_on_saved_tensors_wait_for_the_graph_to_run(backend: Backend) -> None:
    """UT-57"""

    def program(w: Tensor) -> Tensor:
        return (w.sin() * w).exp().sum()

    expected_log, expected = _with_hooks(program)
    assert len(expected_log) == 8
    compiled = refimpl.optimize(backend)(program)
    for call in ("captured", "run again"):
        log, gradient = _with_hooks(compiled)
        assert log == expected_log, call
        assert torch.equal(gradient, expected)
    assert backend.n == 1
    log, gradient = _with_hooks(refimpl.compile(program, backend="aot_eager"))
    assert all("FakeTensor" not in line for line in log)
    assert torch.equal(gradient, expected)


def test_hooks_are_on_again_after_a_capture_that_fails(backend: Backend) -> None:
    """UT-57"""

    def program(w: Tensor) -> Tensor:
        refimpl.graph_break()
        return w

    log: list[int] = []
    with saved_tensors_hooks(lambda tensor: log.append(1), lambda tensor: tensor):
        with pytest.raises(RuntimeError):
            refimpl.optimize_assert(backend)(program)(torch.ones(2))
        torch.ones(2, requires_grad=True).sin()
    assert log == [1]
