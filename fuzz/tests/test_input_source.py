"""Inputs as text: what is shown of a finding is what its program gets."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import pytest
import torch

from fuzz.campaign.summary import call_lines
from fuzz.draw.choices import RandomDraw
from fuzz.draw.inputs.source import InputSource, input_source, shown_inputs
from fuzz.draw.settings import Settings
from fuzz.program.parsing import program_of
from fuzz.program.render import render_shown
from fuzz.program.structure import FuzzProgram
from fuzz.tests.specs import tensor_spec
from fuzz.vocabulary.programs import draw_program
from oracle.observe.flatten import flatten
from oracle.program import Call
from oracle.program.inputs import decode_call

_NAMES = {"torch": torch, "base64": base64, "zlib": zlib}


def _of(*args: Any) -> FuzzProgram:
    return program_of("def program(a):\n    return a\n", list(args))


def _made(source: InputSource) -> tuple[list[Any], dict[str, Any]]:
    names = dict(_NAMES)
    exec("\n".join(source.lines), names)
    return [eval(text, names) for text in source.args], {name: eval(text, names) for name, text in source.kwargs}


def _facts(value: Any) -> Any:
    """What can be said of an input: bytes, geometry, flags, and which storage it lies in."""
    storages: dict[int, int] = {}
    found = []
    for leaf in flatten(value, "")[0]:
        tensor = leaf.value
        if not isinstance(tensor, torch.Tensor):
            found.append((leaf.path, type(tensor).__name__, repr(tensor)))
            continue
        memory = tensor.untyped_storage()
        at = storages.setdefault(memory.data_ptr(), len(storages)) if memory.nbytes() else -1
        kind = (type(tensor).__name__, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        flags = (tensor.requires_grad, tensor.is_leaf, tensor.is_conj(), tensor.is_neg())
        data = torch.empty(0, dtype=torch.uint8).set_(memory)
        found.append((leaf.path, kind, flags, at, data.numpy().tobytes()))
    return found


def _check(program: FuzzProgram, explicit: int) -> list[InputSource]:
    __tracebackhide__ = True
    sources = []
    for number, call in enumerate(program.calls):
        args, kwargs = decode_call(call, seed=program.seed, root=f"call {number}")
        source = input_source(program, number, explicit=explicit)
        made, made_kwargs = _made(source)
        assert _facts((made, made_kwargs)) == _facts((list(args), kwargs)), "\n".join(source.lines)
        sources.append(source)
    return sources


def test_what_is_shown_of_a_choice_is_what_was_chosen() -> None:
    fill = {"kind": "choice", "values": [0.5, -0.5, 1.5, -1.5], "seed": 3}
    program = _of(tensor_spec(1, fill=fill))
    ((value,), _) = decode_call(program.calls[0], seed=program.seed, root="call 0")
    shown = [[f"x0 = torch.tensor([{value.item()}], dtype=torch.float32)", "program(x0)"]]
    assert shown_inputs(program) == shown
    assert list(call_lines(program, shown)) == [f"# call 0: {shown[0][0]}", "#         program(x0)"]


@pytest.mark.parametrize("explicit", [0, 64])
def test_the_text_of_drawn_programs_gives_their_inputs(explicit: int) -> None:
    seen: set[str] = set()
    for seed in range(60):
        program = draw_program(RandomDraw(f"input source {seed}"), Settings())
        text = "\n".join(line for source in _check(program, explicit) for line in source.lines)
        seen |= {word for word in ("as_strided", "requires_grad", "detach", "randn") if word in text}
    assert {"as_strided", "requires_grad", "detach", "randn"} <= seen


_FILLS: dict[str, dict[str, Any]] = {
    "normal": {"kind": "normal"},
    "scaled": {"kind": "normal", "mean": 2, "std": 0.25, "seed": 5},
    "uniform": {"kind": "uniform", "low": -1, "high": 0.5},
    "integers": {"kind": "integers", "low": 1, "high": 9, "seed": 2},
    "arange": {"kind": "arange", "start": -2, "step": 0.5},
    "full": {"kind": "full", "value": "-inf"},
    "choice": {"kind": "choice", "values": [0.5, "nan", -0.0, 2.5], "seed": 1},
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "complex64"])
@pytest.mark.parametrize("fill", _FILLS)
def test_a_large_tensor_is_said_by_what_draws_it(fill: str, dtype: str) -> None:
    (source,) = _check(_of(tensor_spec(40, 50, dtype=dtype, fill=_FILLS[fill])), 64)
    (line,) = source.lines
    if dtype in ("float32", "float64", "bfloat16", "float16"):
        assert "zlib" not in line
        assert len(line) < 200


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_a_large_tensor_of_whole_numbers_is_said_by_what_draws_it(dtype: str) -> None:
    fills = [None, {"kind": "full", "value": 1}, {"kind": "choice", "values": [0, 1], "seed": 1}, {"kind": "arange"}]
    for fill in fills[: 3 if dtype == "bool" else 4]:
        (source,) = _check(_of(tensor_spec(2000, dtype=dtype, **({"fill": fill} if fill else {}))), 64)
        assert "zlib" not in source.lines[0]
        assert len(source.lines[0]) < 200


def test_contents_that_nothing_draws_are_written_as_they_are() -> None:
    special = tensor_spec(1000, fill={"kind": "special", "seed": 1})
    (source,) = _check(_of(special), 64)
    assert "zlib" in source.lines[0]
    _check(_of(tensor_spec(9, fill={"kind": "special", "seed": 1})), 64)
    data = base64.b64encode(bytes(range(64)) + b"\x01\x00\xc0\xff" * 4).decode()  # a NaN of another payload
    _check(_of(tensor_spec(20, fill={"kind": "raw", "base64": data})), 64)


def test_aliases_of_several_dtypes_and_large_storages_are_kept() -> None:
    wide = tensor_spec(600, dtype="float32", storage="m", fill={"kind": "normal", "seed": 3})
    part = tensor_spec(4, dtype="int32", storage="m", stride=[2], offset=1)
    _check(program_of("def program(a, b):\n    return [a, b]\n", [wide, part]), 64)
    _check(program_of("def program(a, b):\n    return [a, b]\n", [part, wide]), 64)


def test_arguments_that_are_derived_are_shown_with_how() -> None:
    plain = _of(tensor_spec(3))
    program = FuzzProgram(
        arguments=("b",), statements=plain.statements, result=program_of("def program(b):\n    return b\n", []).result,
        calls=(Call(args=[tensor_spec(3, requires_grad=True)], backward=True, before="x = 1\ny = 2"),),
        inputs=("a",), derive=program_of("def program(a):\n    b = torch.mul(a, 2)\n    return b\n", []).statements,
    )  # fmt: skip
    assert "def derive(a):\n    b = torch.mul(a, 2)\n    return [b], {}\n" in render_shown(program)
    lines = list(call_lines(program, shown_inputs(program)))
    assert lines[0] == "# call 0: x = 1"
    assert lines[1] == "#         y = 2"
    assert lines[-1] == "#         program(*derive(x0)[0])  (backward)"


def test_where_the_inputs_are_not_known_what_they_are_drawn_by_is_said() -> None:
    fill = {"kind": "choice", "values": [0.5, -0.5], "seed": 3}
    (line,) = call_lines(_of(tensor_spec(1, fill=fill), 2), [])
    assert line == "# call 0: program(float32[1] (drawn by choice: values [0.5, -0.5], seed 3), 2)"
