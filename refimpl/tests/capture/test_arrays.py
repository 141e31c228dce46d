"""Numpy and tensors in one program: captured in one graph, or refused where a graph would give another result than eager."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from refimpl.capture.compile import compile
from refimpl.capture.public.errors import Unsupported
from refimpl.tests.capture.capturing import Recorder, each_of

Tensor = torch.Tensor


def function_of_a_tensor(x: Tensor) -> Any:
    return np.ones_like(x, dtype=np.float64), np.zeros_like(x), np.asarray(x), np.array(x) + 1


def classes_of_numbers(x: Tensor) -> Any:
    array = x.numpy()
    return np.float32(2.5), np.int64(7), np.float64(array), np.int32(array) + np.int32(1), np.float32(3) * array


def tensors_of_numbers(x: Tensor) -> Any:
    array = np.array([1, 2, 3, 4])
    numbers = [array[0], array[2]]
    found = (
        torch.tensor([[array[0], 2], [3, array[1]]]),
        torch.tensor([np.float32(2), 3]),
        torch.tensor([np.float64(2)]),
    )
    return torch.LongTensor(numbers), torch.tensor(array[1]), torch.tensor(np.float64(2)), *found


def lists_of_elements(x: Tensor) -> Any:
    return x.numpy().tolist(), np.arange(4).reshape(2, 2).tolist()


def forced(x: Tensor) -> Any:
    y = x.clone() * 1j
    return x.numpy(force=True) + 1, x.numpy(force=False), y.conj().numpy(force=True)


def elements_of_a_tensor(x: Tensor) -> Any:
    return x * (2.0 in x), 5 in x, 5 not in x, x.shape[0] in torch.arange(3), x[0] in x


def results_that_are_tensors(x: Tensor) -> Any:
    """`np.sin(tensor)` is a tensor, though `np.ones_like(tensor)` is an array."""
    return np.negative(x), np.add(x, 1), np.maximum(x, 0), x


def tensors_with_arrays(x: Tensor) -> Any:
    array = np.array([3.0, 4.0])
    y = x.clone()
    kept = y
    y += array  # no write: the tensor refuses the array
    integers = torch.arange(2)
    return (
        x * array,
        x - array.astype(np.float32),
        x / array,
        x == array,
        y,
        kept,
        integers + array,
        integers + np.arange(2),
    )


def tensors_with_numbers(x: Tensor) -> Any:
    number = np.array([3.0])[0]
    y = x.clone()
    kept = y
    number_of_another_kind: Any = np.float32(2)
    y *= number_of_another_kind
    reciprocals = number / x, np.float32(3) / x, np.array([1, 2]) / x
    return number < -x, number * x, number - x, x % number, x // number, x > number, number <= x, y, kept, reciprocals


def described(found: Any) -> Any:
    if isinstance(found, (tuple, list)):
        return type(found).__name__, [described(item) for item in found]
    if isinstance(found, (Tensor, np.ndarray, np.generic)):
        return type(found), found.dtype, tuple(found.shape), found.tolist()
    return type(found), found


@each_of(
    function_of_a_tensor, classes_of_numbers, tensors_of_numbers, lists_of_elements, forced, elements_of_a_tensor,
    results_that_are_tensors, tensors_with_arrays, tensors_with_numbers,
)  # fmt: skip
def test_one_graph_does_what_eager_does(program: Any) -> None:
    recorder: Any = Recorder()
    compiled = compile(program, backend=recorder, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy says that tensors have an old `__array__`
        for values in ([1.0, 2.0], [3.0, -4.0]):
            assert described(compiled(torch.tensor(values))) == described(program(torch.tensor(values)))
    assert len(recorder.graphs) == 1


def test_a_forced_array_of_a_tensor_with_a_gradient() -> None:
    def program(x: Tensor) -> Any:
        return (x * 2).numpy(force=True), x.numpy(force=True)

    x = torch.ones(2, requires_grad=True)
    doubled, own = compile(program, backend="eager", fullgraph=True)(x)
    assert doubled.tolist() == [2, 2]
    assert np.shares_memory(own, x.detach().numpy())


@pytest.mark.parametrize(
    "program",
    [
        lambda x: np.put_along_axis(x, np.array([0]), 5, 0),
        lambda x: x ** np.array([1, 2]),
        lambda x: x * np.complex64(2),
    ],
    ids=["a write to a tensor", "a power", "a number of a higher category"],
)
def test_what_numpy_does_otherwise_with_tensors_breaks_the_graph(program: Any) -> None:
    compiled = compile(program, backend="eager", fullgraph=True)
    with pytest.raises(Unsupported):
        compiled(torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize(
    "class_", [np.float16, np.int8, np.uint8, np.uint16, np.uint32, np.uint64, np.bool_, np.longdouble]
)
def test_numbers_of_numpy_give_what_they_give(class_: Any) -> None:
    def program(x: Tensor, number: Any) -> Any:
        return x * number, number * x, x + number, x > number, number + 1, number

    compiled = compile(program, backend="eager")
    x = torch.tensor([1.0, 2.0])
    for number in (class_(1), class_(0)):
        assert described(compiled(x, number)) == described(program(x, number))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_an_operator_on_arrays_that_torch_has_no_kernel_for_breaks_the_graph(dtype: Any) -> None:
    def program(x: Tensor, array: Any) -> Any:
        return x + 1, array + array

    compiled = compile(program, backend="eager")
    x, array = torch.tensor([1.0, 2.0]), np.array([1, 2], dtype)
    assert described(compiled(x, array)) == described(program(x, array))
