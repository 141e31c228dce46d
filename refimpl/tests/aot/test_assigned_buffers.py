"""Modules that assign to their buffers in place of writing to them."""

from __future__ import annotations

import copy

import pytest
import torch

from refimpl.errors import UnsupportedByRefimpl
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


class LateBuffer(torch.nn.Module):
    def forward(self, x):
        if not hasattr(self, "first"):
            self.register_buffer("first", x * 2, persistent=False)
        return x - self.first


class Memory(torch.nn.Module):
    state = None

    def forward(self, x):
        previous = x if self.state is None else self.state
        self.state = previous.cos() + x
        return self.state * 2


@pytest.mark.parametrize("kind", [LateBuffer, Memory])
def test_what_a_module_remembers_from_call_to_call(kind):
    plain, module = kind(), kind()
    compiled = compile_aot(module)
    for number in range(4):
        x = torch.full((3,), float(number))
        torch.testing.assert_close(compiled(x), plain(x))
    assert list(module.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in module.named_buffers()] == [name for name, _ in plain.named_buffers()]


class Cache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = [1]

    def forward(self, x):
        self.kept.append(x * 2)
        return x


def test_tensors_in_containers_are_refused_and_taken_back():
    module = Cache()
    with pytest.raises(UnsupportedByRefimpl, match="container kept of the module"):
        compile_aot(module)(torch.ones(2))
    assert module.kept == [1]
