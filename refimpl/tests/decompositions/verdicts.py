"""Is a decomposition's result what eager gives: values, dtype, shape, strides, aliasing, mutation.

Values are judged against the same call in float64 (complex128). A decomposition may differ from eager in the last bits, since
it computes in another order, but it must be about as near to the truth.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import OpOverload, TorchDispatchMode, is_decomposed_by_autograd, run_composite_kernel
from refimpl.tests.decompositions.calls import Call, leaves_of, mapped

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
# How much farther from the truth than eager a rule may be, and what is granted to both: a few roundings.
_FACTOR = 4.0
_ROUNDINGS = 8.0
_WITHOUT_TRUTH = 1e-10  # of the largest element, where eager in float64 is all there is
_UNINITIALISED = ("empty", "resize")  # ops whose values are whatever memory held
EXPECTED_ERRORS = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)


@functools.cache
def _is_composite(func: OpOverload) -> bool:
    return is_decomposed_by_autograd(func, frozenset({"cpu"}))


class DecomposingMode(TorchDispatchMode):
    """Decomposes whatever is called under it, in turn, and notes what is left: what a trace with the table would hold."""

    def __init__(self, table: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.table = table
        self.left: set[OpOverload] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # wrapping every call in torch._dynamo.disable takes longer than the call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = self.table.get(func)
        if rule is not None:
            with self:
                result = rule(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if _is_composite(func):
            with self:
                return run_composite_kernel(func, args, kwargs)
        self.left.add(func)
        return func(*args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of one rule on one call.

    status: "pass"; "declined" (the rule covers no such arguments); "invalid" (eager refuses the call); or what is wrong.
    error: normwise distance from the truth in units of the result dtype's eps; NaN where there is no truth.
    """

    status: str
    detail: str = ""
    error: float = math.nan
    eager_error: float = math.nan
    left: frozenset[OpOverload] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What eager does with a call: its result, and the tensors of its arguments afterwards; or the error it raises."""

    call: Call
    result: Any
    given: list[torch.Tensor]
    error: Exception | None = None

    @functools.cached_property
    def truth(self) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
        """The same of the call in float64; None if the op has no such kernel."""
        args, kwargs = self.call.arguments(_WIDE)
        try:
            return _tensors(self.call.overload(*args, **kwargs)), _tensors((args, kwargs))
        except EXPECTED_ERRORS:
            return None

    @functools.cached_property
    def relaid(self) -> list[torch.Tensor]:
        """The results of eager from the same arguments with gaps between the elements, which its scalar loops read."""
        args, kwargs = self.call.arguments()
        try:
            return _tensors(self.call.overload(*mapped(_with_gaps, args), **kwargs))
        except EXPECTED_ERRORS:
            return []


def _with_gaps(x: Any) -> Any:
    is_kept = not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.ndim == 0
    return x if is_kept else torch.stack([x, x], -1)[..., 0]


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in leaves_of(tree) if isinstance(x, torch.Tensor)]


def expect(call: Call) -> Expected:
    """Runs the call in eager."""
    args, kwargs = call.arguments()
    given = _tensors((args, kwargs))
    try:
        result = call.overload(*args, **kwargs)
    except EXPECTED_ERRORS as error:
        return Expected(call=call, result=None, given=given, error=error)
    return Expected(call=call, result=result, given=given)


def judge(
    call: Call,
    expected: Expected,
    table: Mapping[Any, Callable[..., Any]],
    rule: Callable[..., Any],
    *,
    is_measured: bool = False,
) -> Verdict:
    """Runs the rule, and compares. Without `is_measured`, results that are eager's to the bit are not held against float64."""
    args, kwargs = call.arguments()
    given = _tensors((args, kwargs))  # before the call: a rule may put other tensors into a list it was given
    mode = DecomposingMode(table)
    try:
        with mode:
            result = rule(*args, **kwargs)
    except EXPECTED_ERRORS as error:
        if type(error) is type(expected.error):
            return Verdict(status="pass", left=frozenset(mode.left))
        beside = "" if expected.error is None else f", but should be {_error_text(expected.error)}"
        return Verdict(status="raises", detail=_error_text(error) + beside)
    if result is NotImplemented:
        return Verdict(status="declined")
    if expected.error is not None:
        return Verdict(status="returns", detail=f"but should raise {_error_text(expected.error)}")
    left = frozenset(mode.left)
    outs, wanted = _tensors(result), _tensors(expected.result)
    if len(outs) != len(wanted):
        return Verdict(status="structure", detail=f"{len(outs)} tensors, expected {len(wanted)}", left=left)
    for i, (out, want) in enumerate(zip(outs, wanted, strict=True)):
        problem = _metadata_problem(out, want) or _alias_problem(out, want, given, expected.given)
        if problem:
            return Verdict(status=problem[0], detail=f"result {i}: {problem[1]}", left=left)
    if any(word in call.overload._schema.name for word in _UNINITIALISED):
        return Verdict(status="pass", left=left)
    worst, worst_eager = 0.0, 0.0
    is_elementwise = torch.Tag.pointwise in call.overload.tags
    # Arguments too: what the op writes to must have become the same, and nothing else may have changed.
    pairs = list(zip([*outs, *given], [*wanted, *expected.given], strict=True))
    for i, (out, want) in enumerate(pairs):
        is_result = i < len(outs)
        if not (is_result and is_measured) and out.layout is torch.strided and _is_same(out, want):
            continue
        truth = expected.truth
        true = None if truth is None else [*truth[0], *truth[1]][i]
        relaid = expected.relaid[i] if i < len(expected.relaid) else want
        is_undecided = _where_loops_differ(out, want, relaid)
        if is_undecided is not None:  # eager is followed in one of its loops
            out = torch.where(is_undecided, want, out)
        status, detail, error, eager_error = _compare(
            out, want, true, given if is_result else [], is_elementwise=is_elementwise
        )
        # In float64 nothing tells a zero from what is too small.
        if status == "pass" and is_result and true is not None and want.dtype in _WIDE:
            detail = _zero_sign_problem(out, want, true, relaid)
            status = "values" if detail else "pass"
        worst, worst_eager = max(worst, error), max(worst_eager, eager_error)
        if status != "pass":
            what = f"result {i}" if is_result else f"argument {i - len(outs)} afterwards"
            return Verdict(status=status, detail=f"{what}: {detail}", error=worst, eager_error=worst_eager, left=left)
    return Verdict(status="pass", error=worst, eager_error=worst_eager, left=left)


