"""What is normalised lies in traces as the kernel lays it, whatever the fake kernel says: a program may ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

from refimpl import compile_aot
from refimpl.backends import aot_eager
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options

Tensor = torch.Tensor
NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "batch": lambda x: F.batch_norm(x, None, None, training=True),
    "batch with statistics": lambda x: F.batch_norm(x, x.new_zeros(x.shape[1]), x.new_ones(x.shape[1]), training=False),
    "batch by operator": lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[0],
    "layer": lambda x: F.layer_norm(x, x.shape[1:]),
    "group": lambda x: F.group_norm(x, 1),
    "instance": lambda x: F.instance_norm(x),
}


def layouts(shape: tuple[int, ...]) -> Iterator[Tensor]:
    x = torch.randn(shape)
    yield x
    yield torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))
    yield torch.randn(*shape[:-1], shape[-1] * 2)[..., ::2]
    yield x[:, :1].expand(shape)
    if len(shape) > 2:
        yield x.transpose(0, 1).contiguous().transpose(0, 1)
        yield x.mT.contiguous().mT
    if len(shape) > 3:
        last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        yield x.contiguous(memory_format=last)
        yield torch.cat([x, x], 1).contiguous(memory_format=last)[:, ::2]


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_strides_are_those_of_the_kernel(name: str, dynamic: bool) -> None:
    seen: list[tuple[int, ...]] = []

    def program(x: Tensor) -> Tensor:
        result = NORMS[name](x)
        seen.append(tuple(int(stride) for stride in result.stride()))
        return result

    checked = kept = 0
    shapes = [(2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 2, 2)]
    if not dynamic:
        shapes += [(2, 3, 1, 1), (1, 3, 4, 5), (2, 1, 4, 5), (3, 1), (1, 3)]
    for shape in shapes:
        for x in layouts(shape):
            try:
                expected = NORMS[name](x)
            except ValueError:  # one value per channel, or no spatial dimensions
                continue
            seen.clear()
            result = compile_aot(program, dynamic=dynamic)(x)
            assert result.stride() == expected.stride(), (shape, x.stride())
            assert set(seen) == {expected.stride()}, (shape, x.stride())
            checked, kept = checked + 1, kept + (not expected.is_contiguous())
    assert checked > 10
    assert kept > 1 or name in ("layer", "instance")


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_a_program_that_asks_is_told_the_strides_of_the_kernel(name: str, dynamic: bool) -> None:
    def program(x: Tensor) -> tuple[Tensor, bool, tuple[int, ...]]:
        result = NORMS[name](x)
        return (result + 1 if result.is_contiguous() else result), result.is_contiguous(), result.stride()

    captured = with_options(program, CaptureOptions(backend=aot_eager, dynamic=dynamic, fullgraph=True))
    for x in layouts((2, 3, 4, 5)):
        torch.testing.assert_close(captured(x), program(x))
