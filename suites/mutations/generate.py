"""The generator: one recipe of a theme and a number, always the same. It runs what it writes: eager accepts most of it."""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Iterator
from dataclasses import replace

import torch

from suites.mutations.layouts import draw_layout
from suites.mutations.recipe import Recipe
from suites.mutations.scene import Scene
from suites.mutations.statements import FAMILIES

MIN_STATEMENTS, MAX_STATEMENTS = 2, 9
TRIES = 12  # rules asked for one statement before the program ends earlier
# How often a program is kept that eager refuses, in forward or in backward: an error is behaviour too, but says little.
KEPT_ERRORS = {"saved": 0.6}
KEPT_ERRORS_ELSEWHERE = 0.1
_REFUSALS = (
    RuntimeError,
    IndexError,
    ValueError,
    TypeError,
    NotImplementedError,
)  # what torch raises for a bad statement


@functools.lru_cache(maxsize=65536)
def generate(theme: str, number: int) -> Recipe | None:
    """The recipe of this number, or None: not every number gives a program."""
    seed = zlib.crc32(f"{theme}/{number}".encode())
    rng = random.Random(seed)
    roots, arguments = draw_layout(rng, theme)
    recipe = Recipe(
        roots=roots,
        arguments=arguments,
        statements=(),
        outputs=(),
        grad_mode=rng.choices(("grad", "no_grad", "inference"), (18, 1, 1))[0],
        calls=2 if rng.random() < 0.15 else 1,
    )
    try:
        scene = Scene(rng, recipe, seed=seed)
    except _REFUSALS:
        return None  # a layout that this root does not allow, such as `.mT` of a vector
    for _ in range(rng.randint(MIN_STATEMENTS, MAX_STATEMENTS)):
        added = _with_statement(scene, recipe, theme, seed=seed)
        if added is None:
            break
        recipe, scene = added
        if scene is None:
            break
    if len(recipe.statements) < MIN_STATEMENTS and scene is not None:
        return None
    return _finished(recipe, scene, theme, rng, seed=seed)


def _with_statement(scene: Scene, recipe: Recipe, theme: str, *, seed: int) -> tuple[Recipe, Scene | None] | None:
    """One more statement that eager accepts; or, now and then, one that it refuses, and no scene after it."""
    for _ in range(TRIES):
        statement = scene.choice(FAMILIES[theme])(scene)
        if not statement:
            continue
        longer = replace(recipe, statements=(*recipe.statements, statement))
        try:
            scene.run(statement)
            return longer, scene
        except _REFUSALS:
            if scene.chance(0.01):
                return longer, None
            # What ran before the refusal may have left a trace: the scene is built again without the statement.
            scene = Scene(scene.rng, recipe, seed=seed)
    return None


def _finished(recipe: Recipe, scene: Scene | None, theme: str, rng: random.Random, *, seed: int) -> Recipe | None:
    """With outputs, and whether backward is asked for. None where eager refuses it and that is not wanted."""
    if scene is None:
        return replace(recipe, outputs=recipe.arguments and (recipe.arguments[0].name,))
    names = list(scene.values)
    count = rng.randint(2, 4) if theme == "outputs" else rng.randint(1, 3)
    wanted = [rng.choice(names[-4:] if rng.random() < 0.6 else names) for _ in range(count)]
    # An output need not be new, and may stand twice; but a program that returns nothing it computed shows little.
    if not any(name.startswith("v") for name in wanted) and len(names) > len(recipe.arguments):
        wanted[0] = names[-1]
    recipe = replace(recipe, outputs=tuple(wanted))
    differentiable = [scene.values[name] for name in dict.fromkeys(wanted) if scene.values[name].requires_grad]
    if recipe.grad_mode != "grad" or not differentiable:
        return recipe
    recipe = replace(recipe, is_differentiated=True)
    try:
        torch.autograd.backward(differentiable, [torch.ones_like(output) for output in differentiable])
    except RuntimeError:
        if rng.random() >= KEPT_ERRORS.get(theme, KEPT_ERRORS_ELSEWHERE):
            return None
    return recipe


def recipes(theme: str, count: int) -> Iterator[tuple[int, Recipe]]:
    """The first `count` distinct programs of a theme, with their numbers."""
    seen: set[tuple[object, ...]] = set()
    number = 0
    while len(seen) < count:
        recipe = generate(theme, number)
        number += 1
        if recipe is None:
            continue
        text = (recipe.source(), recipe.grad_mode)
        if text not in seen:
            seen.add(text)
            yield number - 1, recipe