def _is_same(out: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether the two have the same bits, also those of NaN and of the signs of zeros. It says no for complex32."""
    if out.shape != want.shape or out.dtype is not want.dtype or want.dtype is torch.complex32:
        return False  # nothing compares complex32
    out, want = (x.detach().resolve_conj().resolve_neg() for x in (out, want))
    if want.is_complex():
        out, want = torch.view_as_real(out), torch.view_as_real(want)
    bits = _BITS.get(want.dtype)
    return torch.equal(out, want) if bits is None else torch.equal(out.view(bits), want.view(bits))


def _where_loops_differ(out: torch.Tensor, want: torch.Tensor, relaid: torch.Tensor) -> torch.Tensor | None:
    """Elements for which eager's scalar loops give something else than its vectorised ones, and ours is as the former."""
    if not want.is_floating_point() or not (out.shape == want.shape == relaid.shape):
        return None

    def is_equal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x == y) | (torch.isnan(x) & torch.isnan(y))

    return is_equal(out, relaid) & ~is_equal(relaid, want)


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _zero_sign_problem(out: torch.Tensor, want: torch.Tensor, true: torch.Tensor, relaid: torch.Tensor) -> str:
    """A zero of the other sign is wrong where eager's loops of both kinds, and float64, give a zero of one sign."""
    if not want.is_floating_point() or want.layout is not torch.strided or relaid.shape != want.shape:
        return ""
    wrong = (out == 0) & (out.signbit() != want.signbit())
    for other in (want, true, relaid):
        if other.shape != want.shape:
            return ""
        wrong &= (other == 0) & (other.signbit() == want.signbit())
    return _first_difference(out, want, wrong) if wrong.any() else ""


def _metadata_problem(out: torch.Tensor, want: torch.Tensor) -> tuple[str, str] | None:
    if out.shape != want.shape:
        return "shape", f"{tuple(out.shape)}, but should be {tuple(want.shape)}"
    if out.dtype is not want.dtype:
        return "dtype", f"{out.dtype}, but should be {want.dtype}"
    if want.layout is torch.strided and _strides(out) != _strides(want):
        return "strides", f"{out.stride()} of {tuple(out.shape)}, but should be {want.stride()}"
    return None


