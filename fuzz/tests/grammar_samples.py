"""Programs and scenes drawn once for several tests, and what is asked of them."""

from __future__ import annotations

import functools
import re
from collections import Counter

import torch

from fuzz.draw.choices import RandomDraw
from fuzz.draw.scene import Scene
from fuzz.draw.settings import Settings
from fuzz.program.render import render
from fuzz.program.structure import FuzzProgram
from fuzz.vocabulary.programs import draw_program
from fuzz.vocabulary.statements import ops
from fuzz.vocabulary.statements.layouts import draw_layout
from fuzz.vocabulary.statements.rule import Rule
from oracle.observe.outcome import Outcome, Raised, Returned


@functools.lru_cache(maxsize=16)
def programs(focus: str, count: int) -> tuple[FuzzProgram, ...]:
    """The first programs of a focus."""
    settings = Settings(focus=focus)
    return tuple(draw_program(RandomDraw(f"sample/{number}"), settings) for number in range(count))


def scene_of(seed: int, focus: str = "all") -> Scene:
    """A scene with arguments and a few operations."""
    draw = RandomDraw(f"scene/{seed}")
    scene = Scene(draw, Settings(focus=focus), seed=seed)
    draw_layout(draw, scene)
    for _ in range(draw.integer(0, 3)):
        statement = ops.draw_op(draw, scene)
        if statement is not None:
            scene.add(statement)
    return scene


def accepted_by_eager(rule: Rule, tries: int, *, focus: str = "all") -> list[Scene]:
    """Scenes to which the rule could add something."""
    found = []
    for seed in range(tries):
        scene = scene_of(seed, focus)
        before = len(scene.statements)
        statements = rule.draw_statements(scene.draw, scene)
        if statements is not None and scene.add(statements) and len(scene.statements) > before:
            found.append(scene)
    return found


def share_of(focus: str, count: int, pattern: str) -> float:
    """Share of the programs the source or the calls of which hold the pattern."""
    return sum(bool(re.search(pattern, text, re.MULTILINE)) for text in texts(focus, count)) / count


@functools.lru_cache(maxsize=16)
def texts(focus: str, count: int) -> tuple[str, ...]:
    return tuple(f"{render(program)}\n{program.calls!r}\n{program.config!r}" for program in programs(focus, count))


def lines_of(scene: Scene) -> Counter[str]:
    return Counter(render(scene.to_program(None)).splitlines())


def assert_same_outcome(one: Outcome, other: Outcome, source: str) -> None:
    """Bit by bit: outputs, arguments afterwards, gradients, state, generators."""
    __tracebackhide__ = True
    assert type(one) is type(other)
    assert isinstance(one, (Returned, Raised))
    assert isinstance(other, (Returned, Raised))
    for mine, its in zip(one.calls, other.calls, strict=True):
        assert mine.structure == its.structure
        assert mine.rng_digest == its.rng_digest
        assert mine.aliases == its.aliases
        for section in ("outputs", "inputs_after", "gradients", "module_state"):
            for a, b in zip(getattr(mine, section), getattr(its, section), strict=True):
                assert a.path == b.path
                assert a.facts == b.facts
                if "linalg" in source and isinstance(a.value, torch.Tensor):
                    # LAPACK's last bits go by where memory lies
                    torch.testing.assert_close(a.value, b.value, equal_nan=True)
                else:
                    assert _bytes(a.value) == _bytes(b.value), f"{a.path} differs between two eager runs of\n{source}"


def _bytes(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    plain = value.detach().resolve_conj().resolve_neg()
    flat = torch.empty(plain.numel(), dtype=plain.dtype).copy_(plain.reshape(-1))  # strides of size 1 mean nothing
    return flat.view(torch.uint8).numpy().tobytes()
