"""What forward and backward kernels save, and compute again.

Counterpart: torch/_inductor/compile_fx.py partition_fn
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl.aot.partition import min_cut_rematerialization_partition
from refimpl.aot.partition.recomputation import Prices, current_options, partition_options
from refimpl.codegen.options import CodegenOptions
from refimpl.codegen.recomputed_attention import tagged_for_recomputation, without_tags

# Memory that is saved is written and read once. What a product reads is in memory in either graph, so that to make it again costs
# as much as to save it; and a kernel that would not write a value anyway pays for the time that it takes. In the time in which it
# writes and reads a value a GPU does some forty operations.
KERNEL_PRICES = Prices(materialized=1.05, extra_write=0.25, fused=0.02)


def partition_for_kernels(
    joint_module: torch.fx.GraphModule,
    joint_inputs: Any,
    *,
    num_fwd_outputs: int,
    options: CodegenOptions | None = None,
    **keywords: Any,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """`min_cut_rematerialization_partition` at the prices of kernels, unless `partition_options` says others. Scores of attention
    are made again, where kernels with these options have no need of them in memory."""
    asked = current_options().prices
    with (
        partition_options(prices=KERNEL_PRICES if asked == Prices() else asked),
        tagged_for_recomputation(joint_module, num_fwd_outputs, options or CodegenOptions()) as names,
    ):
        forward, backward = min_cut_rematerialization_partition(
            joint_module, joint_inputs, num_fwd_outputs=num_fwd_outputs, **keywords
        )
    return without_tags(forward, names), without_tags(backward, names)
