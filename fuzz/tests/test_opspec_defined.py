"""What is drawn has one meaning: eager gives the same bits again, and from inputs at other places in memory."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from fuzz.program.render import render
from fuzz.tests.opspec_samples import Sample, tallies, tensors_of
from fuzz.vocabulary.operators import OPERATORS
from oracle.hygiene import seed_everything
from oracle.observe.flatten import flatten

# Kernels that take another path for memory that is aligned otherwise; they agree up to rounding.
_ALIGNED = ("matmul", "conv", "linalg", "attention", "fft", "in place", "out", "aten", "loss", "norm", "operator", "reduction",
            "special")  # fmt: skip


def _run(sample: Sample, *, elsewhere: bool = False) -> list[Any]:
    """Leaves of the result and of the arguments afterwards."""
    namespace: dict[str, Any] = {}
    exec(compile(render(sample.program), f"<{sample.operator}>", "exec"), namespace)
    arguments = tensors_of(sample.program, elsewhere=elsewhere)
    seed_everything(sample.program.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = namespace["program"](*arguments)
    return [leaf.value for leaf in flatten((result, arguments), "")[0]]


def _difference(one: list[Any], other: list[Any], *, is_exact: bool) -> str:
    """Empty if they are the same; floats exactly (NaN is NaN), or up to rounding."""
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        if not isinstance(a, torch.Tensor):
            if a != b and a == a:
                return f"value {i} is {b!r}, but was {a!r}"
            continue
        if (a.shape, a.dtype, a.stride()) != (b.shape, b.dtype, b.stride()):
            return f"tensor {i} is {b.shape, b.dtype, b.stride()}, but was {a.shape, a.dtype, a.stride()}"
        if not _are_equal(a.detach(), b.detach(), is_exact=is_exact):
            return f"tensor {i} is {b}, but was {a}"
    return ""


def _are_equal(a: torch.Tensor, b: torch.Tensor, *, is_exact: bool) -> bool:
    if a.dtype.is_floating_point and a.dtype.itemsize == 1:
        a, b = a.float(), b.float()
    if is_exact or not (a.is_floating_point() or a.is_complex()):
        return bool(((a == b) | ((a != a) & (b != b))).all())
    return torch.allclose(a, b, rtol=1e-2 if a.dtype.itemsize == 2 else 1e-5, atol=1e-5, equal_nan=True)


_LAPACK = "linalg"  # its workspaces are aligned by chance: the last bit of a result may differ from run to run
_STORAGE = ("torch.as_strided", "torch.as_strided_copy", "torch.as_strided_scatter")  # they name places of the storage
_SAMPLES = 1  # of each operator: there are a thousand


@pytest.mark.parametrize("category", sorted({spec.category for spec in OPERATORS.values()}))
def test_eager_gives_the_same_again_also_from_other_places_in_memory(category: str) -> None:
    is_exact = category not in _ALIGNED
    for name in [name for name, spec in OPERATORS.items() if spec.category == category]:
        for sample in tallies()[name].samples[:_SAMPLES]:
            first = _run(sample)
            assert _difference(first, _run(sample), is_exact=category != _LAPACK) == "", render(sample.program)
            if name not in _STORAGE:
                moved = _run(sample, elsewhere=True)
                assert _difference(first, moved, is_exact=is_exact) == "", render(sample.program)


def test_a_difference_is_noticed() -> None:
    sample = tallies()["torch.sin"].samples[0]
    seen = _run(sample)
    value = torch.tensor([1.0, float("nan"), 0.0])
    other = torch.tensor([1.0, float("nan"), 1.0])
    assert _difference(seen, seen, is_exact=True) == ""
    assert _difference([value], [value.clone()], is_exact=True) == ""
    for is_exact in (True, False):
        assert _difference([value], [other], is_exact=is_exact) != ""
        assert _difference([value], [torch.ones(6)[::2]], is_exact=is_exact) != ""
    assert _difference([value], [value + 1e-7], is_exact=True) != ""
    assert _difference([3], [4], is_exact=True) != ""
