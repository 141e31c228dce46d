"""`same`: whether a result is as good as a reference, no further from a result in fp64 than the reference is.

Counterpart: torch/_dynamo/utils.py same, rmse
Differs: one small function a kind of value. It is upstream's predicate with its blind spots (strides, aliases, `requires_grad`,
scale in cosine mode); what refimpl is judged by is oracle/, which has none of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from refimpl._torch import FakeTensor

_LOG = logging.getLogger(__name__)
_SEQUENCES = (list, tuple, torch.nn.ParameterList, torch.Size)
_PLAIN = (str, int, type(None), bool, torch.device)
_ONLY_LOSS = frozenset({"QuestionAnsweringModelOutput"})
# Outputs of models and distributions: compared by attributes.
_BY_ATTRIBUTES = frozenset(
    {
        "Boxes", "CausalLMOutputWithCrossAttentions", "Foo", "Instances", "LongformerMaskedLMOutput", "MaskedLMOutput",
        "Normal", "Seq2SeqLMOutput", "SquashedNormal", "TanhTransform", "Variable",
    }
)  # fmt: skip
_FEW_ELEMENTS = 1000
_LARGE_TOLERANCE = 2e-2
_SIMILAR = 0.99


def rmse(ref: torch.Tensor, res: torch.Tensor) -> torch.Tensor:
    """The root of the mean of squared differences: a scalar tensor."""
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
) -> bool:
    """Whether `res` is as good as `ref`; why not is logged.

    Containers are compared part by part, tensors by `allclose` within `tol`, and where that fails by their root mean square
    distance from `fp64_ref` (of dtype float64; default `ref`). cos_similarity: by the cosine of the angle between them instead.
    exact_dtype: dtypes must be equal. ignore_non_fp: what is no float passes. relax_numpy_equality: a numpy scalar may be
    compared with a number of Python.

    Raises AssertionError where types or keys of containers differ or a tensor is fake, RuntimeError for an unknown class.
    """
    how = _Comparison(
        cos_similarity=cos_similarity, tol=tol, equal_nan=equal_nan, exact_dtype=exact_dtype,
        relax_numpy_equality=relax_numpy_equality, ignore_non_fp=ignore_non_fp, log_error=log_error,
    )  # fmt: skip
    return how.equal(ref, res, ref if fp64_ref is None else fp64_ref)


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    cos_similarity: bool
    tol: float
    equal_nan: bool
    exact_dtype: bool
    relax_numpy_equality: bool
    ignore_non_fp: bool
    log_error: Callable[..., None]

    def equal(self, ref: Any, res: Any, fp64: Any) -> bool:
        name = type(ref).__name__
        if isinstance(ref, _SEQUENCES):
            return self._sequences(ref, res, fp64)
        if name in _ONLY_LOSS:
            return self.equal(ref.loss, res.loss, fp64.loss)
        if isinstance(ref, dict):
            return self._dicts(ref, res, fp64)
        if isinstance(ref, np.ndarray):
            assert isinstance(res, np.ndarray), _mismatch(ref, res)
            return self.equal(torch.as_tensor(ref), torch.as_tensor(res), _as_tensor(fp64))
        if isinstance(ref, (torch.Tensor, float)):
            return self._tensors(*map(_as_tensor, (ref, res, fp64)))
        if isinstance(ref, _PLAIN):
            return self._plain(ref, res)
        if isinstance(ref, np.generic):
            return self._numpy_scalars(ref, res)
        if name in _BY_ATTRIBUTES:
            assert type(ref) is type(res), _mismatch(ref, res)
            return all(self.equal(value, vars(res)[key], vars(fp64)[key]) for key, value in vars(ref).items())
        raise RuntimeError(f"unsupported type: {name}\n  expected: tensors, numbers and text in containers")

    def _sequences(self, ref: Any, res: Any, fp64: Any) -> bool:
        assert isinstance(res, (list, tuple)), _mismatch(ref, res)
        if len(ref) != len(res):
            self.log_error("Length mismatch: %s of %d, and %s of %d", type(ref), len(ref), type(res), len(res))
            return False
        return all(map(self.equal, ref, res, fp64))

    def _dicts(self, ref: dict[Any, Any], res: Any, fp64: Any) -> bool:
        assert isinstance(res, dict), _mismatch(ref, res)
        assert ref.keys() == res.keys(), f"keys mismatch {set(ref.keys())} == {set(res.keys())}"
        for key in sorted(ref):
            if not self.equal(ref[key], res[key], fp64[key]):
                self.log_error("Accuracy failed for key name %s", key)
                return False
        return True

    def _plain(self, ref: Any, res: Any) -> bool:
        if self.ignore_non_fp:
            return True
        if ref != res:
            self.log_error("Accuracy failed (%s): %s is not %s", type(ref).__name__, res, ref)
        return bool(ref == res)

    def _numpy_scalars(self, ref: Any, res: Any) -> bool:
        if self.relax_numpy_equality and not isinstance(res, np.generic):
            ref = ref.item()
        if type(ref) is type(res) and ref == res:
            return True
        self.log_error("Accuracy failed (numpy): %r is not %r", res, ref)
        return False

    # ------------------------------------------------------------------------------------------------------------ tensors

    def _tensors(self, ref: torch.Tensor, res: torch.Tensor, fp64: torch.Tensor) -> bool:
        assert not isinstance(ref, FakeTensor), "the reference is a fake tensor\n  expected: one with data"
        assert not isinstance(res, FakeTensor), "the result is a fake tensor\n  expected: one with data"
        if ref.is_sparse:
            assert res.is_sparse, "the reference is sparse and the result is dense"
            ref, res = ref.to_dense(), res.to_dense()
        assert isinstance(res, torch.Tensor), _mismatch(ref, res)
        if self.exact_dtype:
            if ref.dtype != res.dtype:
                self.log_error("dtype mismatch %s, %s", ref.dtype, res.dtype)
                return False
            if ref.dtype == torch.bool:
                return self.ignore_non_fp or self._bools(ref, res)
        if self.cos_similarity:
            return self._by_angle(ref, res)
        if not self.exact_dtype:
            ref = ref.to(res.dtype)
        if torch.allclose(ref, res, atol=self.tol, rtol=self.tol, equal_nan=self.equal_nan):
            return True
        if fp64.dtype == torch.float64:
            return self._by_distance(ref, res, fp64.to_dense() if fp64.is_sparse else fp64)
        if self.ignore_non_fp:
            return True
        self.log_error("Accuracy failed: allclose not within tol=%s", self.tol)
        return False

    def _bools(self, ref: torch.Tensor, res: torch.Tensor) -> bool:
        is_equal = torch.allclose(
            ref.to(torch.uint8), res.to(torch.uint8), atol=self.tol, rtol=self.tol, equal_nan=self.equal_nan
        )
        if not is_equal:
            self.log_error("Accuracy failed: bool tensors differ")
        return is_equal

    def _by_angle(self, ref: torch.Tensor, res: torch.Tensor) -> bool:
        ref, res = ref.flatten().to(torch.float32), res.flatten().to(torch.float32)
        if torch.allclose(ref, res, atol=self.tol, rtol=self.tol, equal_nan=True):  # zeros have no direction
            return True
        similarity = torch.nn.functional.cosine_similarity(ref, res, dim=0, eps=1e-6)
        if similarity < _SIMILAR:
            _LOG.warning("Similarity score=%s", similarity.detach().cpu().item())
        return bool(similarity >= _SIMILAR)

    def _by_distance(self, ref: torch.Tensor, res: torch.Tensor, fp64: torch.Tensor) -> bool:
        ref_error = rmse(fp64, ref).item()
        res_error = rmse(fp64, res).item()
        if math.isnan(ref_error):
            _LOG.warning("Found nan in reference. Consider running in higher precision.")
        multiplier = self._multiplier(res, fp64)
        is_close = res_error <= multiplier * ref_error + self.tol / 10.0
        if not is_close:
            self.log_error(
                "RMSE (res-fp64): %.5f, (ref-fp64): %.5f and shape=%s. res.dtype: %s, multiplier: %f, tol: %f",
                res_error, ref_error, res.size(), res.dtype, multiplier, self.tol,
            )  # fmt: skip
        return is_close

    def _multiplier(self, res: torch.Tensor, fp64: torch.Tensor) -> float:
        """How many times as far from fp64 as the reference a result may be: further where a mean says little."""
        is_small = fp64.numel() < _FEW_ELEMENTS or (fp64.ndim == 4 and fp64.shape[-1] == fp64.shape[-2] == 1)
        is_coarse = res.dtype in (torch.bfloat16, torch.float16) or self.tol >= _LARGE_TOLERANCE
        return 3.0 if is_small or is_coarse else 2.0


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, float):
        return torch.tensor(value)
    return torch.as_tensor(value) if isinstance(value, np.ndarray) else value


def _mismatch(ref: Any, res: Any) -> str:
    return f"type mismatch {type(ref)} {type(res)}"
