"""Convolutions and their gradients as kernels of our own give what eager gives, forward and backward."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from refimpl.codegen.levels.cubin import CompiledKernel, compile_batch
from refimpl.tests.codegen.test_contractions import HALF_AND_FLOAT, agree, check, compiled_template, sources, values

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@pytest.mark.fractional
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"), [*itertools.product((1, 2), (0, 1), (1, 2), (1, 2)), (3, 2, 1, 4)]
)
@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
def test_parameters(stride: int, padding: int, dilation: int, groups: int, *, transposed: bool) -> None:
    """Each of the three gradients is a kernel of its own, and no library is called."""

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        convolution = (TRANSPOSED if transposed else CONVOLUTIONS)[2]
        return convolution(x, weight, bias, stride, padding, groups=groups, dilation=dilation)

    weight = (4, 3, 3, 2) if transposed else (8, 4 // groups, 3, 2)
    channels = weight[1] * groups if transposed else weight[0]
    shapes = [(2, 4, 9, 7), weight, (channels,)]
    forward, backward = check(function, *(values(*shape, seed=at, grad=True) for at, shape in enumerate(shapes)))
    assert len(forward.kernels) == 1
    assert len(backward.kernels) == 3


@pytest.mark.fractional
@pytest.mark.parametrize("dtype", HALF_AND_FLOAT, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_ranks_and_dtypes(rank: int, dtype: torch.dtype) -> None:
    sizes = (7, 6, 5)[:rank]
    x, weight = values(2, 3, *sizes, dtype=dtype, grad=True), values(4, 3, *[2] * rank, seed=1, dtype=dtype, grad=True)
    check(lambda x, weight: CONVOLUTIONS[rank](x, weight, padding=1), x, weight)
    check(lambda x, weight: TRANSPOSED[rank](x, weight.transpose(0, 1), stride=2, output_padding=1), x, weight)


def test_every_dimension_has_numbers_of_its_own() -> None:
    x, weight = values(1, 2, 9, 8, grad=True), values(3, 2, 3, 1, seed=1, grad=True)
    check(lambda x, weight: F.conv2d(x, weight, None, (1, 3), (2, 0), (2, 1)), x, weight)
    check(lambda x, weight: F.conv2d(x, weight, padding="same"), x, weight)


def test_each_channel_on_its_own_is_a_reduction() -> None:
    graphs = check(lambda x, w: F.conv2d(x, w, groups=5, padding=1), values(2, 5, 6, 6), values(5, 1, 3, 3, seed=1))
    assert all("tl.dot(" not in source for graph in graphs for source in sources(graph))


def test_a_block_of_a_network_is_one_kernel() -> None:
    def block(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, weight, bias, padding=1)
        return (y * scale[:, None, None] + x).relu()

    (graph,) = check(block, values(2, 6, 9, 9), values(6, 6, 3, 3, seed=1), values(6, seed=2), values(6, seed=3))
    (source,) = sources(graph)
    assert source.count("tl.dot(") == 1
    assert source.count("tl.store(") == 1


def test_a_window_of_one_place_is_a_product_of_matrices() -> None:
    """Nothing is guarded, and pixels are one run."""
    (graph,) = check(F.conv2d, values(2, 6, 5, 7), values(8, 6, 1, 1, seed=1))
    (source,) = sources(graph)
    assert "tl.where" not in source
    assert source.count("//") <= 5


@pytest.mark.parametrize("channels_last", [False, True])
def test_layouts(*, channels_last: bool) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x, weight = values(2, 3, 8, 6).to(memory_format=layout), values(4, 3, 3, 3, seed=1).to(memory_format=layout)
    check(lambda x, weight: F.conv2d(x, weight).relu(), x.requires_grad_(), weight.requires_grad_())


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5)])
def test_without_elements(shape: tuple[int, ...]) -> None:
    check(F.conv1d, values(*shape), values(4, shape[1], 3, seed=1), values(4, seed=2))


def test_infinities_beside_the_padding() -> None:
    """Zero times infinity is no number: padding counts in eager as well."""
    x, weight = values(1, 2, 5), values(3, 2, 3, seed=1)
    weight[1, 0, 0] = float("inf")
    x[0, 1, 4] = float("-inf")
    check(lambda x, weight: F.conv1d(x, weight), x, weight)


def test_one_compilation_serves_all_sizes() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, weight, stride=2, padding=1).relu()

    compiled, compiler = compiled_template(function, dynamic=True)
    for batch, size in ((2, 9), (3, 12), (4, 20)):
        agree(function, compiled, (values(batch, 3, size, size, grad=True), values(4, 3, 3, 3, seed=1, grad=True)))
    assert len(compiler.graphs) == 2


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize("transposed", [False, True])
def test_kernels_for_symbolic_sizes_fit_in_registers(*, transposed: bool) -> None:
    """Places on several axes of symbolic sizes take many; a few bytes are spilled where ptxas prefers more programs at a time."""
    convolution = F.conv_transpose2d if transposed else F.conv2d
    compiled, compiler = compiled_template(lambda x, weight: convolution(x, weight, padding=1), dynamic=True)
    x, weight = values(2, 3, 4, 5, grad=True), values(3, 3, 2, 3, seed=1, grad=True)
    torch.autograd.grad(compiled(x, weight).sum(), [x, weight])
    launches = compiler.recorded.launches
    for made in compile_batch([(launch.kernel, launch.constants) for launch in launches], 80):
        assert isinstance(made, CompiledKernel), made
        assert made.spills <= 128


@pytest.mark.parametrize("stride", [1, 2])
def test_infinite_weights_count_only_where_a_window_lies(stride: int) -> None:
    """Groups have one channel, so that gradients are plain sums."""
    weight = torch.tensor([float("inf"), 1.0, -2.0, -float("inf")]).view(2, 1, 1, 2, 1)
    x = torch.arange(8.0).view(1, 2, 1, 4, 1).requires_grad_()

    def gradient(convolution: Callable[..., torch.Tensor]) -> torch.Tensor:
        return torch.autograd.grad(convolution(x, weight).sum(), x)[0]

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv3d(x, weight, None, (1, stride, 1), groups=2)

    compiled, _ = compiled_template(function)
    torch.testing.assert_close(gradient(compiled), gradient(function), rtol=0, atol=0)


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 0, 1), (1, 1, 2), (2, 1, 1), (3, 2, 2)])
def test_products_with_taps_that_do_not_exist_are_none(
    stride: int, padding: int, groups: int, *, dynamic: bool
) -> None:
    """Whatever the weight is there; eager in float64 adds up what there is. The tap of a window of one is no loop."""
    x = values(2, 4, 5, 4, dtype=torch.float64)
    for window in ((3, 2), (1, 1)):
        weight = values(4, 6 // groups, *window, seed=1, dtype=torch.float64)
        weight[0, 0, 0, 0], weight[1, 1, -1, -1], weight[3, 2, 0, -1] = float("inf"), float("nan"), -float("inf")

        def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return F.conv_transpose2d(x, weight, None, stride, min(padding, weight.shape[-1] - 1), groups=groups).relu()

        (graph,) = check(function, x, weight, dynamic=dynamic)
        assert any("tl.dot(" in source for source in sources(graph))
