"""Prints attention, and its two backward kernels, which store no whole row of scores.

A program has a block of queries and loops over the keys in blocks (forward, gradient of the query), or a block of keys and loops
over the queries (gradients of key and value); there are no atomics. Scores, sums and gradients are float32 (float64 for float64).
Operands of products on tensor cores are rounded to the input dtype. The running maximum and sum of a row are rescaled when the
maximum grows. Operands may have any strides. `d` and `e`, the head dimensions of keys and values, are padded to powers of two
under masks.

For half dtypes a weight e**x, where x is the score minus the row's maximum, is computed as 2**(x log2 e) in float32. Its relative
error is at most (5 + 3 |x|) 2**-24, which is at most 5 * 2**-24 of the row's largest weight. Otherwise libdevice computes it.

Counterpart: torch/_inductor/kernel/flex/flex_attention.py
Differs: only the masks of scaled_dot_product_attention; a row whose keys are all masked gives zeros, as in eager. Blocks of keys
that a causal mask hides are not loaded, so a NaN in one has no effect.
"""

from __future__ import annotations

import math

import sympy
import torch

from refimpl.codegen.configurations import Configuration, attention_configurations, power_of_two
from refimpl.codegen.indices import product
from refimpl.codegen.kernel import Kernel
from refimpl.codegen.loop_ir import Attention, Buffer, Operand
from refimpl.codegen.printing.functions import TRITON_DTYPES
from refimpl.codegen.printing.index_text import IndexTextState
from refimpl.codegen.printing.kernels import PrintedKernel, kernel_source, programs
from refimpl.codegen.printing.values import KernelNamesState
from refimpl.codegen.sizes import SizeFacts

LOG2_E = math.log2(math.e)
LONGEST_BLOCK = 128  # queries or keys


def print_attention(name: str, attention: Attention, buffers: dict[str, Buffer], facts: SizeFacts) -> PrintedKernel:
    """Prints a kernel, and describes its launch."""
    return _Printer(name, attention, buffers, facts).run()


