"""Results of Fourier transforms lie in traces as the kernel lays them, whatever the fake kernel says."""

from __future__ import annotations

import torch

import refimpl


def test_traced_transforms_lie_and_are_conjugated_as_in_eager() -> None:
    x = torch.rand(3, 4, 5)
    for function in (torch.fft.fft, torch.fft.ifft, torch.fft.rfft, torch.fft.ihfft):
        graph = refimpl.make_fx(lambda x, function=function: function(x, dim=1), tracing_mode="fake")(x)
        result = next(node for node in reversed(graph.graph.nodes) if node.op == "output").args[0]
        expected = function(x, dim=1)
        assert result.meta["val"].stride() == expected.stride()
        assert result.meta["val"].is_conj() == expected.is_conj()
        assert graph(x).stride() == expected.stride()
