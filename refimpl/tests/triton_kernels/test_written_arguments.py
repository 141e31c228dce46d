"""Which parameters a kernel writes, from its source."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
from triton.runtime.interpreter import InterpretedFunction

from refimpl.tests.triton_kernels import analysed
from refimpl.tests.triton_kernels.programs import kernels
from refimpl.trace.triton_kernels import code_read_by, written_parameters

EXPECTED = re.findall(r"^# ?([a-z ]*)\n@triton\.jit\ndef (\w+)", inspect.getsource(analysed), re.M)
TENSORS = frozenset({"x", "y", "out"})


@pytest.mark.parametrize(("written", "name"), EXPECTED)
def test_the_written_parameters(written: str, name: str) -> None:
    kernel = analysed.KERNELS[name]
    assert written_parameters(kernel, TENSORS, {}) == set(written.split())


def test_interpreted_kernels_are_analysed_as_compiled_ones() -> None:
    expected = {
        "add_kernel": {"out_ptr"},
        "scale_kernel": {"ptr"},
        "count_kernel": {"count_ptr"},
        "nothing_kernel": set(),
    }
    for name, written in expected.items():
        kernel = getattr(kernels, name)
        tensors = frozenset(name for name in kernel.arg_names if name.endswith("ptr"))
        assert written_parameters(kernel, tensors, {}) == written


def test_a_function_among_the_arguments_is_followed() -> None:
    kernel = analysed.KERNELS["function_is_an_argument"]
    assert written_parameters(kernel, TENSORS, {"BLOCK": analysed.moved}) == set()
    assert written_parameters(kernel, TENSORS, {"BLOCK": kernels.doubled}) == set()


def test_a_type_of_pointers_among_the_arguments_makes_all_written() -> None:
    pointer = analysed.tl.pointer_type(analysed.tl.float32)
    assert written_parameters(analysed.KERNELS["nothing"], TENSORS, {"BLOCK": pointer}) == TENSORS


def test_what_runs_around_the_kernel_may_write() -> None:
    kernel = analysed.KERNELS["nothing"]

    def tuned(**options: Any) -> Any:
        return triton.autotune(configs=[triton.Config({"BLOCK": 8}, **options)], key=[])(kernel)

    assert written_parameters(tuned(), TENSORS, {}) == set()
    assert written_parameters(tuned(pre_hook=lambda arguments: None), TENSORS, {}) == TENSORS
    cleared = triton.autotune(configs=[triton.Config({})], key=[], reset_to_zero=["x"], restore_value=["y"])(kernel)
    assert written_parameters(cleared, TENSORS, {}) == {"x", "y"}


def test_without_source_all_is_written() -> None:
    namespace: dict[str, Any] = {}
    exec("def made(x, y):\n    pass", namespace)
    assert written_parameters(InterpretedFunction(namespace["made"]), frozenset({"x", "y"}), {}) == {"x", "y"}


def test_the_functions_that_a_kernel_calls_are_named() -> None:
    assert {read.name for read in code_read_by(analysed.KERNELS["helpers"])} >= {"stored_twice", "moved"}
    assert code_read_by(analysed.KERNELS["nothing"]) == []
