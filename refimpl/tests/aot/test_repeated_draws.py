"""Programs that restore the random state: what is drawn again is what was drawn before."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from refimpl.aot.errors import RandomStateRestored
from refimpl.pipeline import compile_aot


def _dropped(x):
    return F.dropout(torch.sin(x), p=0.5, training=True) * x


def _noisy(x):
    noise = torch.empty_like(x).normal_() + torch.rand_like(x)
    return F.dropout(x * noise, p=0.25).relu() * torch.bernoulli(x.sigmoid())


def _attended(x):
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5) * x


@pytest.mark.parametrize("partition", ["min_cut", "default", None])
@pytest.mark.parametrize("block", [_dropped, _noisy, _attended])
def test_a_checkpoint_draws_the_same_again(block, partition):
    def program(x):
        return checkpoint(block, checkpoint(block, x, use_reentrant=False), use_reentrant=False) + torch.rand_like(x)

    def run(fn):
        torch.manual_seed(3)
        x = torch.linspace(-1, 1, 64).reshape(1, 1, 8, 8).requires_grad_()
        out = fn(x)
        return out, torch.autograd.grad(out.sin().sum(), x), torch.rand(2)

    torch.testing.assert_close(run(compile_aot(program, partition=partition)), run(program))


def test_different_draws_from_one_state_are_refused():
    def program(x):
        state = torch.get_rng_state()
        first = torch.rand_like(x)
        torch.set_rng_state(state)
        return first + torch.randn_like(x)

    with pytest.raises(RandomStateRestored, match=r"randn_like.default draws from the state.*rand_like"):
        compile_aot(program)(torch.ones(3))


def test_compiling_leaves_the_random_state_alone():
    torch.manual_seed(5)
    expected = torch.get_rng_state()
    compile_aot(lambda x: x * 2)(torch.ones(3))
    assert torch.equal(torch.get_rng_state(), expected)
