"""What may run again in the backward, and at what price: by kind of op, by what the program asks for, by options.

Counterpart: torch/_functorch/partitioners.py get_default_op_list, OpTypes, and the heuristics of solve_min_cut;
must_recompute, cleanup_recompute_tags; the entries of torch/_functorch/config.py about partitioning
Differs: a kind has a price in bytes, and an op is recomputed where that is cheaper than the memory it saves. Upstream forbids
recomputation by lists, distances and chain lengths; here a long chain is dear because each of its ops is paid for, and what is
used far apart is dear because both uses pay. A random op that is tagged for recomputation is saved all the same, where upstream
rewrites it with a saved generator state; the graph's own meta is not changed.
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from refimpl._torch import HigherOrderOperator, OpOverload
from refimpl.aot.op_facts import facts_of
from refimpl.aot.partition.joint_graph import JointGraph
from refimpl.aot.random_ops import RANDOM_LIBRARY
from refimpl.errors import BadParameter


class OpKind(enum.Enum):
    """How an op is judged. What no table names is `OTHER`, which is never recomputed unless a memory budget asks for it."""

    FREE = "free"  # views, items of tuples, arithmetic on sizes: no kernel runs
    POINTWISE = "pointwise"  # one pass over memory, which a compiler fuses into what reads it
    MOVE = "move"  # gathers, concatenations, paddings: the same, with other addresses
    FACTORY = "factory"  # constants: no memory is read
    REDUCTION = "reduction"  # reads much to write little: its result is cheap to keep
    HEAVY = "heavy"  # its arithmetic outweighs its memory traffic
    OTHER = "other"  # kernels of their own: normalisations, softmax, pooling, sorting
    ONCE = "once"  # random, effectful, of a user's library, or of unknown insides: a second run may not be the same


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Matrix products, convolutions and attention: arithmetic grows faster than memory.
HEAVY_OPS = _names(
    "mm bmm addmm addbmm baddbmm addmv addr mv dot vdot matmul linear _int_mm _scaled_mm _grouped_mm _weight_int8pack_mm "
    "convolution _convolution convolution_backward convolution_overrideable mkldnn_rnn_layer lstm gru _cudnn_rnn "
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math "
    "_flash_attention_forward _efficient_attention_forward upsample_bilinear2d upsample_bicubic2d grid_sampler_2d "
    "_trilinear linalg_inv_ex linalg_solve_ex _linalg_svd _linalg_eigh linalg_qr linalg_cholesky_ex linalg_lu_factor_ex "
    "_fft_c2c _fft_r2c _fft_c2r _cdist_forward"
)
# Elementwise ops that carry no pointwise tag.
POINTWISE_OPS = _names(
    "_to_copy convert_element_type clone copy fill div alias_copy detach_copy lift_fresh_copy _conj_physical conj_physical "
    "view_of native_dropout_backward"
)
MOVE_OPS = _names(
    "cat stack index index_select gather take take_along_dim embedding constant_pad_nd flip roll repeat tril triu slice_scatter "
    "select_scatter diagonal_scatter as_strided_scatter expand_copy view_copy permute_copy t_copy transpose_copy slice_copy "
    "select_copy unsqueeze_copy squeeze_copy split_copy unbind_copy diagonal_copy as_strided_copy unfold_copy repeat_interleave "
    "pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d rot90 "
    "reshape contiguous"
)
FACTORY_OPS = _names(
    "full ones zeros empty empty_strided arange scalar_tensor eye linspace logspace full_like ones_like zeros_like empty_like "
    "new_full new_ones new_zeros new_empty new_empty_strided iota one_hot"
)
REDUCTION_OPS = _names(
    "sum mean amax amin max min any all var std var_mean std_mean prod argmax argmin logsumexp linalg_vector_norm norm aminmax "
    "sum_to_size _grad_sum_to_size count_nonzero nansum"
)
# Pointwise by tag, but with a loop or a series per element.
SLOW_POINTWISE_OPS = _names(
    "digamma polygamma lgamma igamma igammac erfinv special_bessel_j0 special_bessel_j1 special_i0 special_i0e special_i1 "
    "special_zeta special_ndtri special_log_ndtr i0"
)
# Run twice, their result has a size, or is a number, that nothing says is the same.
_DATA_DEPENDENT = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Bytes paid per byte of traffic. A saved byte costs 1.

    The defaults weigh memory first, and pay for it with what is nearly free; see `benchmarks/measurements/partition_memory.py`.
    """

    fused: float = 0.04  # an elementwise op fused into what reads it: arithmetic, and inputs that are read anyway
    materialized: float = 0.5  # the same where a kernel that cannot be fused reads it: written and read once more
    slow: float = 1.0  # an elementwise op with a loop per element
    constant: float = 0.01
    reduction: float = 0.5  # per byte read
    extra_write: float = 0.05  # saving what the forward, fused, would not have written to memory


