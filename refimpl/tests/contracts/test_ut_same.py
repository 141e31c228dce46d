"""Contracts of capture's helpers (rows UT of docs/contracts.md): `same`, the predicate that upstream accepts results by."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import same as torch_same

from refimpl._torch import FakeTensorMode
from refimpl.capture.public.same import rmse, same

Tensor = torch.Tensor


def noisy(size: int, factor: float, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """A reference that is 1 off from fp64, a result that is `factor` off, and fp64."""
    fp64 = torch.zeros(size, dtype=torch.float64)
    return torch.full((size,), 1.0).to(dtype), torch.full((size,), factor).to(dtype), fp64


def test_the_root_of_the_mean_square() -> None:
    """UT-29"""
    assert rmse(torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0])).item() == pytest.approx(math.sqrt(12.5))
    assert rmse(torch.ones(3), torch.ones(3)).item() == 0


def test_the_signature_is_upstream_s() -> None:
    """UT-30"""
    parameters = inspect.signature(same).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items() if name != "log_error"}
    empty = inspect.Parameter.empty
    assert defaults == {
        "ref": empty, "res": empty, "fp64_ref": None, "cos_similarity": False, "tol": 1e-4, "equal_nan": False,
        "exact_dtype": True, "relax_numpy_equality": False, "ignore_non_fp": False,
        "use_larger_multiplier_for_smaller_tensor": False, "force_max_multiplier": False, "use_iou_for_bool": False,
        "iou_threshold": 0.99,
    }  # fmt: skip
    of_torch = [name for name in inspect.signature(torch_same).parameters if name in parameters]
    assert list(parameters)[: len(of_torch)] == of_torch, "torch 2.11 lacks some of the last ones"


def test_the_reference_itself_serves_as_fp64() -> None:
    """UT-30"""
    ref = torch.zeros(2000, dtype=torch.float64)
    assert same(ref, ref + 0.5e-5), "within a tenth of the tolerance"
    assert not same(ref, ref + 2e-4)
    assert not same(ref.float(), ref.float() + 2e-4), "without fp64 only allclose counts"


def test_containers_are_compared_part_by_part(caplog: pytest.LogCaptureFixture) -> None:
    """UT-31"""
    x = torch.ones(2)
    assert same([x, (x, x)], (x, [x, x]))
    assert same({"a": x, "b": [x]}, {"b": (x,), "a": x})
    assert same(torch.Size([2, 3]), (2, 3))
    assert same(torch.nn.ParameterList([x]), [torch.nn.Parameter(x)])
    assert not same([x, x], [x])
    assert "length is 1, and should be 2" in caplog.text
    assert not same({"a": x, "b": x}, {"a": x + 1, "b": x})
    assert "the result['a'] is not as good" in caplog.text
    with pytest.raises(AssertionError, match="type mismatch"):
        same([x], x)
    with pytest.raises(AssertionError, match="keys mismatch"):
        same({"a": x}, {"b": x})
    with pytest.raises(AssertionError, match="type mismatch"):
        same({"a": x}, [x])


def test_parts_have_their_own_fp64() -> None:
    """UT-31"""
    ref, res, fp64 = noisy(2000, 1.9)
    assert same([ref, {"k": ref}], [res, {"k": res}], [fp64, {"k": fp64}])
    assert not same([ref, {"k": ref}], [res, {"k": res * 2}], [fp64, {"k": fp64}])


def test_outputs_of_models_are_compared_by_attributes_or_by_their_loss() -> None:
    """UT-31"""

    def output(name: str, **attributes: Any) -> Any:
        made = type(name, (), {})()
        vars(made).update(attributes)
        return made

    one, two = torch.ones(1), torch.full((1,), 2.0)
    loss = "QuestionAnsweringModelOutput"
    assert same(output(loss, loss=one, logits=one), output(loss, loss=one, logits=two))
    assert not same(output(loss, loss=one), output(loss, loss=two))
    kind = type("Normal", (), {})
    left: Any = kind()
    right: Any = kind()
    left.loc, right.loc = one, one
    assert same(left, right)
    right.loc = two
    assert not same(left, right)
    with pytest.raises(AssertionError, match="type mismatch"):
        same(left, output("Normal", loc=one))
    with pytest.raises(RuntimeError, match="unsupported type: Unknown"):
        same(output("Unknown"), output("Unknown"))


def test_tensors_and_floats() -> None:
    """UT-32"""
    x = torch.ones(3)
    assert same(1.0, 1.0 + 1e-5)
    assert not same(1.0, 1.1)
    assert not same(x, x.double())
    assert same(x, x.double(), exact_dtype=False)
    nan = torch.tensor([math.nan])
    assert not same(nan, nan)
    assert same(nan, nan, equal_nan=True)
    true, false = torch.tensor([True]), torch.tensor([False])
    assert same(true, true)
    assert not same(true, false)
    assert same(true, false, ignore_non_fp=True)
    assert same(x, x + 1, ignore_non_fp=True), "upstream lets any tensor pass where there is no fp64"
    sparse = torch.eye(2).to_sparse()
    assert same(sparse, torch.eye(2).to_sparse())
    with pytest.raises(AssertionError, match="sparse"):
        same(sparse, torch.eye(2))
    with FakeTensorMode(), pytest.raises(AssertionError, match="fake"):
        same(torch.ones(2), torch.ones(2))


def test_by_the_angle_between_them() -> None:
    """UT-33"""
    a = torch.tensor([1.0, 2.0, 3.0])
    assert same(a, 2 * a, cos_similarity=True), "blind to scale"
    assert not same(a, -a, cos_similarity=True)
    assert same(torch.zeros(3), torch.zeros(3), cos_similarity=True)
    assert same(torch.tensor([math.nan]), torch.tensor([math.nan]), cos_similarity=True)
    assert not same(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.2]), cos_similarity=True)


@pytest.mark.parametrize(
    ("size", "factor", "dtype", "passes"),
    [
        (2000, 1.9, torch.float32, True),
        (2000, 2.1, torch.float32, False),
        (999, 2.9, torch.float32, True),
        (999, 3.1, torch.float32, False),
        (2000, 2.8, torch.bfloat16, True),
        (2000, 3.2, torch.bfloat16, False),
    ],
)
def test_no_further_from_fp64_than_a_few_times_the_reference(
    size: int, factor: float, dtype: torch.dtype, passes: bool
) -> None:
    """UT-34"""
    ref, res, fp64 = noisy(size, factor, dtype)
    assert same(ref, res, fp64) is passes


def test_where_a_mean_says_little_more_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    """UT-34"""
    ref, res, fp64 = (tensor.reshape(20, 100, 1, 1) for tensor in noisy(2000, 2.9))
    assert same(ref, res, fp64)
    ref, res, fp64 = noisy(2000, 2.9)
    assert not same(ref, res, fp64)
    assert same(ref, res, fp64, tol=2e-2)
    assert not same(ref * math.nan, res, fp64)
    assert "the reference has NaN" in caplog.text
    assert not same(ref, res * math.nan, fp64)


def test_numbers_text_and_numpy() -> None:
    """UT-35"""
    assert same("a", "a")
    assert not same("a", "b")
    assert same(3, 3)
    assert not same(3, 4)
    assert same(3, 4, ignore_non_fp=True)
    assert same(None, None)
    assert same(torch.device("cpu"), torch.device("cpu"))
    assert same(np.ones(2), np.ones(2))
    assert not same(np.ones(2), np.ones(2, dtype=np.float32))
    with pytest.raises(AssertionError, match="type mismatch"):
        same(np.ones(2), torch.ones(2))
    three: Any = np.int64(3)
    assert same(three, np.int64(3))
    assert not same(three, 3)
    assert same(three, 3, relax_numpy_equality=True)
    with pytest.raises(RuntimeError, match="unsupported type: object"):
        same(object(), object())


def test_why_not_is_told_to_who_asks() -> None:
    """UT-30"""
    said: list[tuple[Any, ...]] = []
    assert not same(torch.ones(2), torch.zeros(2), log_error=lambda *args: said.append(args))
    assert "allclose" in said[0][0]


@pytest.mark.parametrize(
    ("size", "factor", "options", "passes"),
    [
        (10, 9.9, {"use_larger_multiplier_for_smaller_tensor": True}, True),
        (10, 10.2, {"use_larger_multiplier_for_smaller_tensor": True}, False),
        (500, 7.9, {"use_larger_multiplier_for_smaller_tensor": True}, True),
        (500, 8.1, {"use_larger_multiplier_for_smaller_tensor": True}, False),
        (501, 3.1, {"use_larger_multiplier_for_smaller_tensor": True}, False),
        (2000, 9.9, {"force_max_multiplier": True}, True),
        (2000, 10.2, {"force_max_multiplier": True}, False),
        (10, 3.1, {}, False),
    ],
)
def test_more_may_be_allowed_for_small_tensors_or_for_all(
    size: int, factor: float, options: dict[str, Any], passes: bool
) -> None:
    """UT-30, UT-34"""
    ref, res, fp64 = noisy(size, factor)
    assert same([ref], [res], [fp64], **options) is passes
    assert torch_same(ref, res, fp64, **options) is passes


def masks(both: int, only_ref: int, only_res: int) -> tuple[Tensor, Tensor]:
    """Two tensors of bools: so many elements are true in both, only in the first, and only in the second."""
    ref = [True] * (both + only_ref) + [False] * (only_res + 3)
    res = [True] * both + [False] * only_ref + [True] * only_res + [False] * 3
    return torch.tensor(ref), torch.tensor(res)


@pytest.mark.parametrize(
    ("ref", "res", "options", "passes"),
    [
        (*masks(99, 1, 0), {}, True),
        (*masks(98, 1, 1), {}, False),
        (*masks(98, 1, 1), {"iou_threshold": 0.9}, True),
        (*masks(0, 0, 0), {}, True),
        (*masks(0, 1, 0), {}, False),
        (*masks(0, 1, 0), {"ignore_non_fp": True}, True),
        (*masks(99, 1, 0), {"use_iou_for_bool": False}, False),
    ],
)
def test_masks_may_be_compared_by_their_overlap(ref: Tensor, res: Tensor, options: Any, passes: bool) -> None:
    """UT-30"""
    options = {"use_iou_for_bool": True, **options}
    assert same(ref, res, **options) is passes
    assert bool(torch_same(ref, res, **options)) is passes


@pytest.mark.parametrize(
    ("ref", "res", "fp64", "options", "passes"),
    [
        ([math.nan, 1.0], [1.0, 1.03], [1.0, 1.0], {}, True),
        ([math.nan, 1.0], [1.0, 1.2], [1.0, 1.0], {}, False),
        ([math.nan, 1.0], [1.0, math.nan], [1.0, 1.0], {}, False),
        ([math.nan, 1.0], [math.nan, 1.2], [1.0, 1.0], {"equal_nan": True}, True),
        ([math.nan, 1.0], [math.nan, 1.2], [1.0, 1.0], {"equal_nan": False}, False),
        ([math.nan, 1.0], [1.0, 1.0], [math.nan, 1.0], {}, False),
        ([1.0, 1.0], [math.nan, 1.0], [1.0, 1.0], {"equal_nan": True}, False),
    ],
)
def test_a_result_that_is_better_than_a_reference_with_nan_passes(
    ref: Any, res: Any, fp64: Any, options: Any, passes: bool
) -> None:
    """UT-34"""
    values = torch.tensor(ref), torch.tensor(res), torch.tensor(fp64, dtype=torch.float64)
    assert same(*values, **options) is passes
    assert torch_same(*values, **options) is passes
