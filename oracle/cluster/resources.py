"""The resources that one slot takes of a node: processors, GPUs, memory, and resources that the cluster names itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import Self

from oracle.errors import UsageError

_EXAMPLE = "names and positive numbers by comma, such as CPU=4,GPU=0.5"


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts by ray's names: "CPU", "GPU", "memory" (bytes), or the cluster's own."""

    amounts: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> Self:
        """The resources that "CPU=4,GPU=0.5" names. Raises UsageError for other text."""
        amounts: dict[str, float] = {}
        for word in text.split(","):
            name, _, number = (part.strip() for part in word.partition("="))
            try:
                amount = float(number)
            except ValueError:
                amount = 0.0
            if not name or name in amounts or not 0 < amount < float("inf"):
                raise UsageError(seen=f"--ray-resources {text}", expected=_EXAMPLE, do="correct --ray-resources")
            if amount > 1 and amount != int(amount) and name != "memory":
                raise UsageError(
                    seen=f"--ray-resources {text}",
                    expected=f"whole numbers above 1, which is all that ray gives: {name}={int(amount)}",
                    do="correct --ray-resources",
                )
            amounts[name] = amount
        return cls(amounts)

    @property
    def processors(self) -> int:
        """Whole processors of one slot, at least 1."""
        return max(1, int(self.amounts.get("CPU", 1)))

    def slots_on(self, node: Mapping[str, float]) -> int:
        """How many slots a node with these resources holds."""
        return min(int(node.get(name, 0.0) / amount + 1e-9) for name, amount in self.amounts.items())

    def __str__(self) -> str:
        return ",".join(f"{name}={amount:g}" for name, amount in self.amounts.items())
