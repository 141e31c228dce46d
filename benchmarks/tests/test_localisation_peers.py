"""What the comparison with torch's own tools reads from their files."""

from __future__ import annotations

import pytest

from benchmarks.measurements.localisation_peers import nodes, without_launcher

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


_LOGGED = """E1127 10:00:00.1 7 torch/_dynamo/debug_utils.py:716] [0/0] An unrelated issue. Skipping this graph
E1127 10:00:00.1 7 torch/_dynamo/debug_utils.py:716] [0/0] Traceback (most recent call last):
E1127 10:00:00.1 7 torch/_dynamo/debug_utils.py:716] [0/0]   File "debug_utils.py", line 705, in backend_accuracy_fails
E1127 10:00:00.1 7 torch/_dynamo/debug_utils.py:716] [0/0]     raise_error(RuntimeError)
E1127 10:00:00.1 7 torch/_dynamo/debug_utils.py:716] [0/0] torch._dynamo.exc.Unsupported: an error of another name
E1127 10:00:00.1 7 torch/_dynamo/debug_utils.py:716] [0/0] torch._inductor.exc.InductorError: no kernel
"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (_LOGGED, "skips the graph (InductorError: no kernel)"),
        (_LOGGED + _LOGGED, "skips the graph (InductorError: no kernel)"),
        ("W1127 compiled\nValueError: of the script\n", "sees no difference"),
        ("", "sees no difference"),
    ],
)
def test_a_graph_that_the_minifier_skips_is_not_one_without_a_difference(said: str, told: str) -> None:
    assert without_launcher(said) == told
