"""The partitioner for kernels: what the forward saves, and what the backward recomputes.

Counterpart: torch/_inductor/compile_fx.py partition_fn
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl.aot.partition import min_cut_rematerialization_partition
from refimpl.aot.partition.recomputation import Prices, current_options, partition_options
from refimpl.codegen.options import CodegenOptions
from refimpl.codegen.recomputed_attention import tagged_for_recomputation, without_tags

# A saved value is written once and read once. materialized: an input of a matrix product is in memory in both graphs, so
# recomputing it costs as much as saving it. extra_write: a kernel takes longer if it also stores a value that it would not write
# otherwise. fused: a GPU does about forty operations in the time that it takes to write and read a value.
KERNEL_PRICES = Prices(materialized=1.05, extra_write=0.25, fused=0.02)


def partition_for_kernels(
    joint_module: torch.fx.GraphModule,
    joint_inputs: Any,
    *,
    num_fwd_outputs: int,
    options: CodegenOptions | None = None,
    **keywords: Any,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """`min_cut_rematerialization_partition` with KERNEL_PRICES, unless `partition_options` sets other prices. Attention scores
    are recomputed if kernels with these options do not need them in memory."""
    asked = current_options().prices
    with (
        partition_options(prices=KERNEL_PRICES if asked == Prices() else asked),
        tagged_for_recomputation(joint_module, num_fwd_outputs, options or CodegenOptions()) as names,
    ):
        forward, backward = min_cut_rematerialization_partition(
            joint_module, joint_inputs, num_fwd_outputs=num_fwd_outputs, **keywords
        )
    return without_tags(forward, names), without_tags(backward, names)