def _strides(x: torch.Tensor) -> list[int]:
    """The strides of the dimensions of more than one element; the others have no effect on where an element lies."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1] if x.numel() else []


def _alias_problem(
    out: torch.Tensor, want: torch.Tensor, given: list[torch.Tensor], given_to_eager: list[torch.Tensor]
) -> tuple[str, str] | None:
    """A view must look at the same memory of the same argument; a new tensor at none."""
    if out.numel() == 0:
        return None

    def positions(x: torch.Tensor, arguments: list[torch.Tensor]) -> list[int]:
        return [i for i, a in enumerate(arguments) if a.untyped_storage()._cdata == x.untyped_storage()._cdata]

    ours, theirs = positions(out, given), positions(want, given_to_eager)
    if ours != theirs:
        return "aliasing", f"shares memory with arguments {ours}, but should with {theirs}"
    if ours and out.storage_offset() != want.storage_offset():
        return "aliasing", f"storage offset {out.storage_offset()}, but should be {want.storage_offset()}"
    return None


def _size_of_inputs(given: list[torch.Tensor], out: torch.Tensor) -> float:
    """How large the numbers are that a reduction adds up, on average: what cancels leaves errors of that size. Else 0."""
    sizes = [0.0]
    for x in given:
        if x.numel() > out.numel() and (x.is_floating_point() or x.is_complex()):
            values = x.detach().to(torch.complex128 if x.is_complex() else torch.float64).abs()
            values = values[torch.isfinite(values)]
            sizes.append(float(values.mean()) if values.numel() else 0.0)
    return max(sizes)


def _compare(
    out: torch.Tensor,
    want: torch.Tensor,
    true: torch.Tensor | None,
    given: list[torch.Tensor],
    *,
    is_elementwise: bool,
) -> tuple[str, str, float, float]:
    """Status, detail, and both errors."""
    input_size = _size_of_inputs(given, out)
    out, want = out.detach().resolve_conj().resolve_neg(), want.detach().resolve_conj().resolve_neg()
    if out.shape != want.shape or out.layout is not torch.strided:
        return ("pass" if out.shape == want.shape else "shape"), "of an argument", 0.0, 0.0
    if not (want.is_floating_point() or want.is_complex()):
        if torch.equal(out, want):
            return "pass", "", 0.0, 0.0
        return "values", f"{_first_difference(out, want, out != want)}", math.inf, 0.0
    if want.numel() == 0:
        return "pass", "", 0.0, 0.0
    if want.dtype not in _WIDE or (true is not None and true.shape != want.shape):
        true = None  # eager is all there is
    if want.is_complex():
        out, want = torch.view_as_real(out), torch.view_as_real(want)
        true = None if true is None else torch.view_as_real(true.detach().resolve_conj().resolve_neg())
    eps = torch.finfo(want.dtype).eps
    a, b = out.to(torch.float64), want.to(torch.float64)
    t = b if true is None else true.detach().to(torch.float64)
    odd = ~torch.isfinite(b) | ~torch.isfinite(a)
    is_same_odd = (torch.isnan(a) & torch.isnan(b)) | (a == b)
    # Where the wide result is finite too, an overflow on one side only is a rounding beyond the largest number.
    limit = torch.finfo(want.dtype).max
    is_overflow = odd & torch.isfinite(t) & (t.abs() > limit / 2) & ~torch.isnan(a) & ~torch.isnan(b)
    # Vectorised kernels treat special values otherwise than their scalar tails do: the wide kernel may take our side.
    # And a kernel that rounds at every step may overflow on its way to a moderate number.
    is_true_odd = (torch.isnan(a) & torch.isnan(t)) | (a == t) | ((a - t).abs() <= _ROUNDINGS * eps * t.abs())
    is_true_odd |= a == t.to(want.dtype).to(torch.float64)  # the truth as the type holds it
    is_true_odd &= true is not None
    # Which of NaN and the infinities an overflow ends in on the way to a number is up to the order of the steps.
    is_up_to_order = ~torch.isfinite(a) & ~torch.isfinite(b) & (t.abs() <= limit)
    if true is None:
        is_up_to_order |= ~torch.isfinite(a) & ~torch.isfinite(b)
    if not is_elementwise:  # or whether a partial sum overflows at all
        size = torch.fmax(a.nan_to_num(0, 0, 0).abs(), b.nan_to_num(0, 0, 0).abs())
        is_up_to_order |= size > limit / 64
    wrong = odd & ~is_same_odd & ~is_overflow & ~is_true_odd & ~is_up_to_order
    if wrong.any():
        return "values", _first_difference(out, want, wrong), math.inf, 0.0
    usable = ~odd & torch.isfinite(t)
    a, b, t = a[usable], b[usable], t[usable]
    if a.numel() == 0:
        return "pass", "", 0.0, 0.0
    error, eager_error = (a - t).abs(), (b - t).abs()
    scale = max(float(t.abs().max()), torch.finfo(want.dtype).tiny)
    norm_error, norm_eager = float(error.max()) / scale / eps, float(eager_error.max()) / scale / eps
    tiny = torch.finfo(want.dtype).tiny * eps * 2
    allowed = _FACTOR * eager_error.max() + _ROUNDINGS * eps * t.abs() + tiny
    allowed = torch.maximum(allowed, _FACTOR * eager_error + 2 * eps * scale) + eps * input_size
    if true is None:
        allowed = allowed + _WITHOUT_TRUTH * scale
    bad = (error > allowed) & ((a - b).abs() > 2 * eps * b.abs())
    if bad.any():
        return "values", _first_difference(a, b, bad, t), norm_error, norm_eager
    return "pass", "", norm_error, norm_eager


def _first_difference(
    out: torch.Tensor, want: torch.Tensor, where: torch.Tensor, true: torch.Tensor | None = None
) -> str:
    i = tuple(where.nonzero()[0].tolist())
    truth = "" if true is None else f", truth {true[i].item()!r}"
    return f"{out[i].item()!r} at {list(i)}, but should be {want[i].item()!r}{truth}"
