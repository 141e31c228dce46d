"""Rules about autograd and random numbers: every one can be drawn; custom Functions do what their table says."""

from __future__ import annotations

import re

import pytest
import torch

from fuzz.draw.settings import Settings
from fuzz.program.render import render
from fuzz.tests.grammar_samples import accepted_by_eager, scene_of
from fuzz.vocabulary.statements import autograd, random
from fuzz.vocabulary.statements.custom_functions import BODIES, definition_text
from fuzz.vocabulary.statements.rule import Rule

RARE = {"detached_in_place": 400, "saved_then_written": 150, "seeded": 60}


@pytest.mark.parametrize("rule", [*autograd.RULES, *random.RULES], ids=lambda rule: f"{rule.family}-{rule.name}")
def test_every_rule_can_be_drawn(rule: Rule) -> None:
    assert accepted_by_eager(rule, RARE.get(rule.name, 60), focus="autograd")


@pytest.mark.parametrize("kind", BODIES)
def test_custom_functions_run_forward_and_backward(kind: str) -> None:
    body = BODIES[kind]
    namespace = {"torch": torch}
    exec(definition_text("Custom", body), namespace)
    leaf = torch.tensor([[0.5, -1.0], [2.0, 0.25]], requires_grad=True)
    x = leaf * 1
    others = [torch.ones(2, 2, requires_grad=True)] if "y" in body.inputs else []
    result = namespace["Custom"].apply(x, *others, *body.numbers)
    outputs = result if isinstance(result, tuple) else (result,)
    assert len(outputs) == body.outputs
    torch.autograd.backward([output.sum() for output in outputs if output.requires_grad])
    assert leaf.grad is not None


def test_a_function_that_marks_its_input_writes_to_it() -> None:
    namespace = {"torch": torch}
    exec(definition_text("Dirty", BODIES["dirty"]), namespace)
    x = torch.ones(2, requires_grad=True) * 1
    assert namespace["Dirty"].apply(x) is x
    assert x.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("region", r"^    with torch\.[\w.]+\(.*\):\n        \w"),
        ("custom_function", r"\.apply\(\w+"),
        ("hooked", r"\.register_hook\((lambda g: |helper)"),
        ("checkpointed", r"torch\.utils\.checkpoint\.checkpoint\(helper\d+, \w+, use_reentrant=(True|False)"),
        ("differentiated", r"torch\.autograd\.grad\("),
        ("transformed", r"torch\.(func\.\w+|vmap)\("),
        ("decorated", r"^@torch\.\w+\("),
        ("retained", r"\.retain_grad\(\)"),
        ("requires_grad", r"\.requires_grad_\(\)"),
    ],
)
def test_rules_write_what_they_are_named_for(name: str, pattern: str) -> None:
    rule = next(rule for rule in autograd.RULES if rule.name == name)
    scenes = accepted_by_eager(rule, 60, focus="autograd")
    assert scenes
    assert all(re.search(pattern, render(scene.to_program(None)), re.MULTILINE) for scene in scenes)


def texts_of(rule: Rule, tries: int) -> list[str]:
    return [render(scene.to_program(None)) for scene in accepted_by_eager(rule, tries, focus="autograd")]


def test_checkpoints_of_random_functions_are_drawn() -> None:
    rule = next(rule for rule in autograd.RULES if rule.name == "checkpointed")
    texts = texts_of(rule, 150)
    assert any("dropout" in text and "use_reentrant=True" in text for text in texts)
    assert any("dropout" in text and "use_reentrant=False" in text for text in texts)


def test_every_transform_is_drawn() -> None:
    rule = next(rule for rule in autograd.RULES if rule.name == "transformed")
    text = "\n".join(texts_of(rule, 250))
    for name in (
        "func.grad(",
        "func.vjp(",
        "func.jvp(",
        "vmap(",
        "func.grad_and_value(",
        "func.jacrev(",
        "func.jacfwd(",
    ):
        assert name in text, name


def test_random_rules_are_few_in_a_program() -> None:
    scene = scene_of(3)
    drawn = 0
    for _ in range(30):
        for rule in random.RULES:
            drawn += bool(rule.draw_statements(scene.draw, scene))
    assert drawn < 60  # of 180


def test_random_rules_are_left_out_where_not_wanted() -> None:
    assert "random" not in Settings(focus="all", is_random=False).family_weights()


@pytest.mark.parametrize("seed", range(10))
def test_regions_leave_the_grad_mode_as_it_was(seed: int) -> None:
    rule = next(rule for rule in autograd.RULES if rule.name == "region")
    scene = scene_of(seed, "autograd")
    rule.draw_statements(scene.draw, scene)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
