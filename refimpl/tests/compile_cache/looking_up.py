"""Compiles with the cache, and says what the cache did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from refimpl.aot.options import aot_settings
from refimpl.aot.partition import default_partition
from refimpl.aot_entry_points import aot_module_simplified
from refimpl.backends import eager
from refimpl.capture.public.counters import counters

WORDS = ("hit", "miss", "bypass", "saved", "guard_miss")


def counted(run: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """The result of `run`, and what the cache counted meanwhile."""
    before = Counter(counters["aot_autograd"])
    result = run()
    found = {
        word: counters["aot_autograd"][f"autograd_cache_{word}"] - before[f"autograd_cache_{word}"] for word in WORDS
    }
    return result, {word: count for word, count in found.items() if count}


def reasons(kind: str, run: Callable[[], Any]) -> list[str]:
    """The reasons that were counted while `run` ran: of kind "bypass" or "miss"."""
    before = Counter(counters[f"autograd_cache_{kind}"])
    run()
    return sorted((Counter(counters[f"autograd_cache_{kind}"]) - before).elements())


def compiled(
    function: Callable[..., Any] | torch.nn.Module, args: Sequence[Any], folder: Path, **options: Any
) -> tuple[Any, dict[str, int]]:
    """A function or module as a graph, compiled with the cache for the arguments, and what the cache counted."""
    graph = function if isinstance(function, torch.fx.GraphModule) else torch.fx.symbolic_trace(function)
    options = {"fw_compiler": eager, "partition_fn": default_partition, **options}
    with aot_settings(enable_autograd_cache=True, autograd_cache_folder=str(folder)):
        return counted(lambda: aot_module_simplified(graph, args, **options))
