"""What forward and backward kernels save, and compute again.

Counterpart: torch/_inductor/compile_fx.py partition_fn
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl.aot.partition import min_cut_rematerialization_partition
from refimpl.aot.partition.options import current_options, partition_options
from refimpl.aot.partition.rules import Prices

# Memory that is saved is written and read once. What a product reads is in memory in either graph, so that to make it again costs
# as much as to save it; and a kernel that would not write a value anyway pays for the time that it takes.
KERNEL_PRICES = Prices(materialized=1.05, extra_write=0.25)


def partition_for_kernels(
    joint_module: torch.fx.GraphModule, joint_inputs: Any, **keywords: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """`min_cut_rematerialization_partition` at the prices of kernels, unless `partition_options` says others."""
    asked = current_options().prices
    with partition_options(prices=KERNEL_PRICES if asked == Prices() else asked):
        return min_cut_rematerialization_partition(joint_module, joint_inputs, **keywords)
