"""Modules that assign to their buffers in place of writing to them."""

from __future__ import annotations

import copy

import pytest
import torch

from refimpl.pipeline import compile_aot


class RunningMean(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("last", torch.zeros(3, 4))
        self.inner = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.count = self.count + 1
        self.last = x
        return self.inner(x) - self.mean


@pytest.mark.parametrize("dynamic", [False, True])
def test_assigned_buffers_are_the_modules_own(dynamic):
    plain = RunningMean()
    module = copy.deepcopy(plain)
    compiled = compile_aot(module, dynamic=dynamic)
    for seed in range(3):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(compiled(x), plain(x))
        assert module.last is x
        torch.testing.assert_close(dict(module.named_buffers()), dict(plain.named_buffers()))
    assert list(module.state_dict()) == list(plain.state_dict())
