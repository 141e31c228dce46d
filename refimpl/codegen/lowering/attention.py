"""Lowerings of scaled dot product attention to one kernel, and of its backward to two.

Operators for several kinds of devices compute the same attention. They differ in their other results:

| operator | mask | other results |
|---|---|---|
| `_scaled_dot_product_flash_attention_for_cpu` | float, added to scores | logsumexp |
| `_scaled_dot_product_efficient_attention` | any | logsumexp, padded beyond the queries; seed and offset |
| `_scaled_dot_product_flash_attention` | none | logsumexp; lengths, and the RNG state |
| `_scaled_dot_product_cudnn_attention` | any | logsumexp with a last dimension of 1; lengths, seed and offset |

With dropout the operator's own kernel is called. Forward and backward are lowered under the same conditions, so that a logsumexp
is read by the kind of kernel that has written it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refimpl.codegen.indices import ONE, ZERO, product, to_index
from refimpl.codegen.loop_ir import Attention, Buffer, Operand
from refimpl.codegen.lowering.contractions import DOT_DTYPES, check_size
from refimpl.codegen.lowering.state import (
    LoweringState,
    NotLowered,
    RuleTable,
    apply,
    by_name,
    cast,
    literal,
    opmath,
    whole,
)
from refimpl.codegen.scalars import Scalar
from refimpl.codegen.schedule import guess
from refimpl.codegen.tensors import Computed, Indices, Stored, Tensor

aten = torch.ops.aten

RULES = RuleTable()

WIDEST_HEAD = 256
MASK_DTYPES = (torch.bool, *DOT_DTYPES)


class _Call:
    """The shared part of a call's forward and backward: the operands, and the options of the kernels."""

    def __init__(self, state: LoweringState, node: torch.fx.Node, arguments: Mapping[str, Any]) -> None:
        self.state = state
        self.node = node
        self.tensors: dict[str, Tensor] = {name: arguments[name] for name in ("query", "key", "value")}
        self.mask: Tensor | None = arguments.get("attn_mask", arguments.get("attn_bias"))
        self.is_causal: bool = arguments["is_causal"]
        # Flash attention and cuDNN align a causal mask of a non-square score matrix differently from each other. Their forward
        # can return its weights, and their backward takes the lengths of ragged batches.
        self.is_of_library = bool(arguments.keys() & {"return_debug_mask", "cum_seq_q"})
        scale: float | None = arguments["scale"]
        query = self.tensors["query"]
        self.check(arguments["dropout_p"])
        self.scale = 1 / math.sqrt(int(query.shape[3])) if scale is None else float(scale)
        self.dtype, self.device = query.dtype, query.device
        self.accumulate = opmath(self.dtype)

    def check(self, dropout: float) -> None:
        """Raises NotLowered for calls that the kernels do not support."""
        query, key, value = self.tensors.values()
        if dropout != 0:
            raise NotLowered("attention with dropout")
        if any(len(tensor.shape) != 4 for tensor in self.tensors.values()):
            raise NotLowered("attention of other than 4 dimensions")
        if query.dtype not in DOT_DTYPES or any(tensor.dtype != query.dtype for tensor in (key, value)):
            raise NotLowered(f"attention of {query.dtype}, {key.dtype} and {value.dtype}")
        masks = [] if self.mask is None else [self.mask]
        if any(tensor.device != query.device for tensor in (key, value, *masks)):
            raise NotLowered("attention on several devices")
        for tensor in (query, value):
            width = tensor.shape[3]
            if not width.is_Integer or not 1 <= width <= WIDEST_HEAD:
                raise NotLowered(f"heads {width} wide")
        is_whole = bool((query.shape[1] / key.shape[1]).is_integer) if key.shape[1] != 0 else False
        same = (query.shape[0] == key.shape[0] == value.shape[0], key.shape[1:3] == value.shape[1:3])
        if not is_whole or not all(same) or query.shape[3] != key.shape[3]:
            raise NotLowered(f"attention of {query.shape}, {key.shape} and {value.shape}")
        if self.mask is not None and (self.mask.dtype not in MASK_DTYPES or len(self.mask.shape) not in (2, 4)):
            raise NotLowered(f"a mask of {self.mask.dtype} with {len(self.mask.shape)} dimensions")
        scores = product((*query.shape[:3], key.shape[2]))
        check_size(self.state, guess(scores * (query.shape[3] + value.shape[3])), "dot", query.device)
        if self.is_causal and self.is_of_library and query.shape[2] != key.shape[2]:
            raise NotLowered("causal attention of other numbers of queries and keys")

    def inputs(self) -> dict[str, Operand]:
        """The operands in memory."""
        made = {name: self.stored(tensor).as_operand() for name, tensor in self.tensors.items()}
        if self.mask is not None:
            mask = self.stored(self.mask).as_operand()
            missing = 4 - len(mask.shape)
            made["mask"] = Operand(
                mask.buffer,
                (ONE,) * missing + mask.shape,
                (ZERO,) * missing + mask.strides,
                mask.offset,
                is_whole=False,
            )
        return made

    def stored(self, tensor: Tensor) -> Stored:
        return self.state.in_memory(tensor) or self.state.store(tensor, origins=(self.node.name,))

    def new(self, fake: torch.Tensor) -> Buffer:
        """A buffer for a result, with the strides of its fake tensor."""
        return self.state.new_buffer(fake.shape, fake.dtype, fake.device, fake.stride())

    def step(self, kind: Any, inputs: dict[str, Operand], outputs: dict[str, Operand], made: Sequence[Buffer]) -> None:
        """Adds a kernel to the steps."""
        libraries: Any = torch.backends
        is_tf32 = self.device.type == "cuda" and libraries.cuda.matmul.fp32_precision == "tf32"
        self.state.steps.append(
            Attention(
                kind=kind,
                inputs=inputs,
                outputs=outputs,
                made=tuple(made),
                scale=self.scale,
                is_causal=self.is_causal,
                precision="tf32" if is_tf32 else "ieee",
                origin=self.node.name,
            )
        )