class _Printer:
    def __init__(self, name: str, attention: Attention, buffers: dict[str, Buffer], facts: SizeFacts) -> None:
        self.name = name
        self.attention = attention
        self.buffers = buffers
        self.facts = facts
        self.names = KernelNamesState(given=facts.given)
        self.indices = IndexTextState([], sizes=self.names.sizes, given=facts.given)
        self.batch, self.heads, self.queries, head_dim = attention.query.shape
        self.key_heads, self.keys = attention.key.shape[1:3]
        self.dims = {"m": self.queries, "n": self.keys, "d": head_dim, "e": attention.value.shape[3]}
        self.blocks = {"d": "DBLOCK", "e": "EBLOCK", "m": "MBLOCK", "n": "NBLOCK"}
        self.dtype = buffers[attention.query.buffer].dtype
        self.accumulate = torch.float64 if self.dtype == torch.float64 else torch.float32
        self.wide = "" if self._fits_int32() else ".to(tl.int64)"

    def _fits_int32(self) -> bool:
        for operand in (*self.attention.inputs.values(), *self.attention.outputs.values()):
            sizes = (size + 2 * LONGEST_BLOCK for size in operand.shape)  # including masked elements
            last = operand.offset + sympy.Add(*(size * step for size, step in zip(sizes, operand.strides, strict=True)))
            if not self.facts.fits_int32(last):
                return False
        return True

    # ---- the whole

    def run(self) -> PrintedKernel:
        attention = self.attention
        match attention.kind:
            case "forward":
                body = self._forward()
            case "grad_query":
                body = self._grad_query()
            case "grad_key_value":
                body = self._grad_key_value()
        rows, heads = ("n", self.key_heads) if attention.kind == "grad_key_value" else ("m", self.heads)
        configurations = self._configurations()
        default = configurations[0]
        source, parameters = kernel_source(self.name, self.names, default.constants, self.buffers, body, set())
        return PrintedKernel(
            kernel=Kernel(self.name, source, parameters, default.num_warps, default.num_stages),
            arguments=(*self.names.pointers, *self.names.sizes),
            grid=(programs(self.dims[rows], self.blocks[rows]) * heads * self.batch,),
            points=product((self.dims[rows], heads, self.batch)),
            configurations=configurations,
            written=tuple(sorted(operand.buffer for operand in attention.outputs.values())),
            origins=(attention.origin,),
        )

    def _configurations(self) -> tuple[Configuration, ...]:
        queries, keys = (max(self.facts.guess(self.dims[name]), 1) for name in ("m", "n"))
        key_width, value_width = (max(16, power_of_two(int(self.dims[name]))) for name in ("d", "e"))
        is_forward = self.attention.kind == "forward"
        return tuple(
            attention_configurations(queries, keys, key_width, value_width, self.dtype.itemsize, is_forward=is_forward)
        )

    # ---- places

    def _mask(self, name: str) -> str | None:
        """The name of a dimension's mask. None if all blocks are full."""
        size = self.dims[name]
        if name in "de":
            is_full = size == max(16, power_of_two(int(size)))
        else:
            is_full = bool(size.is_Integer and size > 0 and size % LONGEST_BLOCK == 0)
        return None if is_full else f"{name}mask"

    def _range(self, name: str, first: str = "") -> list[str]:
        """Lines that compute indices along a dimension, and their mask."""
        places = f"tl.arange(0, {self.blocks[name]})"
        lines = [f"{name} = ({first} + {places}){self.wide}" if first else f"{name} = {places}{self.wide}"]
        if self._mask(name):
            lines.append(f"{name}mask = {name} < {self._number(self.dims[name])}")
        return lines

    def _number(self, expr: sympy.Expr) -> str:
        return self.indices.factor(expr)

    def _masks(self, names: str) -> str:
        """The mask of a block with these dimensions, the outer one first."""
        masks = [self._mask(name) for name in names]
        if len(names) == 1:
            return masks[0] or ""
        return " & ".join(
            f"{mask}{where}" for mask, where in zip(masks, ("[:, None]", "[None, :]"), strict=True) if mask
        )

    def _load(self, operand: Operand, names: str, *, head: str = "head") -> str:
        """Loads a block with one or two dimensions, the outer one first: "md" has a row per query."""
        text = self._at(operand, names, head)
        mask = self._masks(names)
        return f"tl.load({text}, {mask}, other=0)" if mask else f"tl.load({text})"

    def _at(self, operand: Operand, names: str, head: str) -> str:
        """Pointers to the elements of a block, of an operand with the dimensions batch, head, and those of the block."""
        terms = [self._number(operand.offset)] if operand.offset != 0 else []
        sizes = list(zip(operand.shape, operand.strides, strict=True))
        for (size, step), place in zip(sizes[:2], ("batch", head), strict=True):
            if size != 1 and step != 0:
                terms.append(self._times(place, step))
        subscripts = ("[:, None]", "[None, :]") if len(names) == 2 else ("",)
        places = {name: f"{name}{where}" for name, where in zip(names, subscripts, strict=True)}
        order = sorted(names, key="mnde".index)  # rows come before their elements
        for (size, step), name in zip(sizes[2:], order, strict=True):  # keeps the block's shape for expanded dimensions
            terms.append(self._times(places[name], sympy.S.Zero if size == 1 else step))
        return f"{self.names.pointer(operand.buffer)} + ({' + '.join(terms)})"

    def _times(self, place: str, step: sympy.Expr) -> str:
        return place if step == 1 else f"{place} * {self._number(step)}"

    def _store(self, operand: Operand, names: str, value: str, *, head: str = "head") -> str:
        mask = self._masks(names)
        return f"tl.store({self._at(operand, names, head)}, {value}{f', {mask}' if mask else ''})"

    # ---- parts of kernels

    def _header(self, rows: str, heads: sympy.Expr) -> list[str]:
        """Lines that compute the program's block of rows, head and batch."""
        block = self.blocks[rows]
        own, group = ("key_head", None) if rows == "n" else ("head", self._group())
        lines = [
            f"program = tl.program_id(0){self.wide}",
            f"count = ({self._number(self.dims[rows])} + {block} - 1) // {block}",
            f"first = program % count * {block}",
            f"{own} = program // count % {self._number(heads)}",
            f"batch = program // count // {self._number(heads)}",
        ]
        if group is not None:
            lines.append("key_head = head" if group == 1 else f"key_head = head // {self._number(group)}")
        return [*lines, *self._range(rows, "first"), *self._range("d"), *self._range("e")]

    def _group(self) -> sympy.Expr:
        """How many query heads share a key head."""
        quotient = self.heads / self.key_heads
        assert quotient.is_integer
        return quotient

    def _dot(self, a: str, b: str, accumulator: str = "") -> str:
        more = f", {accumulator}" if accumulator else ""
        out = ", out_dtype=tl.float64" if self.dtype == torch.float64 else ""
        return f'tl.dot({a}, {b}{more}, input_precision="{self.attention.precision}"{out})'

    def _exp(self, difference: str) -> str:
        if self.dtype == self.accumulate:
            return f"libdevice.exp({difference})"
        return f"libdevice.exp2(({difference}) * {LOG2_E!r})"

    def _scores(self, key_transposed: str) -> list[str]:
        """Lines that compute scores of a block of queries (rows) and a block of keys; -inf where masked."""
        attention = self.attention
        lines = [f"scores = {self._dot('query', key_transposed)} * {attention.scale!r}"]
        mask = attention.inputs.get("mask")
        if mask is not None:
            of_mask = self._load(mask, "mn")
            if self.buffers[mask.buffer].dtype == torch.bool:
                lines.append(f'scores = tl.where({of_mask}, scores, float("-inf"))')
            else:
                lines.append(f"scores += {of_mask}.to({TRITON_DTYPES[self.accumulate]})")
        seen = [text for text in (self._masks("mn"),) if text]
        if attention.is_causal:
            seen.append("(m[:, None] >= n[None, :])")
        if seen:
            lines.append(f'scores = tl.where({" & ".join(seen)}, scores, float("-inf"))')
        return lines

    def _last_key(self) -> str:
        """The end of the keys that a block of queries attends to."""
        keys = self._number(self.keys)
        return f"tl.minimum({keys}, first + MBLOCK)" if self.attention.is_causal else keys

    def _zeros(self, name: str, *shape: str) -> str:
        return f"{name} = tl.full([{', '.join(shape)}], 0.0, {TRITON_DTYPES[self.accumulate]})"

    def _as_operand(self, name: str) -> str:
        return name if self.dtype == self.accumulate else f"{name}.to({TRITON_DTYPES[self.dtype]})"

    # ---- kernels

    def _forward(self) -> list[str]:
        inputs, outputs = self.attention.inputs, self.attention.outputs
        accumulate = TRITON_DTYPES[self.accumulate]
        output = outputs["output"]
        loop = [
            *self._range("n", "start"),
            f"key = {self._load(inputs['key'], 'dn', head='key_head')}",
            *self._scores("key"),
            "new = tl.maximum(greatest, tl.max(scores, 1))",
            'base = tl.where(new == float("-inf"), 0.0, new)',
            f"weights = {self._exp('scores - base[:, None]')}",
            f"factor = {self._exp('greatest - base')}",
            "total = total * factor + tl.sum(weights, 1)",
            f"value = {self._load(inputs['value'], 'ne', head='key_head')}",
            f"result = {self._dot(self._as_operand('weights'), 'value', 'result * factor[:, None]')}",
            "greatest = new",
        ]
        divide = "result / divisor[:, None]"
        if self.accumulate == torch.float32:
            divide = "tl.div_rn(result, tl.broadcast_to(divisor[:, None], [MBLOCK, EBLOCK]))"
        body = [
            *self._header("m", self.heads),
            f"query = {self._load(inputs['query'], 'md')}",
            f'greatest = tl.full([MBLOCK], float("-inf"), {accumulate})',
            self._zeros("total", "MBLOCK"),
            self._zeros("result", "MBLOCK", "EBLOCK"),
            f"for start in range(0, {self._last_key()}, NBLOCK):",
            *(f"    {line}" for line in loop),
            "divisor = tl.where(total == 0.0, 1.0, total)",
            f"result = {divide}",
            self._store(output, "me", f"result.to({TRITON_DTYPES[self.dtype]})"),
        ]
        if "logsumexp" in outputs:
            body += [
                'base = tl.where(greatest == float("-inf"), 0.0, greatest)',
                self._store(outputs["logsumexp"], "m", "base + libdevice.log(divisor)"),
            ]
        return body

    def _weights(self) -> list[str]:
        """Lines of both backward kernels: the weights again, and the gradient of the scores."""
        return [
            f"weights = {self._exp('scores - logsumexp[:, None]')}",
            f"weight_grads = {self._dot('grad', 'tl.trans(value)')}",
            "score_grads = weights * (weight_grads - delta[:, None])",
        ]

    def _rows(self) -> list[str]:
        """Lines that load the operands of a block of queries."""
        inputs = self.attention.inputs
        return [
            f"query = {self._load(inputs['query'], 'md')}",
            f"grad = {self._load(inputs['grad_output'], 'me')}",
            f"logsumexp = {self._load(inputs['logsumexp'], 'm')}",
            f"delta = {self._load(inputs['delta'], 'm')}",
        ]

    def _columns(self) -> list[str]:
        """Lines that load a block of keys."""
        inputs = self.attention.inputs
        return [
            f"key = {self._load(inputs['key'], 'nd', head='key_head')}",
            f"value = {self._load(inputs['value'], 'ne', head='key_head')}",
        ]

    def _grad_query(self) -> list[str]:
        loop = [
            *self._range("n", "start"),
            *self._columns(),
            *self._scores("tl.trans(key)"),
            *self._weights(),
            f"result = {self._dot(self._as_operand('score_grads'), 'key', 'result')}",
        ]
        scaled = f"(result * {self.attention.scale!r}).to({TRITON_DTYPES[self.dtype]})"
        return [
            *self._header("m", self.heads),
            *self._rows(),
            self._zeros("result", "MBLOCK", "DBLOCK"),
            f"for start in range(0, {self._last_key()}, NBLOCK):",
            *(f"    {line}" for line in loop),
            self._store(self.attention.outputs["grad_query"], "md", scaled),
        ]

    def _grad_key_value(self) -> list[str]:
        outputs = self.attention.outputs
        group = self._group()
        transposed = {name: self._as_operand(f"tl.trans({name})") for name in ("weights", "score_grads")}
        loop = [
            *self._range("m", "start"),
            *self._rows(),
            *self._scores("tl.trans(key)"),
            *self._weights(),
            f"value_result = {self._dot(transposed['weights'], 'grad', 'value_result')}",
            f"key_result = {self._dot(transposed['score_grads'], 'query', 'key_result')}",
        ]
        begin = "first // MBLOCK * MBLOCK" if self.attention.is_causal else "0"
        over_queries = [
            f"for start in range({begin}, {self._number(self.queries)}, MBLOCK):",
            *(f"    {line}" for line in loop),
        ]
        if group == 1:
            over_heads = ["head = key_head", *over_queries]
        else:
            times = self._number(group)
            over_heads = [
                f"for member in range(0, {times}):",
                f"    head = key_head * {times} + member",
                *(f"    {line}" for line in over_queries),
            ]
        to = f".to({TRITON_DTYPES[self.dtype]})"
        scaled = f"(key_result * {self.attention.scale!r}){to}"
        return [
            *self._header("n", self.key_heads),
            *self._columns(),
            self._zeros("key_result", "NBLOCK", "DBLOCK"),
            self._zeros("value_result", "NBLOCK", "EBLOCK"),
            *over_heads,
            self._store(outputs["grad_key"], "nd", scaled, head="key_head"),
            self._store(outputs["grad_value"], "ne", f"value_result{to}", head="key_head"),
        ]
