"""Scene: the values that live at one point of a program under construction. The generator runs what it writes.

What keeps a program meaningful is decided here: nothing is written through a tensor several of whose elements share a place
(its result would depend on the order in which a kernel walks), and nothing is read while it is partly overwritten.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from fuzz.draw.geometry import overlaps_itself, partly_overlap
from suites.mutations.recipe import Recipe

MAX_NUMEL = 200
_CONSTANTS = ("2", "0.5", "-1", "3", "1.5")


class Scene:
    """Live tensors by name, in the order they came up."""

    def __init__(self, rng: random.Random, recipe: Recipe, *, seed: int) -> None:
        """Runs the recipe so far. Raises whatever it raises."""
        self.rng = rng
        self._namespace: dict[str, Any] = {"torch": torch, "functional": functional}
        torch.manual_seed(seed)
        for root in recipe.roots:
            self._namespace[root.name] = eval(root.input_text, self._namespace)
        for line in recipe.derive_lines():
            exec(line, self._namespace)
        self.arguments = tuple(argument.name for argument in recipe.arguments)
        self.leaves = tuple(self._namespace[root.name] for root in recipe.roots if root.history == "leaf")
        self.values: dict[str, torch.Tensor] = {name: self._namespace[name] for name in self.arguments}
        self._mode = recipe.grad_mode
        for statement in recipe.statements:
            self.run(statement)

    def run(self, statement: str) -> None:
        """Execute one statement; tensors it binds join the scene."""
        with grad_mode(self._mode):
            exec(statement, self._namespace)
        for name, value in self._namespace.items():
            if isinstance(value, torch.Tensor) and (name.startswith("v") or name in self.values):
                self.values[name] = value
        self.values = {name: value for name, value in self.values.items() if _is_usable(value)}

    def fresh(self) -> str:
        return f"v{sum(name.startswith('v') for name in self.values)}"

    # ------------------------------------------------------------------------------------------------------ choices

    def choice(self, options: Sequence[Any]) -> Any:
        return self.rng.choice(options)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def constant(self, tensor: torch.Tensor) -> str:
        """A number that may be written into a tensor of this dtype."""
        if tensor.dtype is torch.bool:
            return self.choice(("True", "False"))
        return self.choice(_CONSTANTS if is_inexact(tensor) else ("2", "-1", "3"))

    def pick(self, condition: Callable[[torch.Tensor], bool] = lambda tensor: True) -> str | None:
        """A live tensor that fulfils the condition; newer ones are likelier. None where there is none."""
        names = [name for name, tensor in self.values.items() if tensor.numel() <= MAX_NUMEL and condition(tensor)]
        if not names:
            return None
        return self.choice(names[-3:] if self.chance(0.5) else names)

    def target(self, condition: Callable[[torch.Tensor], bool] = lambda tensor: True) -> str | None:
        """A tensor that can be written to: no element shares its place with another."""
        return self.pick(lambda tensor: tensor.numel() > 0 and not overlaps_itself(tensor) and condition(tensor))

    def operand(self, target: str, *, same_shape: bool = False, same_dtype: bool = False) -> str:
        """Something to combine with the target: another tensor that broadcasts to it, a copy of it, or a number."""
        tensor = self.values[target]

        def fits(other: torch.Tensor) -> bool:
            if other is tensor or (same_dtype and other.dtype is not tensor.dtype):
                return False
            if same_shape:
                return other.shape == tensor.shape
            return other.dim() <= tensor.dim() and all(
                mine in (1, its) for mine, its in zip(reversed(other.shape), reversed(tensor.shape), strict=False)
            )

        name = self.pick(fits)
        if name is None:
            return f"{target}.clone()" if same_shape else self.constant(tensor)
        return f"{name}.clone()" if partly_overlap(self.values[name], tensor) else name


def _is_usable(tensor: torch.Tensor) -> bool:
    """Autograd refuses whatever is asked of a view made under no_grad whose base was written to since."""
    try:
        tensor.grad_fn  # noqa: B018 - asking is what may raise
    except RuntimeError:
        return False
    return True


def grad_mode(name: str) -> Any:
    return {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}[name]()


def is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
