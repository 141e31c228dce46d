"""For arbitrary tensors: what is equal passes, and one element moved by more than the tolerance fails."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.judge.tolerance import TABLE
from oracle.judge.ulp import bits_of, max_ulp, ulp_distance
from oracle.tests.outcomes import judged, returned
from oracle.verdict import Status

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
DTYPES = [*TABLE, *INTEGERS, torch.bool]
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def bytes_per_number(dtype: torch.dtype) -> int:
    return torch.empty((), dtype=dtype).element_size()


@st.composite
def tensors(draw, dtypes=tuple(DTYPES), shapes=SHAPES):
    """Any bits at all: every NaN, infinity, subnormal and signed zero of the dtype; contiguous, transposed or strided."""
    dtype, shape = draw(st.sampled_from(dtypes)), draw(shapes)
    count = math.prod(shape) * bytes_per_number(dtype)
    raw = draw(st.binary(min_size=count, max_size=count))
    flat = torch.tensor(list(raw), dtype=torch.uint8)
    tensor = (flat % 2 == 1) if dtype is torch.bool else flat.view(dtype) if count else torch.empty(0, dtype=dtype)
    tensor = tensor.reshape(shape)
    form = draw(st.sampled_from(["contiguous", "transposed", "strided"]))
    if form == "transposed" and tensor.ndim >= 2:
        return tensor.transpose(0, -1)
    if form == "strided" and tensor.ndim >= 1:
        return torch.stack([tensor, tensor], dim=-1)[..., 0]
    return tensor


@settings(max_examples=300, deadline=None)
@given(tensors())
def test_every_tensor_agrees_with_its_copy(tensor):
    verdict = judged(returned(tensor), returned(tensor.clone().as_strided(tensor.shape, tensor.clone().stride())))
    if tensor.clone().stride() == tensor.stride():
        assert verdict.status is Status.PASS, verdict.symptom
    assert verdict.status in (Status.PASS, Status.FAIL_STRIDE), verdict.symptom
    assert verdict.max_ulp in (None, 0.0)
    assert verdict.compared.elements == tensor.numel()


@settings(max_examples=200, deadline=None)
@given(tensors(dtypes=tuple(TABLE)))
def test_every_tensor_agrees_with_its_copy_when_the_first_look_finds_other_bits(tensor):
    """NaN payloads and one neighbouring value send the comparison down the slow road, which must find nothing either."""
    other = torch.cat([tensor.reshape(-1), torch.ones(1).to(tensor.dtype)])
    eager = torch.cat([tensor.reshape(-1), torch.ones(1).to(tensor.dtype)])
    row = TABLE[tensor.dtype]
    if row.relative_eps:
        torch.view_as_real(other)[-1, 0].add_(row.eps) if other.is_complex() else bits_of(other)[-1].add_(1)
    verdict = judged(returned(eager), returned(other), truth=returned(eager), noise=[returned(eager)])
    assert verdict.status is Status.PASS, verdict.symptom


@settings(max_examples=300, deadline=None)
@given(tensors(shapes=st.lists(st.integers(1, 4), max_size=3).map(tuple)), st.data())
def test_one_element_moved_by_more_than_the_tolerance_is_always_found(tensor, data):
    at = tuple(data.draw(st.integers(0, size - 1)) for size in tensor.shape)
    wrong = moved(tensor, at)
    if wrong is None:
        return
    runs = {"truth": returned(tensor), "noise": [returned(tensor)] * 2}
    verdict = judged(returned(tensor), returned(wrong), **runs)
    assert verdict.status is Status.FAIL_ACCURACY
    assert verdict.worst is not None
    assert verdict.worst.index == at


def moved(tensor: torch.Tensor, at: tuple[int, ...]) -> torch.Tensor | None:
    """A copy of the same strides, wrong in one element; None where the dtype has no such neighbour (the ends of its range)."""
    wrong = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    wrong.copy_(tensor)
    if tensor.dtype is torch.bool:
        wrong[at] = ~wrong[at]
        return wrong
    if tensor.dtype not in TABLE:
        bits_of(wrong)[at] ^= 1
        return wrong
    row = TABLE[tensor.dtype]
    value = tensor[at].item()
    if not math.isfinite(abs(value)):
        wrong[at] = torch.tensor(1.0).to(tensor.dtype)
        return wrong
    by = 4 * max(row.k, row.relative_eps) * max(row.eps * abs(value), row.tiny)
    new = torch.tensor(value + by, dtype=torch.complex128 if tensor.is_complex() else torch.float64).to(tensor.dtype)
    difference = abs(new.to(torch.complex128 if tensor.is_complex() else torch.float64).item() - value)
    if not math.isfinite(difference) or difference < by / 2:
        return None
    wrong[at] = new
    return wrong


@settings(max_examples=200, deadline=None)
@given(tensors(dtypes=tuple(dtype for dtype in TABLE if not dtype.is_complex), shapes=st.tuples(st.integers(1, 8))))
def test_ulp_distances_are_a_metric_on_the_line_of_floats(tensor):
    back = tensor.flip(0) if tensor.element_size() > 1 else bits_of(tensor).flip(0).view(tensor.dtype)
    distance = ulp_distance(tensor, back)
    assert torch.equal(distance, ulp_distance(back, tensor))
    assert bool((distance >= 0).all())
    assert not bool(ulp_distance(tensor, tensor.clone()).any())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_neighbours_are_one_ulp_apart_and_zeros_none(dtype):
    one = torch.ones(1, dtype=dtype)
    assert max_ulp(one, torch.nextafter(one, one + 1)) == 1
    assert max_ulp(torch.zeros(1, dtype=dtype), -torch.zeros(1, dtype=dtype)) == 0
    smallest = torch.nextafter(torch.zeros(1, dtype=dtype), one)
    assert max_ulp(smallest, -smallest) == 2


def test_ulps_of_the_whole_range_of_float64_do_not_overflow():
    largest = torch.tensor([torch.finfo(torch.float64).max], dtype=torch.float64)
    assert max_ulp(largest, -largest) == pytest.approx(2 * 0x7FEFFFFFFFFFFFFF)


def test_a_complex_number_counts_its_worse_part():
    a = torch.tensor([1 + 1j])
    assert max_ulp(a, torch.complex(torch.ones(1), torch.full((1,), 1 + 2**-22))) == 2


def test_nan_is_infinitely_far_from_numbers_and_not_from_nan():
    a, b = torch.tensor([math.nan, math.nan]), torch.tensor([math.nan, 1.0])
    assert ulp_distance(a, b).tolist() == [0.0, math.inf]
    assert ulp_distance(b, a).tolist() == [0.0, math.inf]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.complex32], ids=str)
def test_the_largest_distance_is_that_of_elements_that_are_finite_on_both_sides(dtype):
    one, special = torch.ones(3).to(dtype), torch.tensor([1.0, math.inf, math.nan]).to(dtype)
    assert max_ulp(special, special) == 0
    assert max_ulp(special, one) == 0
    moved = torch.tensor([1 + 2 * TABLE[dtype].eps, 1.0, 1.0]).to(dtype)
    assert max_ulp(special, moved) == 2


def test_distances_of_complex_numbers_have_their_shape():
    a = torch.zeros(2, 3, dtype=torch.complex64)
    b = a.clone()
    torch.view_as_real(b)[1, 2, 1] = 2.0**-149
    assert ulp_distance(a, b).tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]


def test_different_dtypes_and_integers_have_no_distance():
    with pytest.raises(TypeError, match="should be one float dtype"):
        ulp_distance(torch.ones(1, dtype=torch.int32), torch.ones(1, dtype=torch.int32))
    with pytest.raises(TypeError, match="should be one float dtype"):
        ulp_distance(torch.ones(1), torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize("dtype", TABLE, ids=str)
def test_every_row_of_the_tolerance_table_has_a_reason_and_describes_its_dtype(dtype):
    row = TABLE[dtype]
    assert len(row.reason) > 30
    ones = torch.tensor([1.0, 1.0 + row.eps], dtype=torch.float64).to(dtype)
    assert abs(ones[1].to(torch.complex128).item() - 1.0) == row.eps
    assert row.smallest_normal == torch.finfo(dtype).smallest_normal
    assert row.tiny == (0.0 if dtype is torch.float8_e8m0fnu else row.smallest_normal * row.eps)
    assert row.rtol <= 0.25
    assert row.rmse <= row.k
    assert row.rmse_factor(1) == row.k
    assert row.rmse_factor(1e12) == pytest.approx(row.rmse, rel=1e-3)