def _row_operand(tensor: Stored) -> Operand:
    """A number per batch, head and query, without trailing dimensions of size 1."""
    return Operand(tensor.buffer.name, tensor.shape[:3], tensor.strides[:3], tensor.offset, is_whole=False)


def _forward(call: _Call, output: torch.Tensor, logsumexp: torch.Tensor) -> list[Stored]:
    inputs = call.inputs()
    made = [call.new(output)]
    outputs = {"output": whole(made[0]).as_operand()}
    made.append(call.new(logsumexp))
    if 0 not in logsumexp.shape:
        if logsumexp.dtype != call.accumulate:
            raise NotLowered(f"a logsumexp of {logsumexp.dtype}")
        outputs["logsumexp"] = _row_operand(whole(made[1]))
        call.step("forward", inputs, outputs, made)
        return [whole(buffer) for buffer in made]
    call.step("forward", inputs, outputs, made[:1])
    return [whole(made[0]), call.stored(_zeros(logsumexp))]


def _zeros(fake: torch.Tensor) -> Computed:
    """A result that only an operator's own kernel would read."""
    shape: Indices = tuple(to_index(size) for size in fake.shape)
    return Computed(shape, fake.dtype, fake.device, lambda indices: literal(0, fake.dtype), 0)


def _unread(fake: Any) -> Any:
    """The other results: numbers as they are, and tensors that nobody reads."""
    if isinstance(fake, torch.SymInt):
        return to_index(fake)
    return _zeros(fake) if isinstance(fake, torch.Tensor) else fake


@RULES.rule(
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)
def _attention(state: LoweringState, node: torch.fx.Node, *args: Any, **keywords: Any) -> Any:
    arguments = by_name(node, args, keywords)
    if arguments.get("return_debug_mask"):
        raise NotLowered("attention that returns its weights")
    output, logsumexp, *rest = node.meta["val"]
    return [*_forward(_Call(state, node, arguments), output, logsumexp), *map(_unread, rest)]


# ---- gradients


def _backward(
    call: _Call, grad: Tensor, output: Tensor, logsumexp: Tensor, fakes: Sequence[torch.Tensor]
) -> list[Stored]:
    """Gradients of query, key and value."""
    if grad.dtype != call.dtype or output.dtype != call.dtype or logsumexp.dtype != call.accumulate:
        raise NotLowered(f"gradients of {grad.dtype}, for results of {output.dtype} and {logsumexp.dtype}")
    inputs = call.inputs()
    stored = call.stored(grad)
    accumulate = call.accumulate

    def row_product(indices: Indices) -> Scalar:
        return apply("mul", cast(stored.at(indices), accumulate), cast(output.at(indices), accumulate))

    products = Computed(output.shape, accumulate, call.device, row_product, 1 + output.cost)
    delta = call.state.reduce("sum", products, [3], accumulate, (call.node.name,))
    inputs |= {
        "grad_output": stored.as_operand(),
        "logsumexp": _row_operand(call.stored(logsumexp)),
        "delta": _row_operand(delta),
    }
    query, key, value = (call.new(fake) for fake in fakes)
    call.step("grad_query", inputs, {"grad_query": whole(query).as_operand()}, [query])
    outputs = {"grad_key": whole(key).as_operand(), "grad_value": whole(value).as_operand()}
    call.step("grad_key_value", inputs, outputs, [key, value])
    return [whole(buffer) for buffer in (query, key, value)]


@RULES.rule(
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    aten._scaled_dot_product_efficient_attention_backward.default,
    aten._scaled_dot_product_flash_attention_backward.default,
    aten._scaled_dot_product_cudnn_attention_backward.default,
)
def _attention_backward(state: LoweringState, node: torch.fx.Node, grad: Tensor, *args: Any, **keywords: Any) -> Any:
    arguments = by_name(node, (grad, *args), keywords)
    wanted = arguments.get("grad_input_mask")
    if wanted is not None and wanted[3]:
        raise NotLowered("the gradient of a mask")
    call = _Call(state, node, arguments)
    fakes, rest = node.meta["val"][:3], node.meta["val"][3:]
    if not all(isinstance(fake, torch.Tensor) for fake in fakes):
        raise NotLowered("gradients of some operands only")
    return [*_backward(call, grad, arguments["out"], arguments["logsumexp"], fakes), *map(_unread, rest)]
