"""Normal numbers drawn into a tensor that is not contiguous are eager's, and leave the generator as eager does.

Eager has two loops for them, which draw in different orders: one for 16 and more numbers side by side, and one for all else.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from refimpl.functionalize.errors import CannotFunctionalize
from refimpl.pipeline import compile_aot

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: torch.zeros(6, 5).t(),
    "with gaps": lambda: torch.zeros(3, 40)[:, ::2],
    "permuted, with gaps": lambda: torch.zeros(2, 3, 8).permute(2, 0, 1)[:, :, ::2],
    "a line with gaps": lambda: torch.zeros(80)[::2],
    "fewer than 16": lambda: torch.zeros(30)[::2],
    "exactly 16": lambda: torch.zeros(32)[::2],
    "contiguous": lambda: torch.zeros(40),
    "half": lambda: torch.zeros(6, 5, dtype=torch.float16).t(),
    "nothing": lambda: torch.zeros(0, 40)[:, ::2],
}
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal_": lambda x: x.normal_(1, 2),
    "randn": lambda x: torch.randn(x.shape, out=x, dtype=x.dtype),
    "normal": lambda x: torch.normal(0.5, 2.0, x.shape, out=x, dtype=x.dtype),
    "normal of means": lambda x: torch.normal(torch.ones(x.shape, dtype=x.dtype), 3.0, out=x),
    "twice": lambda x: x.normal_().mul_(2).add_(torch.randn(3)[0]).normal_(),
}


@pytest.mark.fractional
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_numbers_and_the_generator_are_those_of_eager(layout: str, draw: str) -> None:
    expected, x = LAYOUTS[layout](), LAYOUTS[layout]()
    torch.manual_seed(3)
    DRAWS[draw](expected)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    compile_aot(DRAWS[draw], backend=lambda graph_module, example_inputs: graph_module)(x)
    assert torch.equal(expected, x)
    assert torch.equal(state, torch.get_rng_state())


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "so many that the graph would be long": lambda x: torch.cat([x] * 513)[::2].normal_(),
    "of several deviations": lambda x: torch.normal(1.0, torch.ones(32), out=x[::2]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_graph_draws_is_refused(name: str) -> None:
    with pytest.raises(CannotFunctionalize, match="are drawn into a tensor that is not contiguous"):
        compile_aot(REFUSED[name], backend=lambda graph_module, example_inputs: graph_module)(torch.zeros(64))
