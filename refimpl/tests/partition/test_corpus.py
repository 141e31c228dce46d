"""The corpus split by each partitioner: whatever crosses from forward to backward, the answers are eager mode's (AO-45)."""

from __future__ import annotations

from typing import Any

import pytest

from refimpl.aot.partition import min_cut_rematerialization_partition, partition_options
from refimpl.aot_entry_points import aot_function
from refimpl.tests.corpus import Program, programs_of
from refimpl.tests.corpus.compare import assert_agrees


def smallest(*args: Any, **kwargs: Any) -> Any:
    """The minimum cut that saves as little as possible."""
    with partition_options(memory_budget=0.0):
        return min_cut_rematerialization_partition(*args, **kwargs)


# Beside what aot/test_corpus.py runs: both partitioners, and the default one with symbolic sizes.
WAYS = [(smallest, False), (smallest, True), (min_cut_rematerialization_partition, True)]


@pytest.mark.fractional
@pytest.mark.parametrize(("partitioner", "dynamic"), WAYS, ids=["smallest", "smallest-dynamic", "min_cut-dynamic"])
@pytest.mark.parametrize("program", programs_of("partition"), ids=str)
def test_compiled_programs_do_what_eager_does(program: Program, partitioner: Any, dynamic: bool) -> None:
    function = program.build()
    compiled = aot_function(function, lambda graph, _: graph, partition_fn=partitioner, dynamic=dynamic)
    assert_agrees(function, compiled, lambda: program.make(True))
