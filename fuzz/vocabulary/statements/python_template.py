"""Templates: rules of Python features as data: text with places for tensors, numbers and small tensor computations.

In every text of a template stand
- `{x}`, `{y}`: live tensors (y has x's shape and dtype); `{r}`, `{s}`: the results; `{A}`: an argument that is no tensor;
- `$D`, `$E`: names of its own at module level; `$n`, `$m`, `$o`: different numbers; `$k`: 1, 2 or 3;
- `$f(x)`, `$g(x)`, `$h(x)`: a computation of an expression without parentheses, each place another draw; `$b(x, y)`: of two. So
  every draw computes something else, and a wrong branch or a stale value changes a tensor.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.inputs.specs import COMPLEX, FLOATS, INTEGERS
from fuzz.draw.scene import Change, Scene, dtype_name
from fuzz.program.structure import Definition, Lines
from fuzz.vocabulary.statements.rule import Rule

_FLOAT_UNARY = (
    "torch.sin({})", "{} * 2", "{} + 1", "torch.relu({})", "{}.cos()", "torch.tanh({})", "{}.abs()", "-{}", "{} - 0.5",
    "torch.sigmoid({})", "{} * 0.5", "{}.square()", "torch.clamp({}, min=0)", "{}.exp().log1p()", "{} / 3",
)  # fmt: skip
_UNARY: Mapping[str, tuple[str, ...]] = {
    "float": _FLOAT_UNARY,
    "complex": ("{} * 2", "{} + 1", "-{}", "torch.sin({})", "{} * 0.5"),
    "integer": ("{} + 1", "{} * 2", "-{}", "{} - 3", "{} * {}"),
    "bool": ("~{}", "{} | ~{}", "{} ^ True", "{} + 1"),
}
_BINARY: Mapping[str, tuple[str, ...]] = {
    "float": ("{} + {}", "{} * {}", "{} - {}", "torch.maximum({}, {})", "torch.where({0} > {1}, {0}, {1} * 2)"),
    "complex": ("{} + {}", "{} * {}", "{} - {}"),
    "integer": ("{} + {}", "{} * {}", "{} - {}", "torch.minimum({}, {})"),
    "bool": ("{} | {}", "{} & {}", "{} ^ {}"),
}
_NUMBERS: Mapping[str, tuple[Any, ...]] = {
    "float": (2.0, 0.5, -1.0, 3.0, 1.5, 4.0),
    "complex": (2.0, 0.5, -1.0, 3.0, 1.5),
    "integer": (2, 3, 5, 1, 4),
    "bool": (2, 3, 5, 1, 4),
}
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(FLOATS, "float"),
    **dict.fromkeys(INTEGERS, "integer"),
    **dict.fromkeys(COMPLEX, "complex"),
    "bool": "bool",
}
_COMPUTATION = re.compile(r"\$([fghb])\(([^()]*)\)")
_SLOT = re.compile(r"\$([DEF]|[nmok](?!\w))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Varies:
    """A change that a call plan may make: see `fuzz.draw.scene.Change`."""

    kind: str
    name: str
    texts: tuple[str, ...]
    restore: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One Python feature."""

    name: str
    text: str
    definitions: tuple[str, ...] = ()  # at module level, named $D, $E, $F in their order
    varies: tuple[Varies, ...] = ()
    argument: tuple[Any, ...] = ()  # specs for {A}: the first call uses one of them, later calls may use others
    family: str = "python"
    weight: float = 1.0
    kinds: tuple[str, ...] = ("float",)  # of x: "float", "complex", "integer", "bool"
    condition: Callable[[torch.Tensor], bool] = lambda tensor: True  # of x
    focuses: tuple[str, ...] = ()  # only for these, where given


def any_kind(*kinds: str) -> tuple[str, ...]:
    """These kinds of dtype, or all kinds if none is given."""
    return kinds or tuple(_UNARY)


def rules_of(templates: Sequence[Template], *, is_exportable: bool = True) -> tuple[Rule, ...]:
    """The rules of the templates."""
    return tuple(_rule(template, is_exportable=is_exportable) for template in templates)


def _rule(template: Template, *, is_exportable: bool) -> Rule:
    def draw_statements(draw: Draw, scene: Scene) -> Lines | None:
        focus = scene.settings.focus
        if (focus == "export" and not is_exportable) or focus not in (template.focuses or (focus,)):
            return None
        return filled(draw, scene, template)

    return Rule(name=template.name, family=template.family, draw_statements=draw_statements, weight=template.weight)


