"""The parts of the minimum cut: flow, kinds of ops, sizes, peak memory."""

from __future__ import annotations

import math
import random

import networkx
import pytest
import torch

from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition, recomputation
from refimpl.aot.partition.flow_network import FlowNetworkBuilder
from refimpl.aot.partition.memory import bytes_of, peak_bytes
from refimpl.aot.partition.recomputation import OpKind, kind_of
from refimpl.tests.partition.joint_graphs import Joint, joint_of
from refimpl.trace.make_fx import make_fx

aten, prims = torch.ops.aten, torch.ops.prims
Edges = dict[tuple[int, int], float]


def random_edges(seed: int, scale: float) -> Edges:
    """Layers of vertices, some edges infinite."""
    generator = random.Random(seed)
    edges: Edges = {}
    for _ in range(60):
        start, end = sorted(generator.sample(range(2, 20), 2))
        edges[start, end] = generator.choice([generator.random() * scale, scale, math.inf])
    for vertex in range(2, 6):
        edges[FlowNetworkBuilder.SOURCE, vertex] = generator.choice([scale, math.inf])
    for vertex in range(16, 20):
        edges[vertex, FlowNetworkBuilder.SINK] = generator.random() * scale
    return edges


def cut_of(edges: Edges) -> tuple[float, set[int] | None]:
    """Capacity of the cut that is found, and the sink's side."""
    network = FlowNetworkBuilder()
    for _ in range(18):
        network.vertex()
    for (start, end), capacity in edges.items():
        network.edge(start, end, capacity)
    side = network.sink_side()
    if side is None:
        return math.inf, None
    return sum(c for (start, end), c in edges.items() if start not in side and end in side), side


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e12])
@pytest.mark.parametrize("seed", range(20))
def test_cuts_are_minimum(seed: int, scale: float) -> None:
    edges = random_edges(seed, scale)
    graph = networkx.DiGraph()
    for (start, end), capacity in edges.items():
        graph.add_edge(start, end, capacity=capacity)
    expected, _ = networkx.minimum_cut(graph, FlowNetworkBuilder.SOURCE, FlowNetworkBuilder.SINK)
    found, _ = cut_of(edges)
    assert found == pytest.approx(expected, rel=1e-6)


def test_of_equal_cuts_the_one_nearest_to_the_sink_is_taken() -> None:
    chain = {(0, 2): math.inf, (2, 3): 5.0, (3, 4): 5.0, (4, 5): 5.0, (5, 1): math.inf}
    assert cut_of(chain) == (5.0, {1, 5})


def test_an_infinite_cut_is_none() -> None:
    assert cut_of({(0, 2): math.inf, (2, 1): math.inf}) == (math.inf, None)


def test_no_edges() -> None:
    assert cut_of({}) == (0, {FlowNetworkBuilder.SINK})


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        (aten.add.Tensor, OpKind.POINTWISE),
        (aten.gelu.default, OpKind.POINTWISE),
        (aten._to_copy.default, OpKind.POINTWISE),
        (prims.convert_element_type.default, OpKind.POINTWISE),
        (aten.max.other, OpKind.POINTWISE),
        (aten.max.dim, OpKind.REDUCTION),
        (aten.sum.dim_IntList, OpKind.REDUCTION),
        (aten.view.default, OpKind.FREE),
        (aten._unsafe_view.default, OpKind.FREE),
        (aten.split.Tensor, OpKind.FREE),
        (aten.sym_size.int, OpKind.FREE),
        (aten.cat.default, OpKind.MOVE),
        (aten.embedding.default, OpKind.MOVE),
        (aten.full.default, OpKind.FACTORY),
        (aten.mm.default, OpKind.HEAVY),
        (aten.convolution.default, OpKind.HEAVY),
        (aten.native_layer_norm.default, OpKind.OTHER),
        (aten._softmax.default, OpKind.OTHER),
        (aten.rand.default, OpKind.ONCE),
        (aten.native_dropout.default, OpKind.ONCE),
        (aten.nonzero.default, OpKind.ONCE),
        (aten._local_scalar_dense.default, OpKind.ONCE),
        (aten.add_.Tensor, OpKind.ONCE),
        (aten._assert_async.msg, OpKind.ONCE),
        (torch.ops.higher_order.cond, OpKind.ONCE),
        (torch.sym_max, OpKind.FREE),
        (math.floor, OpKind.FREE),
        (print, OpKind.ONCE),
    ],
)
def test_kinds_of_ops(op: object, kind: OpKind) -> None:
    assert kind_of(op) is kind


def test_an_op_of_a_users_library_runs_once() -> None:
    with torch.library._scoped_library("partition_costs", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        assert kind_of(torch.ops.partition_costs.twice.default) is OpKind.ONCE


def test_tables_name_each_op_once() -> None:
    tables = [names for _, names in recomputation._TABLES]
    assert sum(map(len, tables)) == len(frozenset().union(*tables))


def test_tables_name_ops_that_exist() -> None:
    """Ops come and go with versions of torch: nearly all must be there."""
    names = [name for _, table in recomputation._TABLES for name in table]
    missing = [name for name in names if not hasattr(aten, name) and not hasattr(prims, name)]
    assert len(missing) <= 3, sorted(missing)


def test_bytes() -> None:
    assert bytes_of(torch.empty(3, 5, dtype=torch.float16)) == 30
    assert bytes_of((torch.empty(2), [torch.empty(1, dtype=torch.int64)])) == 16
    assert bytes_of(None) == 0
    module = make_fx(lambda x: x.sin(), tracing_mode="symbolic")(torch.empty(6, 7))
    assert bytes_of(list(module.graph.nodes)[1].meta["val"]) == 6 * 7 * 4


def chain_of_layers() -> Joint:
    def program(x, *weights):
        for weight in weights:
            x = torch.nn.functional.gelu(x @ weight)
        return x

    return joint_of(program, torch.randn(64, 8), *[torch.randn(8, 8) for _ in range(5)])


def test_peak_memory() -> None:
    joint = joint_of(lambda x: x.exp().sin().sum(), torch.randn(16))
    forward, backward = default_partition(joint.module, None, num_fwd_outputs=1)
    # exp, sin and their sum; then exp, its cosine, and the product with the tangent
    assert peak_bytes(forward, backward, 1) == (64 + 64 + 4, 3 * 64)


def test_recomputing_lowers_the_peak() -> None:
    joint = chain_of_layers()
    kept = max(peak_bytes(*default_partition(joint.module, None, num_fwd_outputs=1), 1))
    cut = max(peak_bytes(*min_cut_rematerialization_partition(joint.module, None, num_fwd_outputs=1), 1))
    assert cut < 0.85 * kept
