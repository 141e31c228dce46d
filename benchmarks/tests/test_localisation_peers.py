"""What the comparison with torch's own tools reads from their files."""

from __future__ import annotations

import pytest

from benchmarks.measurements.localisation_peers import nodes

_GRAPH = """
class Repro(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, arg0_1, arg1_1):
        add = torch.ops.aten.add.Tensor(arg0_1, 1);  arg0_1 = None
        mul: "f32[3]" = torch.ops.aten.mul.Tensor(add, arg1_1);  add = arg1_1 = None
        return (mul,)

mod = Repro()
"""


@pytest.mark.parametrize(("text", "count"), [(_GRAPH, 2), ("mod = Repro()\n", 0), ("", 0)])
def test_the_calls_of_a_graph_in_a_file_are_counted(text: str, count: int) -> None:
    assert nodes(text) == count
