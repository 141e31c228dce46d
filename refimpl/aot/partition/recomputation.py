"""Which forward ops the backward may recompute: kinds of ops, checkpoint policies of the program, and options with prices.

Counterpart: torch/_functorch/partitioners.py get_default_op_list, OpTypes, and the heuristics of solve_min_cut;
must_recompute, cleanup_recompute_tags; the entries of torch/_functorch/config.py about partitioning
Differs: a kind has a price in bytes, and an op is recomputed if that costs less than saving it. Upstream bans recomputation
by lists, distances and lengths of chains; here a long chain is expensive because each of its ops has a price. A random op that is
tagged for recomputation is saved, where upstream recomputes it from a saved generator state. The graph's meta is not changed.
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

from refimpl._torch import HigherOrderOperator, OpOverload, aot_setting
from refimpl.aot.partition.joint_graph import JointGraph
from refimpl.aot.random_ops import RANDOM_LIBRARY
from refimpl.errors import BadParameter
from refimpl.functionalize.schemas import facts_of


class OpKind(enum.Enum):
    """Kinds of ops with different prices. An op in no table is `OTHER`: recomputed only if a memory budget asks for it."""

    FREE = "free"  # views, items of tuples, arithmetic on sizes: no kernel runs
    POINTWISE = "pointwise"  # one pass over memory, which a compiler fuses into its users
    MOVE = "move"  # gathers, concatenations, paddings: fused as well, at other addresses
    FACTORY = "factory"  # constants: no memory is read
    REDUCTION = "reduction"  # reads many bytes and writes few: its result is cheap to save
    HEAVY = "heavy"  # arithmetic takes longer than memory traffic
    OTHER = "other"  # kernels that do not fuse: normalisations, softmax, pooling, sorting
    ONCE = "once"  # random, effectful, custom or unknown ops: a second run may give another result


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
# The size or number that a second run returns gets a new unbacked symbol.
_DATA_DEPENDENT = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of recomputation per byte of memory traffic. Saving a byte costs 1.

    By default memory is saved first, with cheap recomputation; see `benchmarks/measurements/partition_memory.py`.
    """

    fused: float = 0.04  # a pointwise op fused into its user, which reads the inputs anyway
    # A pointwise op whose user is a kernel that does not fuse: its result is written and read.
    materialized: float = 0.5
    slow: float = 1.0  # a pointwise op with a loop per element
    constant: float = 0.01
    reduction: float = 0.5  # per byte read
    extra_write: float = 0.05  # saving a value that the fused forward would not write to memory


@functools.cache
def kind_of(target: Any) -> OpKind:
    """The kind of a call with this target."""
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
    if library == RANDOM_LIBRARY:  # a function of the generator's state: a second run draws the same numbers
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
    """Whether a compiler fuses such an op into the kernels of its neighbours."""
    return kind in (OpKind.FREE, OpKind.POINTWISE, OpKind.MOVE, OpKind.FACTORY, OpKind.REDUCTION)


# Both policies are obeyed: checkpoint without a policy tags with PREFER_RECOMPUTE, and its user expects recomputation.
_RECOMPUTE = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
_SAVE = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


def asked_to_recompute(joint: JointGraph) -> frozenset[int]:
    """Nodes that the program asks to recompute, by the policy of torch.utils.checkpoint in node.meta["recompute"]."""
    tagged = _tagged(joint)
    return frozenset(i for i in tagged if not _ends_region(joint, i, tagged))


def asked_to_save(joint: JointGraph) -> frozenset[int]:
    """Nodes that a policy asks to save, and those at the ends of checkpointed regions."""
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
    """Whether it must run once only, or is an item of such a node's result."""
    source = node.args[0] if node.target is operator.getitem else node
    return isinstance(source, torch.fx.Node) and kind_of(source.target) is OpKind.ONCE


def _ends_region(joint: JointGraph, number: int, tagged: set[int]) -> bool:
    """Whether the node passes from one checkpointed region to the next, or has a backward hook and is the region's result.

    It is saved, because recomputing the second region would otherwise recompute the first one too.
    """
    meta = joint.nodes[number].meta
    region = meta.get("ac_graph_id")
    users = [u for u in joint.users[number] if u in tagged]
    if region is not None and any(joint.nodes[u].meta.get("ac_graph_id", region) > region for u in users):
        return True
    return bool(meta.get("has_backward_hook")) and not users


# The key in meta["custom"] under which torch.autograd.graph.region_activation_memory_budget records the budget.
_REGION_BUDGET = "_region_activation_memory_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOptions:
    """memory_budget: 1 recomputes what costs less than saving it; 0 recomputes everything that may be. Between them, it says how
    many bytes are saved, on the way from the least possible (0) to what a budget of 1 saves.
    verifies: whether partitions are verified."""

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


_OPTIONS: contextvars.ContextVar[PartitionOptions | None] = contextvars.ContextVar("partition options", default=None)
_DEFAULT = PartitionOptions()


def current_options() -> PartitionOptions:
    """The options of the innermost `partition_options` block. Outside of one, those that the user has set for torch:
    `activation_memory_budget` and `cse` of torch._functorch.config."""
    options = _OPTIONS.get(None)
    if options is not None:
        return options
    budget = aot_setting("activation_memory_budget", _DEFAULT.memory_budget)
    merges = aot_setting("cse", _DEFAULT.merges_common_subexpressions)
    if budget == _DEFAULT.memory_budget and merges == _DEFAULT.merges_common_subexpressions:
        return _DEFAULT
    return PartitionOptions(memory_budget=budget, merges_common_subexpressions=merges)


@contextlib.contextmanager
def partition_options(**changes: Any) -> Iterator[PartitionOptions]:
    """A block in which partitions are made with these fields of PartitionOptions changed."""
    options = replace(current_options(), **changes)
    token = _OPTIONS.set(options)
    try:
        yield options
    finally:
        _OPTIONS.reset(token)


def budget_of_graph(graph: torch.fx.Graph, default: float) -> float:
    """The memory budget that the program sets in node.meta, else `default`. Raises BadParameter for two different budgets."""
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