def filled(draw: Draw, scene: Scene, template: Template) -> Lines | None:
    """The statements of one draw; its definitions, arguments and changes join the scene."""
    x = _tensor(draw, scene, template)
    kind = kind_of(scene.values[x])
    names = {"x": x}
    if "{y}" in template.text:
        names["y"] = scene.tensor(shape=tuple(scene.values[x].shape), dtype=dtype_name(scene.values[x]), fresh=0.3)
    if template.argument:
        names["A"] = scene.add_argument(draw.choice(template.argument))
        scene.alternatives[names["A"]] = template.argument
    uses = tuple(names.values())
    for result in ("r", "s"):
        if f"{{{result}}}" in template.text:
            names[result] = scene.fresh()
    slots = _slots(draw, scene, template, kind)

    def fill(text: str) -> str:
        text = _COMPUTATION.sub(lambda match: _computation(draw, kind, match), text)
        return _SLOT.sub(lambda match: slots[match[1]], text)

    defined = []
    for slot, text in zip("DEF", template.definitions, strict=False):
        needs = tuple(slots[other] for other in "DEF" if other != slot and f"${other}" in text)
        definition = Definition(name=slots[slot], text=textwrap.dedent(fill(text)).strip(), needs=needs)
        scene.define(definition)
        defined.append(definition.name)
    for varies in template.varies:
        change = Change(
            kind=varies.kind,
            name=fill(varies.name),
            texts=tuple(fill(text) for text in varies.texts),
            restore=fill(varies.restore),
        )
        scene.changes.append(change)
    text = fill(textwrap.dedent(template.text).strip())
    for place, name in names.items():
        text = text.replace(f"{{{place}}}", f"{{{name}}}")
    return Lines(
        text=text,
        uses=uses,
        results=tuple(names[result] for result in ("r", "s") if result in names),
        definitions=tuple(name for name in defined if name in text),
    )


def kind_of(tensor: torch.Tensor) -> str:
    """The kind of a tensor's dtype; "other" for dtypes with little arithmetic (float8, uint32)."""
    return _KINDS.get(dtype_name(tensor), "other")


def computation(draw: Draw, kind: str, function: str, operands: str) -> str:
    """An expression that computes a tensor of these operands, separated by commas."""
    texts = [operand.strip() for operand in operands.split(",")]
    if function == "b":
        found = draw.choice(_BINARY[kind])
        return found.format(*texts) if "{0}" in found else found.format(*texts[:2])
    found = draw.choice(_UNARY[kind])
    return found.replace("{}", texts[0])


def _computation(draw: Draw, kind: str, match: re.Match[str]) -> str:
    found = computation(draw, kind, match[1], match[2])
    follows = match.string[match.end() : match.end() + 1]
    return f"({found})" if follows in (".", "[") and follows and " " in found + found[:1].replace("-", " ") else found


def _tensor(draw: Draw, scene: Scene, template: Template) -> str:
    def fits(tensor: torch.Tensor) -> bool:
        return kind_of(tensor) in template.kinds and template.condition(tensor)

    name = None if draw.chance(0.05) else scene.pick(fits)
    if name is None:
        kind = template.kinds[0] if draw.chance(0.8) else draw.choice(template.kinds)
        dtype = {"float": "float32", "complex": "complex64", "integer": "int64", "bool": "bool"}[kind]
        name = scene.new_tensor(None, dtype)
    return name


def _slots(draw: Draw, scene: Scene, template: Template, kind: str) -> dict[str, str]:
    source = " ".join((template.text, *template.definitions, *(t for v in template.varies for t in v.texts)))
    slots: dict[str, str] = {}
    left = [*_NUMBERS[kind]]
    for slot in "nmo":
        if f"${slot}" in source:
            value = draw.choice(left)
            left.remove(value)
            slots[slot] = repr(value)
    if "$k" in source:
        slots["k"] = str(draw.integer(1, 3))
    for at, slot in enumerate("DEF"[: len(template.definitions)]):
        is_class = "class $" in template.definitions[at]
        stem = "".join(word.capitalize() for word in template.name.split("_")) if is_class else template.name
        if slot != "D":
            stem = f"{stem}_{slot.lower()}" if not is_class else f"{stem}{slot}"
        slots[slot] = f"{stem}{len(scene.definitions)}"
    return slots
