"""Which nodes of a backward return zeros if their inputs are zeros, so that zeros may replace a missing tangent.

Counterpart: none; torch's aot_autograd replaces a missing tangent by zeros even where the backward of a custom
torch.autograd.Function then adds something to them
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from refimpl._torch import FakeTensor, without_fake_mode
from refimpl.aot.op_facts import facts_of
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.recording_mode import paused_recordings
from refimpl.trace.symbols import SYMBOLIC_TYPES

# Operators whose result is zeros if one of their tensors is; if the first is; if all are; if those at the given positions are.
_ONE = frozenset({
    "mul", "mm", "bmm", "mv", "dot", "vdot", "matmul", "outer", "convolution",
})  # fmt: skip
_FIRST = frozenset({
    "div", "neg", "abs", "sign", "sgn", "sum", "mean", "clone", "contiguous", "_to_copy", "to", "detach", "alias",
    "expand", "expand_as", "reshape", "view", "_unsafe_view", "permute", "transpose", "t", "squeeze", "unsqueeze",
    "select", "slice", "narrow", "flatten", "unflatten", "movedim", "diagonal", "unfold", "as_strided", "split",
    "chunk", "unbind", "split_with_sizes", "conj", "_conj", "resolve_conj", "real", "imag", "view_as_real",
    "view_as_complex", "tanh", "sin", "relu", "trunc", "floor", "ceil", "round", "flip", "roll", "tril", "triu",
    "cumsum", "index_select", "gather", "index", "repeat", "tile", "getitem", "amax", "amin", "nan_to_num", "lift_fresh",
    "lift_fresh_copy",
})  # fmt: skip
_ALL = frozenset({
    "add", "sub", "cat", "stack", "maximum", "minimum", "select_scatter", "slice_scatter", "diagonal_scatter",
    "as_strided_scatter",
})  # fmt: skip
_AT = {"copy": (1,), "where": (1, 2), "index_put": (0, 2), "scatter_add": (0, 3), "index_add": (0, 3)}


def zeros_of_zeros(
    last: torch.fx.Node, sources: Collection[torch.fx.Node], constants: torch.nn.Module
) -> set[torch.fx.Node]:
    """The sources, and the nodes after `last` that are certainly zeros if the sources are, and all other values are finite."""
    found, node = set(sources), last.next
    while node.op != "root":
        is_zeros = node.op == "call_function" and _is_zeros(node, found)
        if is_zeros or (node.op == "get_attr" and _is_constant_zeros(getattr(constants, str(node.target), None))):
            found.add(node)
        node = node.next
    return found


def _is_constant_zeros(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or value.layout is not torch.strided:
        return False
    with without_fake_mode(), paused_recordings():
        return not bool(value.any())


def refuse_zeros(adding: Collection[frozenset[int]], absent: Collection[int]) -> None:
    """Raises UnsupportedByRefimpl if zeros may not replace the tangents at `absent`.

    They may not where autograd would call a custom backward for these tangents alone that may return something else than zeros.
    adding: ProgramAnalysis.adding.
    """
    if any(one.issubset(absent) for one in adding):
        raise UnsupportedByRefimpl(
            seen="a torch.autograd.Function whose results get no gradient and whose backward may return other values than zeros "
            "for zeros, in a graph whose backward cannot be divided: it has wrapper subclasses, symbolic sizes of another "
            "tool, or ordered effects",
            supported="such functions in graphs of plain tensors, and backwards that multiply the gradient they get",
            do="use all results of the graph in the loss",
        )


def is_made_as_zeros(node: torch.fx.Node) -> bool:
    name = _name(node)
    return name in ("zeros", "zeros_like", "new_zeros") or (name in ("full", "full_like") and bool(node.args[1] == 0))


def _is_zeros(node: torch.fx.Node, zeros: Collection[torch.fx.Node]) -> bool:
    name, args = _name(node), node.args
    tensors = [one for one in node.all_input_nodes if not isinstance(one.meta.get("val"), SYMBOLIC_TYPES)]
    if name in _ONE:
        return any(one in zeros for one in tensors)
    if name in _FIRST or name.endswith(("_backward", "_backward_data")):
        return args[0] in zeros
    if name in _ALL:
        numbers = [arg for arg in args[:2] if isinstance(arg, (int, float, complex))]
        return bool(tensors) and all(one in zeros for one in tensors) and not (name in ("add", "sub") and any(numbers))
    if name in _AT:
        return all(position < len(args) and args[position] in zeros for position in _AT[name])
    if name == "masked_fill":
        return args[0] in zeros and (bool(args[2] == 0) or args[2] in zeros)
    if name == "clamp":
        numbers = [float(arg) for arg in args[1:] if isinstance(arg, (int, float))]
        return args[0] in zeros and len(numbers) == 2 and numbers[0] <= 0 <= numbers[1]
    return is_made_as_zeros(node)


def _name(node: torch.fx.Node) -> str:
    """The operator's name without namespace, overload and the underscore of in-place operators."""
    return "" if node.op != "call_function" else facts_of(node.target).name.removeprefix("aten::").removesuffix("_")
