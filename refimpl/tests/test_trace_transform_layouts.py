"""Results of Fourier transforms lie in traces as the kernel lays them, whatever the fake kernel says."""

from __future__ import annotations

import random

import torch

import refimpl
from refimpl.trace.layouts.transforms import transformed_strides

aten = torch.ops.aten


def test_strides_are_those_of_the_kernel() -> None:
    draw = random.Random(0)
    for _ in range(400):
        count = draw.randint(1, 5)
        order = draw.sample(range(count), count)
        x = torch.ones([draw.choice([1, 2, 3]) for _ in range(count)]).permute(order)
        if draw.random() < 0.3:
            x = x.narrow(0, 0, 1).expand(2, *x.shape[1:])
        dims = draw.sample(range(count), draw.randint(1, count))
        is_half = draw.random() < 0.5
        expected = aten._fft_r2c(x, dims, 0, is_half)
        found = transformed_strides(aten._fft_r2c.default, expected.shape, (x, dims, 0, is_half))
        if torch.backends.mkl.is_available():
            assert found == expected.stride(), (x.shape, x.stride(), dims)
        else:
            assert found is None


def test_traced_transforms_lie_and_are_conjugated_as_in_eager() -> None:
    x = torch.rand(3, 4, 5)
    for function in (torch.fft.fft, torch.fft.ifft, torch.fft.rfft, torch.fft.ihfft):
        graph = refimpl.make_fx(lambda x, function=function: function(x, dim=1), tracing_mode="fake")(x)
        result = next(node for node in reversed(graph.graph.nodes) if node.op == "output").args[0]
        expected = function(x, dim=1)
        assert result.meta["val"].stride() == expected.stride()
        assert result.meta["val"].is_conj() == expected.is_conj()
        assert graph(x).stride() == expected.stride()
