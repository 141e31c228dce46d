"""What is asked of eager's kernels is what they do, also while a program is traced; rules hold on a processor without fused
multiplications, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from refimpl.trace import eager_facts

aten = torch.ops.aten
QUESTIONS = {
    "vectors": (eager_facts.row_vector_bytes, ()),
    **{f"products of {d}": (eager_facts.rounds_products_of_sums, (d,)) for d in (torch.float32, torch.bfloat16)},
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_answer_is_the_same_under_modes_that_would_answer_without_numbers(name: str) -> None:
    question, arguments = QUESTIONS[name]
    question.cache_clear()
    with torch._subclasses.FakeTensorMode(), torch.device("meta"):
        found = question(*arguments)
    question.cache_clear()
    assert question(*arguments) == found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_vectors_of_rows_are_as_wide_as_the_kernel_shows(dtype: torch.dtype) -> None:
    """The first number of each whole vector, and no other, makes the variance NaN where its square overflows."""
    width = eager_facts.row_vector_bytes()
    rows = torch.eye(2 * width // dtype.itemsize, dtype=dtype) * (1e200 if dtype is torch.float64 else 1e30)
    _, _, rstd = aten.native_layer_norm.default(rows, [len(rows)], None, None, 1e-5)
    lanes = width // max(dtype.itemsize, 4)  # half types are computed in float32
    assert rstd.flatten().isnan().nonzero().flatten().tolist() == list(range(0, len(rows), lanes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [1, 7, 64])
def test_what_one_kernel_rounds_others_round(count: int, dtype: torch.dtype) -> None:
    """One question answers for sums with a factor, for products that are added, and for gradients of rows."""
    largest = torch.full((count,), torch.finfo(dtype).max, dtype=dtype)
    row = largest[None] / 4, largest.new_full((1, count), 3.0 / count)
    moments = largest[:1, None] / 2, largest.new_zeros(1, 1)
    of_row = aten.native_layer_norm_backward.default(
        row[1], row[0], [count], *moments, None, None, [True, False, False]
    )
    sums = (
        torch.sub(largest, largest, alpha=2),
        torch.addcmul(-largest, largest, torch.full_like(largest, 2.0)),
        of_row[0],
    )
    assert [not x.isfinite().any() for x in sums] == [eager_facts.rounds_products_of_sums(dtype)] * 3


RULES = {
    "refimpl/tests/test_codegen_regressions.py": ["a_factor_of_an_addend", "a_product_of_addcmul"],
    "refimpl/tests/test_codegen_programs.py": ["operands_of_half_types_are_rounded_as_in_eager and sums"],
    "refimpl/tests/test_codegen_error_bounds.py": ["stay_within_their_bounds and pow"],
    "refimpl/tests/test_decompositions_norms.py": ["rows_with_an_infinite_variance"],
}


def test_rules_follow_kernels_without_fused_multiplications() -> None:
    root = Path(__file__).resolve().parents[2]
    chosen = " or ".join(f"({name})" for names in RULES.values() for name in names)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *RULES, "-k", chosen], cwd=root, check=False,
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
