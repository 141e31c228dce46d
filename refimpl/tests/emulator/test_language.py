"""Names of the emulator's modules are Triton's."""

from __future__ import annotations

import pytest
import torch

from refimpl.codegen.emulator import run_module


def _public(module: str) -> set[str]:
    namespace = run_module(f"import {module} as members", "<names>", "names")
    return {name for name in vars(namespace["members"]) if not name.startswith("_")}


@pytest.mark.parametrize("module", ["triton.language", "triton.language.math", "triton.language.extra.libdevice"])
def test_triton_has_every_name_of_the_emulator(module: str) -> None:
    """A kernel that uses another name would not compile, however well it runs here."""
    of_triton = pytest.importorskip(module, reason="Triton is not installed")
    assert {name for name in _public(module) if not hasattr(of_triton, name)} == set()


def test_functions_of_the_emulators_modules_are_in_the_language() -> None:
    """Tries one function from each module that makes up `triton.language`, and one with the name of a Python builtin."""
    assert {"philox", "swizzle2d", "xor_sum", "sum", "max"} <= _public("triton.language")
    assert not {"axis_of", "to_value", "sum_"} & _public("triton.language")


def test_the_emulator_has_libdevices_functions_that_torch_has_too() -> None:
    of_triton = pytest.importorskip("triton.language.extra.libdevice", reason="Triton is not installed")
    overloads = {name: getattr(getattr(torch.ops.aten, name, None), "default", None) for name in vars(of_triton)}
    elementwise = {name for name, op in overloads.items() if op is not None and torch.Tag.pointwise in op.tags}
    assert len(elementwise) > 25
    assert elementwise <= _public("triton.language.extra.libdevice")
