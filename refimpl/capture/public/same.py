"""`same`: whether a result is as good as a reference, that is, no further from an fp64 result than the reference is.

Counterpart: torch/_dynamo/utils.py same, rmse
Differs: the type of the reference selects the comparison, which returns the reason for a difference and the path to the part
that differs. This is upstream's predicate with its blind spots (strides, aliasing, `requires_grad`, scale in cosine mode);
refimpl is judged by oracle/, which has none of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Any

import numpy as np
import torch

from refimpl._torch import FakeTensor

_LOG = logging.getLogger(__name__)
_ONLY_LOSS = "QuestionAnsweringModelOutput"
# Outputs of models, and distributions: compared by their attributes.
_BY_ATTRIBUTES = frozenset(
    {
        "Boxes", "CausalLMOutputWithCrossAttentions", "Foo", "Instances", "LongformerMaskedLMOutput", "MaskedLMOutput",
        "Normal", "Seq2SeqLMOutput", "SquashedNormal", "TanhTransform", "Variable",
    }
)  # fmt: skip
_SIMILAR = 0.99  # the least cosine similarity that passes
_FEW_ELEMENTS = 1000
_LARGE_TOLERANCE = 2e-2
_NEAR = 4e-2  # the tolerance for a result that is better than a reference with NaN
_LENIENT = 10.0
_FACTORS_OF_SMALL = ((10, 10.0), (500, 8.0))  # elements at most, factor
_HALVES = frozenset({torch.float16, torch.bfloat16})


def rmse(ref: torch.Tensor, res: torch.Tensor) -> torch.Tensor:
    """The root mean square error, as a scalar tensor."""
    return (ref - res).square().mean().sqrt()


def same(
    ref: Any,
    res: Any,
    fp64_ref: Any = None,
    cos_similarity: bool = False,
    tol: float = 1e-4,
    equal_nan: bool = False,
    exact_dtype: bool = True,
    relax_numpy_equality: bool = False,
    ignore_non_fp: bool = False,
    log_error: Callable[..., None] = _LOG.error,
    use_larger_multiplier_for_smaller_tensor: bool = False,
    force_max_multiplier: bool = False,
    use_iou_for_bool: bool = False,
    iou_threshold: float = 0.99,
) -> bool:
    """Whether `res` is as good as `ref`; why not is logged.

    Containers are compared part by part, tensors by `allclose` within `tol`, and where that fails by their root mean square
    distance from `fp64_ref` (of dtype float64; default `ref`). cos_similarity: by the cosine of the angle between them instead.
    exact_dtype: dtypes must be equal. ignore_non_fp: what is no float passes. relax_numpy_equality: a numpy scalar may be
    compared with a number of Python. use_larger_multiplier_for_smaller_tensor: up to 500 elements may be 8 times as far from
    fp64 as the reference, up to 10 elements 10 times. force_max_multiplier: all may be 10 times as far. use_iou_for_bool: of
    tensors of bools, the elements that are true in both, divided by those that are true in either, must be iou_threshold at
    least.

    Raises AssertionError where types or keys of containers differ or a tensor is fake, RuntimeError for an unknown class,
    ValueError where a sequence of `fp64_ref` has another length than that of `ref`.
    """
    comparison = _Comparison(
        cos_similarity=cos_similarity, tol=tol, equal_nan=equal_nan, exact_dtype=exact_dtype,
        relax_numpy_equality=relax_numpy_equality, ignore_non_fp=ignore_non_fp,
        is_lenient_if_small=use_larger_multiplier_for_smaller_tensor, is_lenient=force_max_multiplier,
        iou_threshold=iou_threshold if use_iou_for_bool else None,
    )  # fmt: skip
    difference = comparison.difference(ref, res, ref if fp64_ref is None else fp64_ref)
    if difference is not None:
        log_error(str(difference))
    return difference is None


@dataclass(frozen=True, slots=True)
class _Difference:
    """Why the result is worse than the reference, and in which part: `["loss"][0]`; empty for the whole."""

    reason: str
    part: str = ""

    def __str__(self) -> str:
        return f"the result{self.part} is not as good as the reference: {self.reason}"


_Part = tuple[str, Any, Any, Any]  # path; part of the reference, of the result, of the fp64 result


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """The settings of `same`. Its methods return None if the result is as good as the reference."""

    cos_similarity: bool
    tol: float
    equal_nan: bool
    exact_dtype: bool
    relax_numpy_equality: bool
    ignore_non_fp: bool
    is_lenient_if_small: bool
    is_lenient: bool
    iou_threshold: float | None

    def difference(self, ref: Any, res: Any, fp64: Any) -> _Difference | None:
        """Compares any two values."""
        if type(ref).__name__ == _ONLY_LOSS:
            return self._of_parts([(".loss", ref.loss, res.loss, fp64.loss)])
        return self._compare(ref, res, fp64)

    def _of_parts(self, parts: Sequence[_Part]) -> _Difference | None:
        for way, *values in parts:
            found = self.difference(*values)
            if found is not None:
                return _Difference(found.reason, way + found.part)
        return None

    @singledispatchmethod
    def _compare(self, ref: Any, res: Any, fp64: Any) -> _Difference | None:
        """Compares instances of a class that is recognised by its name."""
        if type(ref).__name__ not in _BY_ATTRIBUTES:
            raise RuntimeError(
                f"unsupported type: {type(ref).__name__}\n  expected: tensors, numbers and text in containers"
            )
        _check_kind(res, type(ref))
        return self._of_parts([(f".{key}", vars(ref)[key], vars(res)[key], vars(fp64)[key]) for key in vars(ref)])

    @_compare.register(torch.nn.ParameterList)
    @_compare.register(tuple)
    @_compare.register(list)
    def _(self, ref: Sequence[Any], res: Any, fp64: Sequence[Any]) -> _Difference | None:
        _check_kind(res, list, tuple)
        if len(res) != len(ref):
            return _Difference(f"its length is {len(res)}, and should be {len(ref)}")
        rows = enumerate(zip(ref, res, fp64, strict=True))
        return self._of_parts([(f"[{index}]", *values) for index, values in rows])

    @_compare.register
    def _(self, ref: dict, res: Any, fp64: Mapping[Any, Any]) -> _Difference | None:
        _check_kind(res, dict)
        if ref.keys() != res.keys():
            raise AssertionError(
                f"keys mismatch: the result lacks {[*(ref.keys() - res.keys())]} and has {[*(res.keys() - ref.keys())]} besides"
            )
        return self._of_parts([(f"[{key!r}]", ref[key], res[key], fp64[key]) for key in sorted(ref)])

    @_compare.register(type(None))
    @_compare.register(torch.device)
    @_compare.register(int)
    @_compare.register(str)
    def _(self, ref: Any, res: Any, fp64: Any) -> _Difference | None:
        if self.ignore_non_fp or res == ref:
            return None
        return _Difference(f"it is {res!r}, and should be {ref!r}")

    @_compare.register
    def _(self, ref: np.generic, res: Any, fp64: Any) -> _Difference | None:
        expected = ref.item() if self.relax_numpy_equality and not isinstance(res, np.generic) else ref
        if (type(res), res) == (type(expected), expected):
            return None
        return _Difference(f"it is {res!r} of {type(res).__name__}, and should be {ref!r} of {type(ref).__name__}")

    @_compare.register
    def _(self, ref: np.ndarray, res: Any, fp64: Any) -> _Difference | None:
        _check_kind(res, np.ndarray)
        return self._of_tensors(*map(_as_tensor, (ref, res, fp64)))

    @_compare.register(torch.Tensor)
    @_compare.register(np.float64)  # a subclass of float
    @_compare.register(float)
    def _(self, ref: Any, res: Any, fp64: Any) -> _Difference | None:
        return self._of_tensors(*map(_as_tensor, (ref, res, fp64)))

    # ------------------------------------------------------------------------------------------------------------ tensors

    def _of_tensors(self, ref: torch.Tensor, res: torch.Tensor, fp64: torch.Tensor) -> _Difference | None:
        for value, whose in ((ref, "reference"), (res, "result")):
            assert not isinstance(value, FakeTensor), f"the {whose} is a fake tensor\n  expected: one with data"
        _check_kind(res, torch.Tensor)
        if ref.is_sparse:
            assert res.is_sparse, "the reference is sparse and the result is dense"
            return self._of_tensors(*(value.to_dense() if value.is_sparse else value for value in (ref, res, fp64)))
        if self.exact_dtype and res.dtype is not ref.dtype:
            return _Difference(f"its dtype is {res.dtype}, and should be {ref.dtype}")
        if self.exact_dtype and ref.dtype is torch.bool:
            if self.iou_threshold is not None and not self.ignore_non_fp:
                return self._by_overlap(ref, res, self.iou_threshold)
            is_equal = self.ignore_non_fp or self._is_close(ref.byte(), res.byte())
            return None if is_equal else _Difference("its elements of dtype torch.bool are not all equal")
        if self.cos_similarity:
            return self._by_angle(ref.flatten().float(), res.flatten().float())
        ref = ref.to(res.dtype)
        if self._is_close(ref, res):
            return None
        if fp64.dtype is torch.float64:
            return self._by_distance(ref, res, fp64)
        return None if self.ignore_non_fp else _Difference(f"it is not allclose within {self.tol}")

    def _by_overlap(self, ref: torch.Tensor, res: torch.Tensor, threshold: float) -> _Difference | None:
        """The share of elements that are true in both among those that are true in either; 1 where there are none."""
        either = int((ref | res).sum())
        overlap = int((ref & res).sum()) / either if either else 1.0
        if overlap >= threshold:
            return None
        return _Difference(f"intersection over union is {overlap:.4f}, and should be {threshold} or more")

    def _is_close(self, ref: torch.Tensor, res: torch.Tensor) -> bool:
        return torch.allclose(ref, res, rtol=self.tol, atol=self.tol, equal_nan=self.equal_nan)

    def _by_angle(self, ref: torch.Tensor, res: torch.Tensor) -> _Difference | None:
        if torch.allclose(ref, res, rtol=self.tol, atol=self.tol, equal_nan=True):  # zeros have no direction
            return None
        cosine = float(torch.nn.functional.cosine_similarity(ref, res, dim=0, eps=1e-6))
        if cosine >= _SIMILAR:
            return None
        _LOG.warning("the cosine of the angle between result and reference is %s", cosine)
        return _Difference(f"the cosine of the angle between them is {cosine}, and should be {_SIMILAR} or more")

    def _by_distance(self, ref: torch.Tensor, res: torch.Tensor, fp64: torch.Tensor) -> _Difference | None:
        if self._is_better(ref, res, fp64):
            return None
        of_ref, of_res = (rmse(fp64, value).item() for value in (ref, res))
        if self.equal_nan and math.isnan(of_ref) and math.isnan(of_res):
            return None
        if math.isnan(of_ref):
            _LOG.warning("the reference has NaN, or fp64 has: no result is near enough")
        factor = self._allowed_factor(res, fp64)
        limit = factor * of_ref + self.tol / 10
        if of_res <= limit:
            return None
        return _Difference(
            f"it is not allclose within {self.tol}, and from fp64 it is {of_res:.5g} away where the reference is {of_ref:.5g} "
            f"away; {factor} times as far, with a tenth of the tolerance added, is allowed ({res.dtype}, {tuple(res.shape)})"
        )

    def _is_better(self, ref: torch.Tensor, res: torch.Tensor, fp64: torch.Tensor) -> bool:
        """Whether the reference has NaN where the result is near fp64, which has none."""
        has_nan = ref.isnan().any() and not res.isnan().any() and not fp64.isnan().any()
        return bool(has_nan) and torch.allclose(fp64.to(res.dtype), res, rtol=_NEAR, atol=_NEAR)

    def _allowed_factor(self, res: torch.Tensor, fp64: torch.Tensor) -> float:
        """How many times the reference's error the result may have: more for few elements, where a mean says little."""
        if self.is_lenient:
            return _LENIENT
        if self.is_lenient_if_small:
            for size, factor in _FACTORS_OF_SMALL:
                if fp64.numel() <= size:
                    return factor
        says_little = (
            self.tol >= _LARGE_TOLERANCE
            or res.dtype in _HALVES
            or fp64.numel() < _FEW_ELEMENTS
            or (fp64.ndim == 4 and fp64.shape[2:] == (1, 1))
        )
        return 3.0 if says_little else 2.0


def _as_tensor(value: Any) -> Any:
    return torch.as_tensor(value) if isinstance(value, (np.ndarray, float, int)) else value


def _check_kind(res: Any, *kinds: type) -> None:
    names = " or ".join(kind.__name__ for kind in kinds)
    assert isinstance(res, kinds), f"type mismatch: the result is of class {type(res).__name__}\n  expected: {names}"