@functools.cache
def kind_of(target: Any) -> OpKind:
    """The kind of a call's target."""
    if target is operator.getitem:
        return OpKind.FREE
    if isinstance(target, HigherOrderOperator):
        return OpKind.ONCE
    facts = facts_of(target)
    if facts.is_random or facts.is_effectful:
        return OpKind.ONCE
    if not isinstance(target, OpOverload):
        return OpKind.FREE if not facts.name.startswith("aten::") else OpKind.POINTWISE
    library, _, name = facts.name.partition("::")
    if library == RANDOM_LIBRARY:  # a function of the generator's state: run twice, it gives the same
        return OpKind.POINTWISE
    if library not in ("aten", "prims") or not _DATA_DEPENDENT.isdisjoint(target.tags):
        return OpKind.ONCE
    if facts.viewed is not None and name not in MOVE_OPS:
        return OpKind.FREE
    if not any("Tensor" in str(result.type) for result in target._schema.returns):
        return OpKind.FREE
    if torch.Tag.pointwise in target.tags:  # before the tables: max.other is, max.dim is not
        return OpKind.POINTWISE
    return next((kind for kind, names in _TABLES if name in names), OpKind.OTHER)


_TABLES: Sequence[tuple[OpKind, frozenset[str]]] = (
    (OpKind.HEAVY, HEAVY_OPS),
    (OpKind.POINTWISE, POINTWISE_OPS),
    (OpKind.FACTORY, FACTORY_OPS),
    (OpKind.MOVE, MOVE_OPS),
    (OpKind.REDUCTION, REDUCTION_OPS),
)


def is_fusible(kind: OpKind) -> bool:
    """Whether a compiler runs such an op inside of the kernel of its neighbours."""
    return kind in (OpKind.FREE, OpKind.POINTWISE, OpKind.MOVE, OpKind.FACTORY, OpKind.REDUCTION)


# Both ask for the same: plain checkpointing tags with PREFER_RECOMPUTE, and whoever writes it expects it to happen.
_RECOMPUTE = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
_SAVE = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


def asked_to_recompute(joint: JointGraph) -> frozenset[int]:
    """Nodes that the program asks to recompute, by policies of torch.utils.checkpoint in node.meta["recompute"]."""
    tagged = _tagged(joint)
    return frozenset(i for i in tagged if not _ends_region(joint, i, tagged))


def asked_to_save(joint: JointGraph) -> frozenset[int]:
    """Nodes that such a policy asks to save, and those at the ends of checkpointed regions."""
    tagged = _tagged(joint)
    ends = {i for i in tagged if _ends_region(joint, i, tagged)}
    return frozenset(ends | {i for i, node in enumerate(joint.nodes) if node.meta.get("recompute") in _SAVE})


def _tagged(joint: JointGraph) -> set[int]:
    return {
        i
        for i, node in enumerate(joint.nodes)
        if node.meta.get("recompute") in _RECOMPUTE
        and node.op == "call_function"
        and not joint.is_backward[i]
        and not _runs_once(node)
    }


def _runs_once(node: torch.fx.Node) -> bool:
    """Whether it is computed once, or is a result of what is: that one is not saved by itself."""
    source = node.args[0] if node.target is operator.getitem else node
    return isinstance(source, torch.fx.Node) and kind_of(source.target) is OpKind.ONCE


def _ends_region(joint: JointGraph, number: int, tagged: set[int]) -> bool:
    """Whether the next checkpointed region starts right there: what passes from one to the next is saved, else the second
    would have the first recomputed too. So is a region's result with a backward hook, which waits for that very gradient."""
    meta = joint.nodes[number].meta
    region = meta.get("ac_graph_id")
    users = [u for u in joint.users[number] if u in tagged]
    if region is not None and any(joint.nodes[u].meta.get("ac_graph_id", region) > region for u in users):
        return True
    return bool(meta.get("has_backward_hook")) and not users


# Where torch.autograd.graph.region_activation_memory_budget leaves its number, in meta["custom"].
_REGION_BUDGET = "_region_activation_memory_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOptions:
    """memory_budget: 1 recomputes what is nearly free; 0 all that may be recomputed, whatever it costs; between them, bytes saved
    are that share of the way from the least to what 1 saves. `verifies`: whether partitions are verified."""

    memory_budget: float = 1.0
    prices: Prices = field(default_factory=Prices)
    merges_common_subexpressions: bool = True
    verifies: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.memory_budget <= 1:
            raise BadParameter(
                seen=f"memory budget {self.memory_budget}",
                expected="a number from 0 to 1",
            )


_OPTIONS: contextvars.ContextVar[PartitionOptions] = contextvars.ContextVar("partition options")
_DEFAULT = PartitionOptions()


def current_options() -> PartitionOptions:
    """The options of the innermost `partition_options` block."""
    return _OPTIONS.get(_DEFAULT)


@contextlib.contextmanager
def partition_options(**changes: Any) -> Iterator[PartitionOptions]:
    """A block in which partitions are made with these fields of PartitionOptions changed."""
    token = _OPTIONS.set(replace(current_options(), **changes))
    try:
        yield _OPTIONS.get()
    finally:
        _OPTIONS.reset(token)


def budget_of_graph(graph: torch.fx.Graph, default: float) -> float:
    """The memory budget that the program asks for in its nodes' meta, else `default`. Raises BadParameter for two budgets."""
    asked: dict[float, str] = {}
    for node in graph.nodes:
        custom = node.meta.get("custom")
        budget = custom.get(_REGION_BUDGET) if isinstance(custom, dict) else None
        budget = node.meta.get("memory_budget") if budget is None else budget
        if isinstance(budget, float):
            asked.setdefault(budget, node.name)
    if len(asked) > 1:
        raise BadParameter(
            seen=f"conflicting budgets within a single joint graph: {asked}",
            expected="one budget per graph; a graph break separates regions of different budgets",
        )
    return next(iter(asked), default)
