"""The public strategies: what users write property tests with."""

from __future__ import annotations

import contextlib
import json
import math
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, find, given, settings

import fuzz
from fuzz.program.render import to_program
from fuzz.program.structure import FuzzProgram, OpCall, Ref, walk
from fuzz.vocabulary.operators import OPERATORS
from oracle.checking import DisagreementError
from oracle.errors import UsageError
from oracle.program import Call
from oracle.program.build import instantiate
from oracle.verdict import Status

_QUICK = settings(
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@_QUICK
@given(fuzz.programs())
def test_programs_are_source_and_json(program: FuzzProgram) -> None:
    instance = instantiate(to_program(program, name="drawn"))
    assert callable(instance.target)
    assert FuzzProgram.from_json(json.loads(json.dumps(program.to_json()))) == program


@_QUICK
@given(fuzz.programs(focus="ops", max_statements=1, random_ops=False))
def test_eager_agrees_with_itself(program: FuzzProgram) -> None:
    fuzz.assert_agrees(program, "eager")


def _forgets_products(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
    """A backend whose products of float32 tensors are zeros."""

    def mul(x: Any, y: Any) -> Any:
        result = torch.mul(x, y)
        return torch.zeros_like(result) if result.dtype is torch.float32 else result

    for node in gm.graph.nodes:
        if node.target is torch.mul:
            node.target = mul
    gm.recompile()
    return gm.forward


class _SearchEnds(BaseException):
    """Ends a search of Hypothesis, which takes any other exception for a failure to shrink."""


def _is_shrunk_to_one_statement(random: Random, *, most_programs: int) -> bool:
    """Whether a program of several statements, one of them with a `dim`, comes down to that statement.

    The search ends there, or after `most_programs`; shrinking the numbers of the statement would take most of the time.
    """
    asked = found = 0

    def has_dimension(program: FuzzProgram) -> bool:
        nonlocal asked, found
        asked += 1
        if asked > most_programs:
            raise _SearchEnds
        if not found and len(program.statements) == 1:
            return False  # what is drawn with one statement says nothing of shrinking
        if not any(isinstance(s, OpCall) and "dim" in dict(s.kwargs) for s in walk(program.statements)):
            return False
        found = len(program.statements)
        if found == 1:
            raise _SearchEnds
        return True

    drawn = fuzz.programs(focus="ops", max_statements=3, dtypes=["float32"], calls=1)
    with contextlib.suppress(_SearchEnds):
        find(drawn, has_dimension, settings=settings(_QUICK, max_examples=2_000), random=random)
    return found == 1


def test_what_is_found_is_shrunk_to_one_statement() -> None:
    """Where a search begins follows from the modules that are loaded, too, and many end at two statements or take too long.

    The seeds that were found to end soon come first.
    """
    assert any(_is_shrunk_to_one_statement(Random(seed), most_programs=250) for seed in (3, 4, 0, 1, 2))


def test_a_wrong_backend_is_told_with_the_program() -> None:
    ones = {"$": "tensor", "shape": [2], "dtype": "float32", "fill": {"kind": "full", "value": 1}}
    product = OpCall(target="torch.mul", args=(Ref("a0"), Ref("a0")), results=("v0",))
    program = FuzzProgram(arguments=("a0",), calls=(Call(args=[ones]),), statements=(product,), result=Ref("v0"))
    with pytest.raises(DisagreementError, match=r"output\[0\] is 0"):
        fuzz.assert_agrees(program, _forgets_products)
    assert fuzz.assert_agrees(program, "aot_eager").status is Status.PASS


@_QUICK
@given(fuzz.tensors(dtypes=["float32"], layouts=["transposed", "sliced"]))
def test_tensors_have_the_dtype_asked_for(tensor: torch.Tensor) -> None:
    assert tensor.dtype is torch.float32


def test_a_drawn_tensor_can_be_anything_a_kernel_meets() -> None:
    options = settings(_QUICK, max_examples=2000)
    assert not find(fuzz.tensors(), lambda t: not t.is_contiguous(), settings=options).is_contiguous()
    assert find(fuzz.tensors(), lambda t: t.numel() == 0, settings=options).numel() == 0
    nan = find(fuzz.tensors(dtypes=["float32"]), lambda t: bool(t.isnan().any()), settings=options)
    assert any(math.isnan(value) for value in nan.flatten().tolist())


@_QUICK
@given(fuzz.op_calls("torch.add"))
def test_a_call_of_an_operator_can_be_made(example: fuzz.OpExample) -> None:
    assert example.name == "torch.add"
    assert isinstance(example(), torch.Tensor)


@_QUICK
@given(fuzz.op_calls())
def test_any_operator_is_drawn_with_values_it_takes(example: fuzz.OpExample) -> None:
    (call,) = example.program.statements
    assert isinstance(call, OpCall)
    assert call.target == example.name
    assert len(example.args) == len(call.args)
    result = example()
    assert (result is not None) or not call.results, f"{example.name} returns nothing for {call.results}"


@pytest.mark.parametrize(
    "strategy",
    [
        lambda: fuzz.programs(focus="everything"),
        lambda: fuzz.tensors(dtypes=["float31"]),
        lambda: fuzz.op_calls("torch.ad"),
    ],
)
def test_what_is_unknown_is_a_clear_error(strategy: Any) -> None:
    with pytest.raises(UsageError, match="expected"):
        find(strategy(), lambda value: True, settings=_QUICK)


def test_profiles_can_be_loaded() -> None:
    fuzz.register_profiles()
    assert settings.get_profile("torch-oracle-ci").derandomize
    assert settings.get_profile("torch-oracle-nightly").max_examples >= 5000


def test_operators_are_many() -> None:
    assert len(OPERATORS) >= 300
