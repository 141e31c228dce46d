"""Statements that draw random numbers. Programs have few, since their results may only be judged by distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Scene
from fuzz.program.structure import OpCall, Operand, Ref, Statement
from fuzz.vocabulary.operators import OPERATORS
from fuzz.vocabulary.statements.rule import Rule
from fuzz.vocabulary.statements.views import ints

Drawn = Statement | Sequence[Statement] | None


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() > 1


def _may_draw(draw: Draw, scene: Scene) -> bool:
    """Whether another one is allowed: one per program, rarely two."""
    if scene.is_random and not draw.chance(0.15):
        return False
    scene.is_random = True
    return True


def dropout(draw: Draw, scene: Scene) -> Drawn:
    """Dropout; the backward must use the forward's mask."""
    name = scene.pick(lambda tensor: _is_float(tensor) and tensor.requires_grad) or scene.pick(_is_float)
    if name is None or not _may_draw(draw, scene):
        return None
    rank = scene.values[name].dim()
    how = draw.weighted(
        {
            "dropout": 8,
            "alpha_dropout": 0.7,
            "feature_alpha_dropout": 0.3,
            "dropout1d": 0.5,
            "dropout2d": 0.7,
            "native": 1,
        }
    )
    probability = draw.weighted({0.5: 4, 0.2: 2, 0.8: 2, 0.0: 0.2, 1.0: 0.05})
    if how == "native":
        return OpCall(
            target="torch.native_dropout", args=(Ref(name), probability, True), results=(scene.fresh(), scene.fresh())
        )
    if (how == "dropout1d" and rank not in (2, 3)) or (how == "dropout2d" and rank not in (3, 4)) or rank < 2:
        how = "dropout"
    kwargs: tuple[tuple[str, Operand], ...] = (("p", probability), ("training", not draw.chance(0.1)))
    return OpCall(target=f"torch.nn.functional.{how}", args=(Ref(name),), kwargs=kwargs, results=(scene.fresh(),))


def drawn_like(draw: Draw, scene: Scene) -> Drawn:
    name = scene.pick(_is_float)
    if name is None or not _may_draw(draw, scene):
        return None
    how = draw.choice(("torch.rand_like", "torch.randn_like", "torch.randint_like"))
    args: tuple[Operand, ...] = (5,) if how.endswith("int_like") else ()
    noise = OpCall(target=how, args=(Ref(name), *args), results=(scene.fresh(),))
    if draw.chance(0.5):
        return noise
    joined = (Ref(name), Ref(noise.results[0]))
    return [noise, OpCall(target=draw.choice(("operator.add", "operator.mul")), args=joined, results=(scene.fresh(),))]


def created(draw: Draw, scene: Scene) -> Drawn:
    if not _may_draw(draw, scene):
        return None
    shape = ints([draw.choice(scene.sizes) for _ in range(draw.integer(1, 2))])
    how = draw.weighted({"rand": 3, "randn": 3, "randint": 2, "randperm": 1.5, "normal": 0.7})
    args: tuple[Operand, ...] = {
        "randint": (-3, 10, shape), "randperm": (draw.integer(1, 20),), "normal": (1.0, 2.0, shape),
    }.get(how, (shape,))  # fmt: skip
    return OpCall(target=f"torch.{how}", args=args, results=(scene.fresh(),))


def sampled(draw: Draw, scene: Scene) -> Drawn:
    """Random numbers with tensors as probabilities or parameters."""
    name = scene.pick(lambda tensor: tensor.dtype in (torch.float32, torch.float64) and tensor.numel() > 0)
    if name is None or not bool(torch.isfinite(scene.values[name].detach()).all()) or not _may_draw(draw, scene):
        return None
    how = draw.weighted({"bernoulli": 4, "multinomial": 1, "poisson": 0.7, "normal": 1})
    likely = OpCall(target=".sigmoid", args=(Ref(name),), results=(scene.fresh(),))
    at = Ref(likely.results[0])
    match how:
        case "multinomial" if scene.values[name].dim() in (1, 2):
            call = OpCall(target="torch.multinomial", args=(at, 2, True), results=(scene.fresh(),))
        case "poisson":
            call = OpCall(target="torch.poisson", args=(at,), results=(scene.fresh(),))
        case "normal":
            call = OpCall(target="torch.normal", args=(Ref(name), at), results=(scene.fresh(),))
        case _:
            call = OpCall(target="torch.bernoulli", args=(at,), results=(scene.fresh(),))
    return [likely, call]


def seeded(draw: Draw, scene: Scene) -> Drawn:
    """The program seeds the generator itself, or leaves its state as it found it."""
    if not _may_draw(draw, scene):
        return None
    numbers = OpCall(target="torch.rand", args=(ints((draw.choice((3, 4, 17)),)),), results=(scene.fresh(),))
    if draw.chance(0.4):
        with scene.region("torch.random.fork_rng(devices=[])"):
            scene.add(numbers)
        return ()
    return [OpCall(target="torch.manual_seed", args=(draw.integer(0, 9),)), numbers]


def catalogued(draw: Draw, scene: Scene) -> Drawn:
    """A random operator of `OPERATORS`."""
    steering = scene.settings.steering
    weights = {name: spec.weight * steering.factor(f"op:{name}") for name, spec in OPERATORS.items() if spec.is_random}
    if not weights or not _may_draw(draw, scene):
        return None
    return OPERATORS[draw.weighted(weights)].draw_call(draw, scene)


_TABLE: tuple[tuple[Callable[[Draw, Scene], Drawn], float], ...] = (
    (dropout, 5),
    (drawn_like, 2),
    (created, 1.5),
    (sampled, 1.5),
    (seeded, 0.4),
    (catalogued, 2),
)
RULES = tuple(Rule(name=rule.__name__, family="random", draw_statements=rule, weight=weight) for rule, weight in _TABLE)
