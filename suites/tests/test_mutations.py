"""The mutations suite: programs are the same every time, distinct, accepted by eager; a reduced one is small."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import islice

import pytest
import torch

from oracle.observe import observe
from oracle.observe.outcome import Raised, Returned
from oracle.program.build import instantiate
from suites.base import Selection
from suites.mutations import TAGS
from suites.mutations.generate import generate, recipes
from suites.mutations.recipe import Argument, Recipe, Root
from suites.mutations.reduce import reduced
from suites.mutations.scene import Scene
from suites.mutations.statements import FAMILIES, out_argument
from suites.mutations.suite import PROGRAMS_PER_THEME, MutationsSuite

SAMPLE = 25


def sample(theme: str) -> list[Recipe]:
    return [recipe for _, recipe in recipes(theme, SAMPLE)]


def test_there_are_at_least_5000_programs() -> None:
    assert PROGRAMS_PER_THEME * len(FAMILIES) >= 5000
    assert set(FAMILIES) == set(TAGS)


@pytest.mark.parametrize("theme", FAMILIES)
def test_a_number_gives_the_same_program_every_time(theme: str) -> None:
    first = sample(theme)
    generate.cache_clear()
    torch.manual_seed(12345)  # nothing may come from the generator of the process
    assert sample(theme) == first


def test_programs_are_distinct() -> None:
    texts = Counter(recipe.source() for theme in FAMILIES for recipe in sample(theme))
    assert len(texts) == SAMPLE * len(FAMILIES)


def test_eager_accepts_most_programs_and_every_theme_mutates() -> None:
    endings: Counter[str] = Counter()
    for theme in FAMILIES:
        for recipe in sample(theme):
            outcome = observe(instantiate(recipe.to_program(name=theme)))
            endings[type(outcome).__name__] += 1
            assert isinstance(outcome, (Returned, Raised))
            if isinstance(outcome, Raised):
                assert outcome.exception.phase in ("call", "backward"), "the program itself, not its inputs"
        assert any("_(" in recipe.body() or "=" in recipe.body() for recipe in sample(theme))
    assert endings["Raised"] < 0.15 * endings.total()
    assert endings["Raised"] > 0, "an error is behaviour too"


def test_gradients_non_leaf_arguments_and_shared_storages_occur() -> None:
    outcomes = [
        outcome
        for theme in ("aliased-inputs", "views")
        for recipe in sample(theme)
        if isinstance(outcome := observe(instantiate(recipe.to_program(name=theme))), Returned)
    ]
    calls = [call for outcome in outcomes for call in outcome.calls]
    assert sum(any(leaf.value is not None for leaf in call.gradients) for call in calls) > 5
    assert sum(any("args[" in path for group in call.aliases.storages for path in group) for call in calls) > 10
    assert any(leaf.facts is not None and not leaf.facts.is_leaf for call in calls for leaf in call.inputs_after)


def test_the_suite_names_programs_by_theme_and_number_and_thins_evenly() -> None:
    suite = MutationsSuite()
    selection = Selection(max_samples=4)
    assert suite.groups(selection) == list(FAMILIES)
    names = [found.program.name for found in suite.programs(selection, "out")]
    assert len(names) == 4
    assert names == sorted(names)
    everything = [f"out/{number:05d}" for number, _ in recipes("out", PROGRAMS_PER_THEME)]
    assert names == everything[::100]


def test_programs_of_one_direction() -> None:
    found = list(islice(MutationsSuite().programs(Selection(directions=("backward",)), "saved"), 5))
    assert [program.direction for program in found] == ["backward"] * 5


def test_a_reduction_reads_nothing_that_it_overwrites() -> None:
    recipe = Recipe(
        roots=(Root(name="root0", value="torch.rand(2, 2)"), Root(name="root1", value="torch.rand(2, 2)")),
        arguments=tuple(Argument(name=name, text=text) for name, text in zip("abc", ("root0", "root0[:]", "root1"), strict=True)),
        statements=(),
        outputs=(),
    )  # fmt: skip
    scene = Scene(random.Random(0), recipe, seed=0)
    drawn = {out_argument(scene) or "" for _ in range(2000)}
    sums = {re.sub(r"^v\d+ = ", "", text) for text in drawn if "sum(" in text}
    tail = ", 0, keepdim=True, out="
    assert f"torch.sum(c{tail}a[:1])" in sums
    assert f"torch.sum(a.clone(){tail}b[:1])" in sums
    assert not {f"torch.sum({one}{tail}{name}[:1])" for one, name in ("ab", "ba", "aa", "bb", "cc")} & sums


# ------------------------------------------------------------------------------------------------------------ reducing


def big() -> Recipe:
    return Recipe(
        roots=(Root(name="root0", value="torch.rand((4, 5))", history="result"), Root(name="root1", value="torch.rand(3)")),
        arguments=(Argument(name="a", text="root0[1:]"), Argument(name="b", text="root1"), Argument(name="c", text="root1")),
        statements=("v0 = a[:1]", "v0.mul_(2)", "with torch.no_grad():\n    b.add_(1)", "v1 = a * 2", "b.mul_(3).neg_()"),
        outputs=("v1", "v0", "b"),
        is_differentiated=True,
        calls=2,
    )  # fmt: skip


def test_a_reduced_program_has_only_what_the_difference_needs() -> None:
    found = reduced(big(), lambda recipe: any("b.add_(1)" in statement for statement in recipe.statements))
    assert found.statements == ("b.add_(1)",)
    assert (len(found.outputs), len(found.arguments), found.calls, found.is_differentiated) == (0, 1, 1, False)
    assert found.arguments[0].name == "b"
    assert [root.name for root in found.roots] == ["root1"]


def test_reducing_makes_values_and_histories_plain() -> None:
    found = reduced(big(), lambda recipe: recipe.roots[0].name == "root0")
    assert found.roots[0] == Root(name="root0", value="torch.rand((2, 2))")


def test_reducing_keeps_what_eager_needs() -> None:
    def runs_and_multiplies(recipe: Recipe) -> bool:
        outcome = observe(instantiate(recipe.to_program(name="t")))
        return isinstance(outcome, Returned) and any("mul_(2)" in statement for statement in recipe.statements)

    found = reduced(big(), runs_and_multiplies)
    assert found.statements == ("v0 = a[:1]", "v0.mul_(2)")
    assert [argument.name for argument in found.arguments] == ["a"]
    assert [root.name for root in found.roots] == ["root0"]
    assert found.outputs == ()


def test_reducing_ends_after_so_many_trials() -> None:
    asked: list[Recipe] = []
    assert reduced(big(), lambda recipe: bool(asked.append(recipe)), max_trials=7) == big()
    assert len(asked) == 7
