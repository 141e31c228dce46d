"""Run tasks on the nodes of a cluster as `oracle.isolate.Pool` runs them on one machine: each has the same end, exactly once.

A *slot* (`slot.py`) is a process on a node with a pool of isolated workers of its own. The driver (`pool.py`) gives it batches of
tasks and asks it for results. If a node is lost, tasks without a result go to other slots. Ray places slots and carries messages
(`ray_client.py`); what it carries is JSON (`messages.py`).

This package imports neither torch nor, before a `RayClient` is made, ray.
"""

from oracle.cluster.execution import Execution, make_execution, open_cluster
from oracle.cluster.pool import ClusterPool, NodesLostError
from oracle.cluster.ray_client import RayClient
from oracle.cluster.resources import Resources
from oracle.cluster.slot import SlotService, SlotSettings

__all__ = [
    "ClusterPool", "Execution", "NodesLostError", "RayClient", "Resources", "SlotService", "SlotSettings", "make_execution",
    "open_cluster",
]  # fmt: skip
