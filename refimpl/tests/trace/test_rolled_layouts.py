"""What is rolled, unpooled, reflected, or has its channels shuffled lies in traces as the kernel lays it: fake kernels err."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import refimpl
from refimpl.trace import eager_facts

aten = torch.ops.aten


def _asked(func: Any, args: Any, result: torch.Tensor) -> Any:
    """The strides of a result, asked for as a trace with fake tensors does."""
    return eager_facts.result_strides(func, args, {}, result.contiguous())


def test_strides_are_those_of_the_kernel() -> None:
    draw = random.Random(0)
    kept = 0
    for _ in range(1000):
        count = draw.randint(1, 5)
        order = draw.sample(range(count), count)
        x = torch.ones([draw.choice([1, 2, 3, 4]) for _ in range(count)]).permute(order)
        if count > 3 and draw.random() < 0.7:
            x = x.to(memory_format=torch.channels_last if count == 4 else torch.channels_last_3d)
        if draw.random() < 0.3:
            dim = draw.randrange(count)
            x = x.narrow(dim, 0, 1).expand(*x.shape[:dim], 2, *x.shape[dim + 1 :])
        if draw.random() < 0.3:
            x = x[..., :2]
        dims = draw.sample(range(-count, 0), draw.choice([0, 1, 1, 2, count]) % (count + 1))
        shifts = [draw.randint(-3, 3) for _ in dims] or [1]
        expected = x.roll(shifts, dims)
        assert _asked(aten.roll.default, (x, shifts, dims), expected) == [expected.stride()], (
            x.shape,
            x.stride(),
            shifts,
            dims,
        )
        kept += not expected.is_contiguous()
    assert kept > 30


def test_strides_of_shuffled_channels_are_those_of_the_kernel() -> None:
    draw = random.Random(0)
    kept = 0
    for _ in range(500):
        count = draw.randint(3, 5)
        order = draw.sample(range(count), count)
        sizes = [draw.choice([1, 2, 3]) for _ in range(count)]
        sizes[order[1]] = draw.choice([1, 2, 4])
        x = torch.ones(sizes).permute(order)
        if count > 3 and draw.random() < 0.5:
            x = x.to(memory_format=torch.channels_last if count == 4 else torch.channels_last_3d)
        expected = torch.channel_shuffle(x, max(x.shape[1] // 2, 1))
        kept += not expected.is_contiguous()
        if count < 5:
            indices = torch.zeros(x.shape, dtype=torch.int64)
            unpooled = aten.max_unpool2d(x, indices, [4, 1])
            found = _asked(aten.max_unpool2d.default, (x, indices, [4, 1]), unpooled)
            assert found == [unpooled.stride()], (x.shape, x.stride())
    assert kept > 30


def test_resampled_images_of_one_channel_or_row_lie_in_traces_as_in_eager() -> None:
    for sizes in ((2, 1, 4, 5), (1, 3, 1, 4), (1, 1, 1, 1), (3, 2, 4, 1)):
        x = torch.rand(sizes)
        for image in (x, x.to(memory_format=torch.channels_last), x.transpose(0, 3).contiguous().transpose(0, 3)):
            found = []

            def program(x: torch.Tensor, found: Any = found) -> list[torch.Tensor]:
                modes = ("nearest", "nearest-exact", "bilinear", "bicubic")
                results = [torch.nn.functional.interpolate(x, size=(3, 2), mode=mode) for mode in modes]
                found.append([result.stride() for result in results])
                return results

            program(image)
            refimpl.make_fx(program, None, "fake")(image)
            assert found[1] == found[0], (sizes, image.stride())


@pytest.mark.parametrize("tracing", ["fake", "symbolic"])
def test_channels_that_lie_last_do_in_traces(tracing: str) -> None:
    found: list[list[tuple[int, ...]]] = []

    def program(x: torch.Tensor, indices: torch.Tensor) -> list[torch.Tensor]:
        results = [torch.channel_shuffle(x, 2), aten.max_unpool2d(x, indices, [8, 12]), x.tril(), x[:, :, :1].triu()]
        found.append([tuple(map(int, result.stride())) for result in results])
        return results

    x = torch.rand(2, 4, 4, 6).to(memory_format=torch.channels_last)
    arguments = (x, torch.zeros(x.shape, dtype=torch.int64))
    program(*arguments)
    refimpl.make_fx(program, None, tracing)(*arguments)
    assert found[1] == found[0]


def test_a_gradient_through_shuffled_channels_lies_as_in_eager() -> None:
    x = torch.rand(2, 4, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    for backend in ("aot_eager", "triton"):
        shuffled = refimpl.compile(lambda x: torch.channel_shuffle(x, 2), backend=backend)(x)
        assert torch.autograd.grad(shuffled, x, torch.ones_like(shuffled))[0].stride() == x.stride()


@pytest.mark.parametrize("kind", ["reflection", "replication"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_strides_of_reflections_and_their_gradients_are_those_of_the_kernel(kind: str, dims: int) -> None:
    forward = getattr(aten, f"{kind}_pad{dims}d").default
    backward = getattr(aten, f"{kind}_pad{dims}d_backward").default
    draw = random.Random(0)
    kept = 0
    for _ in range(100):
        count = dims + draw.randint(1, 2)
        order = draw.sample(range(count), count)
        x = torch.ones([draw.choice([2, 3]) for _ in range(count)]).permute(order)
        if count > 3 and draw.random() < 0.5:
            x = x.to(memory_format=torch.channels_last if count == 4 else torch.channels_last_3d)
        padding = [draw.choice([0, 1]) for _ in range(2 * dims)]
        expected = forward(x, padding)
        assert _asked(forward, (x, padding), expected) == [expected.stride()], (x.shape, x.stride())
        grad = torch.ones(expected.shape[::-1]).permute(*reversed(range(count)))
        gradient = backward(grad, x, padding)
        assert _asked(backward, (grad, x, padding), gradient) == [gradient.stride()], (x.shape, x.stride())
        kept += not gradient.is_contiguous()
    assert (kept > 10) is (dims > 1)


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("dims", [2, 3])
def test_a_program_is_told_how_a_padded_image_and_its_gradient_lie(
    dims: int, mode: str, backend: str, dynamic: bool
) -> None:
    def program(x: Any) -> Any:
        padded = torch.nn.functional.pad(x, (1,) * 2 * dims, mode=mode)
        (gradient,) = torch.autograd.grad(padded.sin().sum(), x)
        return [y * (2 if y.is_contiguous() else 3) for y in (padded.detach(), gradient)]

    x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    expected, actual = program(x), refimpl.compile_aot(program, backend=backend, dynamic=dynamic)(x)
    assert [y.stride() for y in actual] == [y.stride() for y in expected]
    torch.testing.assert_close(actual, expected)


def test_a_program_is_told_how_a_rolled_image_lies() -> None:
    def program(x: Any) -> Any:
        y, z = x.roll(1, 0), torch.roll(x, shifts=(1, 2), dims=(2, -1))
        return y * z, *(each.permute(0, 2, 3, 1).is_contiguous() for each in (y, z, x.roll(1)))

    for images in (torch.rand(2, 3, 4, 5), torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        for backend in ("aot_eager", "triton"):
            expected, actual = program(images), refimpl.compile(program, backend=backend)(images)
            assert actual[1:] == expected[1:]
            assert actual[0].stride() == expected[0].stride()
            assert torch.equal(actual[0], expected[0])


def test_a_gradient_through_a_roll_lies_as_in_eager() -> None:
    x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()

    def gradient(x: Any) -> Any:
        rolled = x.roll(1, 0)
        return torch.autograd.grad(rolled, x, torch.ones_like(rolled))[0]

    graph = refimpl.make_fx(gradient, tracing_mode="fake")(x).graph
    rolls = [node for node in graph.nodes if node.target is aten.roll.default]
    assert [node.meta["val"].stride() for node in rolls] == [x.stride()] * 2
    assert not any(node.target is aten.clone.default for node in graph.nodes)
    rolled = refimpl.compile(lambda x: x.roll(1, 0), backend="aot_eager")(x)
    assert torch.autograd.grad(rolled, x, torch.ones_like(rolled))[0].stride() == x.stride()
