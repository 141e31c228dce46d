"""Partitioners: they split a joint graph into a forward and a backward graph, and choose what the forward saves."""

from __future__ import annotations

from refimpl.aot.partition.default import default_partition
from refimpl.aot.partition.memory import SavedBytes, saved_bytes
from refimpl.aot.partition.min_cut import min_cut_rematerialization_partition
from refimpl.aot.partition.recomputation import PartitionOptions, partition_options
from refimpl.aot.partition.verify import verify_partition

__all__ = [
    "PartitionOptions",
    "SavedBytes",
    "default_partition",
    "min_cut_rematerialization_partition",
    "partition_options",
    "saved_bytes",
    "verify_partition",
]
