"""What running a forward op once more in the backward costs, by kind of op.

Counterpart: torch/_functorch/partitioners.py get_default_op_list, OpTypes, and the heuristics of solve_min_cut
Differs: a kind has a price in bytes, and an op is recomputed where that is cheaper than the memory it saves. Upstream forbids
recomputation by lists, distances and chain lengths; here a long chain is dear because each of its ops is paid for, and what is
used far apart is dear because both uses pay.
"""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import HigherOrderOperator, OpOverload
from refimpl.aot.op_facts import facts_of
from refimpl.aot.random_ops import RANDOM_LIBRARY


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
