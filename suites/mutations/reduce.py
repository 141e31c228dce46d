"""Leaves out of a recipe whatever a difference does not need: statements, outputs, arguments, history of gradients.

Greedy, from large steps to small ones, until no step keeps the difference. A step that makes a program which eager refuses does
not keep it, so nothing here has to know which names a statement uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from suites.mutations.recipe import Recipe

MAX_TRIALS = 400
_Item = TypeVar("_Item")


def reduced(recipe: Recipe, shows: Callable[[Recipe], bool], *, max_trials: int = MAX_TRIALS) -> Recipe:
    """The smallest recipe found that `shows` accepts. `shows(recipe)` is taken to hold."""
    trials = 0
    seen = {recipe}
    progress = True
    while progress and trials < max_trials:
        progress = False
        for smaller in _steps(recipe):
            if smaller in seen:
                continue
            seen.add(smaller)
            trials += 1
            if shows(smaller):
                recipe = smaller
                progress = True
                break
            if trials >= max_trials:
                break
    return recipe


def _steps(recipe: Recipe) -> Iterator[Recipe]:
    if recipe.calls > 1:
        yield replace(recipe, calls=1)
    if recipe.is_differentiated:
        yield replace(recipe, is_differentiated=False)
    if recipe.grad_mode != "grad":
        yield replace(recipe, grad_mode="grad")
    half = len(recipe.statements) // 2
    if half > 1:
        yield replace(recipe, statements=recipe.statements[half:])
        yield replace(recipe, statements=recipe.statements[:half])
    for position in reversed(range(len(recipe.statements))):
        yield replace(recipe, statements=_without(recipe.statements, position))
    if len(recipe.outputs) > 1:
        for position in reversed(range(len(recipe.outputs))):
            yield replace(recipe, outputs=_without(recipe.outputs, position))
    if recipe.outputs:
        yield replace(recipe, outputs=())
        yield from (replace(recipe, outputs=(a.name,)) for a in recipe.arguments if len(recipe.outputs) > 1)
    for position, argument in enumerate(recipe.arguments):
        if len(recipe.arguments) > 1 and not _mentions(recipe.body().split("\n", 1)[1], argument.name):
            yield replace(recipe, arguments=_without(recipe.arguments, position))
    for position, root in enumerate(recipe.roots):
        if len(recipe.roots) > 1 and not any(_mentions(argument.text, root.name) for argument in recipe.arguments):
            yield replace(recipe, roots=_without(recipe.roots, position))
        for history in {"none": (), "leaf": ("none",), "result": ("none", "leaf")}[root.history]:
            yield replace(recipe, roots=_replaced(recipe.roots, position, replace(root, history=history)))
        for value in _plainer(root.value):
            yield replace(recipe, roots=_replaced(recipe.roots, position, replace(root, value=value)))
    for position, argument in enumerate(recipe.arguments):
        for root in recipe.roots:
            if argument.text != root.name and _mentions(argument.text, root.name):
                plain = replace(argument, text=root.name)
                yield replace(recipe, arguments=_replaced(recipe.arguments, position, plain))
    for position, statement in enumerate(recipe.statements):
        for simpler in _simpler(statement):
            yield replace(recipe, statements=_replaced(recipe.statements, position, simpler))


def _simpler(statement: str) -> Iterator[str]:
    """The body of a `with`; a chain of calls without its last, or without its first."""
    if statement.startswith("with "):
        yield statement.split("\n", 1)[1].strip()
        return
    calls = re.findall(r"\.\w+_\([^()]*\)", statement)
    if len(calls) > 1:
        for call in calls:
            yield statement.replace(call, "", 1)


def _plainer(value: str) -> Iterator[str]:
    """A smaller shape."""
    found = re.search(r"\((\d+(?:, \d+)*),?\)", value)
    if found is None:
        return
    sizes = [int(size) for size in found[1].split(", ")]
    for position, size in enumerate(sizes):
        if size > 2:
            smaller = [*sizes[:position], 2, *sizes[position + 1 :]]
            yield value.replace(found[0], str(tuple(smaller)))


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


def _without(items: tuple[_Item, ...], position: int) -> tuple[_Item, ...]:
    return (*items[:position], *items[position + 1 :])


def _replaced(items: tuple[_Item, ...], position: int, item: _Item) -> tuple[_Item, ...]:
    return (*items[:position], item, *items[position + 1 :])
