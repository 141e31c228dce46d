"""A number that grows each time a context that captures nothing new is entered.

Counterpart: torch/_dynamo/mutation_guard.py GenerationTracker
Differs: modules are not tagged with it.
"""

from __future__ import annotations


class GenerationTracker:
    """What belongs to one generation may be reused within it: the memory of CUDA graphs, for example."""

    generation = 0

    @classmethod
    def begin(cls) -> None:
        """Begins a new generation."""
        cls.generation += 1
