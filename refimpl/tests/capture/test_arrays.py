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


def described(found: Any) -> Any:
    if isinstance(found, (tuple, list)):
        return type(found).__name__, [described(item) for item in found]
    if isinstance(found, (Tensor, np.ndarray, np.generic)):
        return type(found), found.dtype, tuple(found.shape), found.tolist()
    return type(found), found


@each_of(function_of_a_tensor, classes_of_numbers, tensors_of_numbers, lists_of_elements, forced, elements_of_a_tensor)
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
    [lambda x: np.sin(x), lambda x: np.put_along_axis(x, np.array([0]), 5, 0)],
    ids=["a result that is a tensor", "a write to a tensor"],
)
def test_what_numpy_does_otherwise_with_tensors_breaks_the_graph(program: Any) -> None:
    """`np.sin(tensor)` is a tensor, though `np.ones_like(tensor)` is an array."""
    compiled = compile(program, backend="eager", fullgraph=True)
    with pytest.raises(Unsupported):
        compiled(torch.tensor([1.0, 2.0]))
