"""Lowerings of convolutions and their backward: contractions of an image, loaded through a window, with a weight.

Three contractions cover all of them. `_gathered`: a window moves over an image (a convolution, and the image gradient of a
transposed one). `_spread`: every pixel is scattered over a window (a transposed convolution, and the image gradient of the
other). `_weighed`: both images are loaded, for the gradient of the weight. Groups are a batch dimension.

Counterpart: torch/_inductor/kernel/conv.py
Differs: supports any number of dimensions, transposed convolutions and gradients, and changes no layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from refimpl.codegen.indices import ONE, ZERO, to_index
from refimpl.codegen.loop_ir import Buffer
from refimpl.codegen.lowering.contractions import (
    ContractionSpec,
    OperandAt,
    check_operands,
    contracted,
    operand,
    result_buffer,
)
from refimpl.codegen.lowering.reductions import reduced
from refimpl.codegen.lowering.state import (
    LoweringState,
    NotLowered,
    RuleTable,
    apply,
    cast,
    fake_of,
    literal,
    opmath,
)
from refimpl.codegen.lowering.views import compared, guarded
from refimpl.codegen.scalars import Scalar
from refimpl.codegen.tensors import Computed, Indices, Stored, Tensor
from refimpl.symbolic.functions import FloorDiv, PythonMod

aten = torch.ops.aten

RULES = RuleTable()


@dataclass(frozen=True)
class Window:
    """Stride, padding and dilation of a window, one number per image dimension, and the number of groups."""

    strides: Indices
    padding: Indices
    dilation: Indices
    groups: sympy.Expr

    def read(self, image: Tensor, before: Indices, at: Indices, inside: Indices) -> Scalar:
        """The pixel under one element of the window at an output position; zero in the padding. [*before, *pixels]"""
        pixels, conditions = [], []
        sizes = image.shape[len(before) :]
        for place, tap, size, stride, pad, step in zip(
            at, inside, sizes, self.strides, self.padding, self.dilation, strict=True
        ):
            pixels.append((place * stride + tap * step - pad).expand())
            if pad != ZERO:
                conditions += [compared("ge", pixels[-1], 0), compared("lt", pixels[-1], size)]
        return guarded(conditions, image.at((*before, *pixels)), literal(0, image.dtype))

    def read_below(self, image: Tensor, before: Indices, at: Indices, inside: Indices) -> Scalar:
        """The input pixel whose window covers an output position with one of its elements; zero if there is none. [*before,
        *pixels]"""
        pixels, conditions = [], []
        sizes = image.shape[len(before) :]
        for place, tap, size, stride, pad, step in zip(
            at, inside, sizes, self.strides, self.padding, self.dilation, strict=True
        ):
            distance = (place + pad - tap * step).expand()
            pixels.append(distance if stride == ONE else FloorDiv(distance, stride))
            conditions += [compared("ge", distance, 0), compared("lt", distance, (size * stride).expand())]
            if stride != ONE:
                conditions.append(compared("eq", PythonMod(distance, stride), 0))
        return guarded(conditions, image.at((*before, *pixels)), literal(0, image.dtype))


def _window(rank: int, stride: Sequence[Any], padding: Sequence[Any], dilation: Sequence[Any], groups: Any) -> Window:
    def expanded(numbers: Sequence[Any]) -> Indices:
        given = tuple(to_index(number) for number in numbers)
        return given * rank if len(given) == 1 else given

    return Window(expanded(stride), expanded(padding), expanded(dilation), to_index(groups))


def _gathered(image: Tensor, weight: Tensor, window: Window, target: Buffer) -> ContractionSpec:
    """[n, groups * c, *image], [groups * o, c, *window] -> [n, groups * o, *places]"""
    groups, depth = window.groups, weight.shape[1]
    columns = FloorDiv(weight.shape[0], groups)

    def pixel(kept: Indices, over: Indices) -> Scalar:
        return window.read(image, (kept[0], kept[1] * depth + over[0]), kept[3:], over[1:])

    def factor(kept: Indices, over: Indices) -> Scalar:
        return weight.at((kept[1] * columns + kept[2], *over))

    return _spec(pixel, factor, image.dtype, target, groups, columns, weight.shape[1:])


def _spread(image: Tensor, weight: Tensor, window: Window, target: Buffer) -> ContractionSpec:
    """[n, groups * c, *image], [groups * c, o, *window] -> [n, groups * o, *places]"""
    groups, columns = window.groups, weight.shape[1]
    depth = FloorDiv(weight.shape[0], groups)

    def pixel(kept: Indices, over: Indices) -> Scalar:
        return window.read_below(image, (kept[0], kept[1] * depth + over[0]), kept[3:], over[1:])

    def factor(kept: Indices, over: Indices) -> Scalar:
        return weight.at((kept[1] * depth + over[0], kept[2], *over[1:]))

    spec = _spec(pixel, factor, image.dtype, target, groups, columns, (depth, *weight.shape[2:]))
    return replace(spec, skips_guarded=True)


def _spec(
    pixel: OperandAt,
    factor: OperandAt,
    dtype: torch.dtype,
    target: Buffer,
    groups: sympy.Expr,
    columns: sympy.Expr,
    over: Indices,
) -> ContractionSpec:
    """Chooses rows and columns so that rows have the larger strides."""
    step_of_batch, step_of_channel, *steps = target.strides
    has_channels_last = step_of_channel == ONE
    return ContractionSpec(
        kept=(target.shape[0], groups, columns, *target.shape[2:]),
        reduced=over,
        left=pixel if has_channels_last else factor,
        right=factor if has_channels_last else pixel,
        dtype=dtype,
        strides=(step_of_batch, step_of_channel * columns, step_of_channel, *steps),
        is_convolution=True,
    )


def _weighed(places: Tensor, image: Tensor, window: Window, target: Buffer) -> ContractionSpec:
    """[n, groups * o, *places], [n, groups * c, *image] -> [groups * o, c, *window]"""
    groups, depth = window.groups, target.shape[1]
    rows = FloorDiv(target.shape[0], groups)

    def left(kept: Indices, over: Indices) -> Scalar:
        return places.at((over[0], kept[0] * rows + kept[1], *over[1:]))

    def right(kept: Indices, over: Indices) -> Scalar:
        return window.read(image, (over[0], kept[0] * depth + kept[2]), over[1:], kept[3:])

    return ContractionSpec(
        kept=(groups, rows, *target.shape[1:]),
        reduced=(places.shape[0], *places.shape[2:]),
        left=left,
        right=right,
        dtype=places.dtype,
        strides=(target.strides[0] * rows, *target.strides),
        is_convolution=True,
    )


def _check_ranks(*tensors: Tensor) -> int:
    """The number of dimensions. Raises NotLowered if the tensors disagree."""
    ranks = {len(tensor.shape) for tensor in tensors}
    if len(ranks) != 1 or not 3 <= max(ranks) <= 5:
        raise NotLowered(f"tensors of {sorted(ranks)} dimensions")
    return ranks.pop() - 2


@RULES.rule(aten.convolution.default)
def _convolution(
    state: LoweringState, node: torch.fx.Node, image: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[Any],
    padding: Sequence[Any], dilation: Sequence[Any], transposed: bool, output_padding: Sequence[Any], groups: Any,
) -> Stored:  # fmt: skip
    """The bias is added before the sum is rounded."""
    fake = fake_of(node)
    check_operands(node, image, weight, *(() if bias is None else (bias,)))
    window = _window(_check_ranks(image, weight), stride, padding, dilation, groups)
    image, weight = operand(state, node, image), operand(state, node, weight)
    compute = opmath(fake.dtype)
    target = result_buffer(state, fake, None if bias is None else compute)
    spec = (_spread if transposed else _gathered)(image, weight, window, target)
    total = contracted(state, spec, target, (node.name,))
    if bias is None:
        return total

    def value(indices: Indices) -> Scalar:
        return cast(apply("add", total.at(indices), cast(bias.at((indices[1],)), compute)), fake.dtype)

    result = Computed(total.shape, fake.dtype, fake.device, value, bias.cost + 2)
    return state.store(result, fake.stride(), (node.name,))


@RULES.rule(aten.convolution_backward.default)
def _convolution_backward(
    state: LoweringState, node: torch.fx.Node, gradient: Tensor, image: Tensor, weight: Tensor, bias_sizes: Any,
    stride: Sequence[Any], padding: Sequence[Any], dilation: Sequence[Any], transposed: bool, output_padding: Sequence[Any],
    groups: Any, output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of image, weight and bias that `output_mask` asks for."""
    check_operands(node, gradient, image, weight)
    window = _window(_check_ranks(gradient, image, weight), stride, padding, dilation, groups)
    gradient, image, weight = (operand(state, node, tensor) for tensor in (gradient, image, weight))
    results: list[Tensor | None] = []
    for fake, kind in zip(node.meta["val"], ("image", "weight", "bias"), strict=True):
        if fake is None or not output_mask[len(results)]:
            results.append(None)
            continue
        if kind == "bias":
            results.append(_of_bias(state, node, gradient))
            continue
        target = result_buffer(state, fake)
        if kind == "image":
            spec = (_gathered if transposed else _spread)(gradient, weight, window, target)
        else:
            spec = (
                _weighed(image, gradient, window, target) if transposed else _weighed(gradient, image, window, target)
            )
        results.append(contracted(state, spec, target, (node.name,)))
    return tuple(results)


def _of_bias(state: LoweringState, node: torch.fx.Node, gradient: Tensor) -> Computed:
    """The sum over all dimensions except the channels."""
    dims = [0, *range(2, len(gradient.shape))]
    total = reduced(state, node, "sum", gradient, dims, opmath(gradient.dtype))

    def value(indices: Indices) -> Scalar:
        return cast(total.at((ZERO, indices[0], *(ZERO for _ in dims[1:]))), gradient.dtype)

    return Computed((gradient.shape[1],), gradient.dtype, gradient.device, value)
