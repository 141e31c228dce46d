"""Settings of the grammar: the focus, and how often each of its parts is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oracle.errors import UsageError

# Weight of each family of statements, by focus. "guards" and "dynamic" differ in their call plans, "export" in its inputs.
# "state" counts among the statements of modules only; how likely a program is one: fuzz.vocabulary.statements.modules.
FOCUSES: Mapping[str, Mapping[str, float]] = {
    "all": {"op": 10, "view": 3, "write": 2, "autograd": 1, "random": 0.3, "state": 8, "control": 1, "python": 2},
    "ops": {"op": 1},
    "views": {"op": 2, "view": 5, "write": 4, "state": 4},
    "autograd": {"op": 6, "view": 2, "write": 1.5, "autograd": 4, "random": 0.5, "state": 6},
    "python": {"op": 4, "view": 1, "write": 0.5, "control": 3, "python": 6, "state": 8},
    "guards": {"op": 4, "view": 1, "write": 0.5, "control": 2, "python": 5, "state": 8},
    "dynamic": {"op": 8, "view": 4, "write": 1, "control": 1, "python": 1, "state": 5},
    "export": {"op": 8, "view": 2, "write": 1, "control": 0.7, "state": 8},
    "dtype": {"op": 8, "view": 1, "write": 1},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """Factors for the weights of rules and operators, from the campaign's coverage; 1 by default."""

    factors: Mapping[str, float] = field(default_factory=dict)  # "op:torch.add" or "rule:slice" -> factor

    def factor(self, name: str) -> float:
        return self.factors.get(name, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How programs are drawn."""

    focus: str = "all"
    min_statements: int = 1
    max_statements: int = 6  # steps; most add one statement, some a few that belong together
    max_numel: int = 4096  # of a tensor
    dtypes: tuple[str, ...] = ()  # if given, only these, unless an operator needs others (indices are integers)
    is_random: bool = True  # whether random ops may be drawn
    calls: int = 4  # largest number of calls
    steering: Steering = Steering()

    def __post_init__(self) -> None:
        if self.focus not in FOCUSES:
            raise UsageError(
                seen=f"focus {self.focus!r}", expected=f"one of {', '.join(FOCUSES)}", do="choose one of them"
            )

    def family_weights(self) -> dict[str, float]:
        weights = dict(FOCUSES[self.focus])
        if not self.is_random:
            weights.pop("random", None)
        return {name: weight * self.steering.factor(f"family:{name}") for name, weight in weights.items()}
