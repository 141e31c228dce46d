"""Programs with input specs as programs whose source makes the same inputs, and scripts of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from fuzz.triage.inputs_in_source import inputs_in_source
from fuzz.triage.repro import ALL_ASPECTS, aspects, text_script
from fuzz.triage.script_runs import exit_code
from oracle.errors import UsageError
from oracle.program import Call, Program, default_plan
from oracle.program.build import instantiate
from oracle.program.input_text import parse_call
from oracle.subjects.registry import resolve
from oracle.verdict import Status, Verdict

_SOURCE = "import torch\n\n\ndef program(a, b=None, n=1):\n    return torch.bitwise_xor(a, n)\n"
_WRONG = resolve("fuzz.tests.planted_bugs:integer_value")


def _inputs(program: Program) -> list[tuple[Any, Any]]:
    return [instantiate(program).inputs(number) for number in range(len(program.calls))]


@pytest.mark.parametrize(
    "text", ["i64[3] < 9, b=f32[2, 3].t, n=2", "f32[3, 5].grad, [f32[200], 'text']", "f16[4], dtype=bfloat16", ""]
)
def test_the_source_makes_the_same_inputs_for_every_call(text: str) -> None:
    call = parse_call(text)
    program = Program(name="p", source=_SOURCE, calls=default_plan(call, key=None), seed=5)
    written = inputs_in_source(program)
    assert all(call == Call() for call in written.calls)
    for number in range(len(written.calls)):
        leaves, own_leaves = (tree_leaves(instantiate(each).inputs(number)) for each in (program, written))
        for one, own in zip(leaves, own_leaves, strict=True):
            if isinstance(one, torch.Tensor):
                torch.testing.assert_close(own, one, rtol=0, atol=0)
                assert (own.stride(), own.requires_grad) == (one.stride(), one.requires_grad)
            else:
                assert own == one


def test_calls_of_the_source_keep_its_own_inputs() -> None:
    source = _SOURCE + "\n\ndef inputs(call):\n    return (torch.full((2,), call + 4), ), {}\n"
    plan = (Call(), Call(values="moved"), Call(args=[{"$": "tensor", "shape": [1], "dtype": "int64"}]))
    program = Program(name="p", source=source, calls=plan)
    written = inputs_in_source(program)
    for one, own in zip(_inputs(program), _inputs(written), strict=True):
        torch.testing.assert_close(own, one, rtol=0, atol=0)
    assert inputs_in_source(written) is written
    assert inputs_in_source(replace(program, calls=(Call(), Call()))).source == source


def test_inputs_without_a_text_and_too_long_ones_are_refused() -> None:
    sparse = {"$": "ndarray", "tensor": {"$": "tensor", "shape": [2], "dtype": "float32"}}
    with pytest.raises(UsageError, match="an input of type ndarray"):
        inputs_in_source(Program(name="p", source=_SOURCE, calls=(Call(args=[sparse]),)))
    large = parse_call("f32[600000]")
    with pytest.raises(UsageError, match=r"whose inputs are .* KiB of text"):
        inputs_in_source(Program(name="p", source=_SOURCE, calls=default_plan(large, key=None, count=2)))


def test_a_script_may_compare_every_aspect_and_rounding_is_forgiven_to_floats_only() -> None:
    program = Program(name="p", source=_SOURCE, calls=(parse_call("i64[3].values(1000, 2000, 3000)"),))
    agrees = Verdict(status=Status.PASS)
    assert aspects(Status.PASS) == ALL_ASPECTS
    assert aspects(Status.FAIL_STRIDE) != ALL_ASPECTS
    text = text_script(inputs_in_source(program), _WRONG, agrees, limits={"rtol": 0.01, "atol": 0.01})
    assert exit_code(text) == 1  # off by one
    near = text.replace("values(1000", "").replace("dtype=torch.int64", "dtype=torch.float64")
    near = near.replace("torch.bitwise_xor(a, n)", "torch.bitwise_xor(a.long(), n).double()")
    assert exit_code(near) == 0
    assert exit_code(near.replace("'rtol': 0.01, 'atol': 0.01", "'rtol': 1e-05, 'atol': 1e-05")) == 1


def test_a_crash_of_the_compiled_program_is_told_by_the_script() -> None:
    source = "import torch\n\n\ndef program(a):\n    return torch.erfinv(a)\n"
    program = inputs_in_source(Program(name="p", source=source, calls=(parse_call("f32[3]"),)))
    crash = Verdict(status=Status.CRASH, symptom="the process died of signal 11")
    text = text_script(program, resolve("fuzz.tests.planted_bugs:crashes"), crash)
    assert 'print("compiled:"' in text
    assert "sys.argv[1:]" in text


def test_the_program_of_a_script_is_a_module_that_can_be_looked_up() -> None:
    source = (
        "from __future__ import annotations\nimport sys\nimport torch\nfrom dataclasses import dataclass\n\n\n"
        "@dataclass\nclass Sizes:\n    rows: int = 2\n\n\n"
        "assert sys.modules[__name__].Sizes is Sizes\n\n\n"
        "def program():\n    return torch.ones(Sizes.rows, device=DEVICE)\n"
    )
    text = text_script(Program(name="p", source=source), resolve("dynamo"), Verdict(status=Status.PASS))
    assert exit_code(text) == 0
