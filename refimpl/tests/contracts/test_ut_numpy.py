"""Contracts of capture's helpers (row UT-47 of docs/contracts.md): arrays of numpy as tensors, alone and in captured programs."""

from __future__ import annotations

import collections
import copy
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import refimpl
from refimpl._torch import FakeTensorMode, torch_numpy
from refimpl.capture.public import numpy_interop as interop
from refimpl.capture.public.counters import counters
from refimpl.tests.contracts.contract_backend import Backend, backend, nothing_is_left

__all__ = ["backend", "nothing_is_left"]  # fixtures

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]


# ------------------------------------------------------------------------------------------------------------- helpers


def test_modules_have_counterparts_with_the_same_functions() -> None:
    """UT-47"""
    assert (np, np.fft, np.linalg, np.random) == interop.NP_SUPPORTED_MODULES
    assert list(interop.NP_TO_TNP_MODULE) == [*interop.NP_SUPPORTED_MODULES]
    assert interop.counterpart_of(np.sin) is torch_numpy.sin
    assert interop.counterpart_of(np.linalg.norm) is torch_numpy.linalg.norm
    assert interop.counterpart_of(torch.sin) is None
    assert interop.counterpart_of(np.random.rand) is None, "it would draw other numbers"


def test_there_and_back_keeps_containers() -> None:
    """UT-47"""
    pair = collections.namedtuple("pair", "left right")
    array = np.arange(3.0)
    nested = [array, (array + 1, [array * 2]), pair(array, 3), "text", None]
    tensors = interop.numpy_to_tensor(nested)
    assert [type(part) for part in tensors] == [Tensor, tuple, pair, str, type(None)]
    assert isinstance(tensors[1][1][0], Tensor)
    tensors[0][0] = 7
    assert array[0] == 7, "the same memory"
    back = interop.to_numpy_helper(tensors)
    assert type(back) is list
    assert type(back[1]) is tuple
    assert type(back[2]) is pair
    assert np.array_equal(back[1][1][0], nested[1][1][0])
    assert back[2].right == 3
    assert interop.to_numpy_helper(torch_numpy.arange(2)).tolist() == [0, 1]
    assert interop.to_numpy_helper(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    fake = FakeTensorMode().from_tensor(torch.ones(2))
    assert interop.to_numpy_helper(fake) is fake
    assert interop.to_numpy_scalar(torch.tensor(3)) == np.int64(3)
    assert type(interop.to_numpy_scalar(torch.tensor(3))) is np.int64


def test_wrappers_take_and_give_tensors() -> None:
    """UT-47"""
    x = torch.arange(6.0).view(2, 3)
    split = interop.numpy_to_tensor_wrapper(torch_numpy.hsplit)
    parts = split(x, 3)
    assert split.__name__ == "wrapped_hsplit"
    assert "hsplit" in repr(split)
    assert [type(part) for part in parts] == [Tensor] * 3
    assert torch.equal(torch.cat(parts, 1), x)
    assert torch.equal(interop.numpy_attr_wrapper(x, "T"), x.T)
    assert interop.numpy_attr_wrapper(x, "size") == 6
    summed = interop.numpy_method_wrapper("sum")
    assert summed.__name__ == "wrapped_sum"
    assert torch.equal(summed(x, axis=0), x.sum(0))
    floored = interop.numpy_operator_wrapper(operator.floordiv)
    assert torch.equal(floored(x, 2), x // 2)
    keywords: Any = {"b": 2}
    with pytest.raises(AssertionError, match="operands alone"):
        floored(x, **keywords)


# ----------------------------------------------------------------------------------------------------- captured programs


def is_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, (np.ndarray, np.generic)):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return np.allclose(one, other, rtol=1e-6) if one.dtype.kind in "biufc" else bool(np.array_equal(one, other))
    return torch.equal(one, other) if isinstance(one, Tensor) else one == other


F32 = np.random.default_rng(0).random((3, 4)).astype(np.float32)
F64 = np.arange(12.0).reshape(3, 4)
WHOLE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "functions and operators": (lambda x: np.sin(x) + 1, (F32,)),
    "two dtypes": (lambda x, y: (x * y).sum(axis=0), (F32, F64)),
    "numbers and metadata": (lambda x: (x.sum(), x.mean(), x.shape, x.ndim, len(x), x.size), (F32,)),
    "items": (lambda x: x[0, 1] + x[1:, None].max(), (F32,)),
    "an attribute": (lambda x: x @ x.T, (F32,)),
    "linalg": (lambda x: np.linalg.norm(x), (F32,)),
    "masks": (lambda x: np.where(x > 0.5, x, 0), (F32,)),
    "a dtype": (lambda x: x.astype(np.float64).reshape(-1), (F32,)),
    "made there": (lambda x: np.zeros((3, 4), dtype=np.int64) + x.itemsize, (F32,)),
    "a number of numpy": (lambda x, s: (x * s, s + 1), (F32, np.float64(3))),
    "a list of arrays": (lambda x: [part.sum() for part in np.split(x, 2, axis=1)], (F32,)),
    "unary": (lambda x: -x // 2, (F64,)),
    "in a list": (lambda xs: np.concatenate(xs), ([F32, F32 + 1],)),
    "tensors and arrays": (lambda t, x: torch.from_numpy(np.add(t.numpy(), x)) + t, (torch.ones(3, 4), F32)),
    "a copy that is a view on tensors": (lambda x: (x.flatten(), x.T.copy(), x.ravel()), (F32,)),
    "classes": (lambda x: x + 1 if isinstance(x, np.ndarray) and type(x.sum()) is np.float32 else x, (F32,)),
    "rows": (lambda x: [row.max() for row in x], (F32,)),
    "abs and as_tensor": (lambda x: torch.as_tensor(abs(x - 1)), (F32,)),
    "a tensor and a number of numpy": (lambda t, n: (t * 2 + n % 5, t - n), (torch.ones(3), np.int64(8))),
    "an array given back": (lambda x: (x, x.shape), (F32,)),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_what_numpy_gives_is_given_by_one_graph(name: str, compiler: str) -> None:
    """UT-47"""
    program, args = WHOLE[name]
    result = refimpl.compile(program, backend=compiler, fullgraph=True)(*copy.deepcopy(args))
    expected = program(*copy.deepcopy(args))
    assert is_same(result, expected), f"{result} should be {expected}"


BROKEN: dict[str, Callable[..., Any]] = {
    "another dtype on tensors": lambda x: np.fft.fft(x) * 2,
    "an order in memory": lambda x: np.ravel(x.T.copy().T, order="K") + x.flatten(),
    "a shape that depends on data": lambda x: x[x > 0.5] + 1,
    "random numbers": lambda x: (np.random.default_rng(3).random(2) + 1, x + 1),
    "a number of Python": lambda x: float(x[0, 0]) + 1,
    "an array and a tensor": lambda x: torch.ones(3, 4).__mul__(torch.from_numpy(x)).numpy() + x.tolist()[0][0],
    "a tensor of integers and a number of numpy": lambda x: torch.arange(3) + x[0, 0],
    "bool()": lambda x: x + 1 if x.sum() > 100 else x - 1,
    "a tensor with gradients": lambda x: torch.ones(2, requires_grad=True).detach().numpy() + x[0, 0],
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_tensors_do_otherwise_breaks_the_graph_and_is_right(name: str) -> None:
    """UT-47"""
    program = BROKEN[name]
    assert is_same(refimpl.compile(program)(F32.copy()), program(F32.copy()))


def test_a_fourier_transform_of_another_dtype_is_a_break() -> None:
    """UT-47: the counterpart gives complex128 for float32, numpy 2 complex64."""
    refimpl.compile(lambda x: np.fft.fft(x) * 2)(F32.copy())
    same = np.fft.fft(F32).dtype == torch.fft.fft(torch.from_numpy(F32).double()).numpy().dtype
    assert bool(counters["graph_break"]) is not same


def test_writes_to_arrays_are_the_program_s(backend: Backend) -> None:
    """UT-47"""

    def program(x: Array) -> Any:
        first = x[0, 0]
        row = x[1]
        x[0] = 5
        x += 1
        row *= 2
        return first, row, x

    compiled = refimpl.optimize_assert(backend)(program)
    for _ in range(2):
        mine, theirs = F32.copy(), F32.copy()
        result, expected = compiled(mine), program(theirs)
        assert is_same(result, expected)
        assert is_same(mine, theirs)
        assert result[2] is mine
        assert np.may_share_memory(result[1], mine)
        assert type(result[0]) is np.float32, "read before the write"
    assert backend.n == 1


def test_a_copy_is_not_written_to_with_the_array(backend: Backend) -> None:
    """UT-47"""

    def program(x: Array) -> Any:
        flat, view = x.flatten(), x.reshape(-1)
        x[0, 0] = 9
        return flat, view

    assert is_same(refimpl.optimize_assert(backend)(program)(F32.copy()), program(F32.copy()))


OUT: dict[str, Callable[[Array, Array], Array]] = {
    "by name": lambda x, out: np.sin(x, out=out),
    "by position": lambda x, out: np.add(x, x, out),
    "of a method": lambda x, out: x.clip(0, 1, out=out),
    "the argument": lambda x, out: np.add(out, 1, out=out),
    "of a view": lambda x, out: np.add(out[1:], 1, out=out[:-1]),
}


@pytest.mark.parametrize("name", OUT)
def test_a_function_with_out_writes_once_and_returns_it(name: str) -> None:
    """UT-47"""

    def inside(x: Array) -> Any:
        out = np.zeros(3, np.float32)
        result = OUT[name](x, out)
        return result is out, result * 2, out

    def given(x: Array, out: Array) -> Any:
        result = OUT[name](x, out)
        return result is out, result * 2, out

    def alone(out: Array) -> Any:
        result = OUT[name](out, out)
        return result is out, result * 2, out

    def array(start: float) -> Array:
        return np.arange(start, start + 3, dtype=np.float32)

    captured = refimpl.compile(inside, fullgraph=name != "of a view")
    assert is_same(captured(array(0)), inside(array(0)))
    assert is_same(refimpl.compile(given)(array(0), array(4)), given(array(0), array(4)))
    assert is_same(refimpl.compile(alone)(array(1)), alone(array(1)))


def test_arrays_that_may_share_memory_are_written_to_without_a_graph(backend: Backend) -> None:
    """UT-47"""

    def program(x: Array, y: Array) -> Array:
        x += 1
        return y * 2

    mine, theirs = F32.copy(), F32.copy()
    assert is_same(refimpl.optimize(backend)(program)(mine, mine[1:]), program(theirs, theirs[1:]))
    assert is_same(mine, theirs)


def test_guards_tell_arrays_apart(backend: Backend) -> None:
    """UT-47"""

    def program(x: Any) -> Any:
        return x * 2

    compiled = refimpl.optimize(backend, dynamic=False)(program)
    counts: list[int] = []
    for given in (F32, F32.copy(), F64, F32[:2], F32.tolist(), torch.from_numpy(F32), F32[0, 0], F32[::2]):
        assert is_same(compiled(given), program(given))
        counts.append(backend.n)
    assert counts == [1, 1, 2, 3, 3, 4, 5, 6]


def test_what_cannot_be_a_tensor_stays_what_it_is() -> None:
    """UT-47"""
    frozen = F32.copy()
    frozen.flags.writeable = False
    for given in (frozen, np.array(["text"]), np.array([object()], dtype=object)[:0], F64[::-1], F64.astype(">f8")):
        result = refimpl.compile(lambda x: (x.shape, x[:1]))(given)
        assert is_same(result[1], given[:1])
        assert result[0] == given.shape

    def writes(x: Array) -> Array:
        x[0] = 1
        return x

    compiled = refimpl.compile(writes)
    compiled(F32.copy())
    with pytest.raises(ValueError, match="read-only"):
        compiled(frozen)
    assert is_same(frozen, F32)


def test_sizes_of_arrays_become_symbols(backend: Backend) -> None:
    """UT-47, DY-09"""
    compiled = refimpl.optimize(backend)(lambda x: (np.cos(x) + x, x.shape[0]))
    for size in (3, 4, 5, 6):
        given = np.arange(float(size))
        assert is_same(compiled(given), (np.cos(given) + given, size))
    assert backend.n == 2


def test_the_inputs_of_a_graph_are_tensors(backend: Backend) -> None:
    """UT-47"""
    refimpl.optimize_assert(backend)(lambda x: np.exp(x))(F32.copy())
    (example,) = backend.examples[0]
    assert type(example) is Tensor
    assert [node.target for node in backend.graphs[0].graph.nodes if node.op == "placeholder"] == ["L_x_"]
    assert "wrapped_exp" in backend.graphs[0].code
