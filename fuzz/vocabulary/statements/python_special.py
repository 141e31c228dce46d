"""Python features whose text depends on a drawn tensor."""

from __future__ import annotations

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Scene
from fuzz.program.structure import Block, Lines, Statement
from fuzz.vocabulary.statements.python_template import computation, kind_of
from fuzz.vocabulary.statements.rule import Rule


def draw_size_compared(draw: Draw, scene: Scene) -> Statement | None:
    """A comparison of a size with that of this call, or with a likely size of a later one."""
    x = scene.pick(lambda t: t.dim() > 0 and kind_of(t) != "other")
    if x is None:
        return None
    tensor = scene.values[x]
    shape = [*tensor.shape]
    if draw.chance(0.6):
        at = draw.integer(0, len(shape) - 1)
        shape[at] = draw.choice((shape[at] + 1, 1, shape[at] * 2, shape[at] + 2, 7))
    header = draw.choice(
        (
            f"if {{{x}}}.size() != {tuple(shape)}:",
            f"if {{{x}}}.shape == torch.Size({shape}):",
            f"if [*{{{x}}}.shape] == {shape}:",
            f"if {{{x}}}.shape[-1] in ({shape[-1]}, 12) or {{{x}}}.numel() == 0:",
            f"if {{{x}}}.shape[0] * 2 > {shape[0] * 2 + 1}:",
        )
    )
    return _branches(draw, scene, header, x, (x,))


def draw_sizes_of_two(draw: Draw, scene: Scene) -> Statement | None:
    """A branch on a relation between the sizes of two tensors."""
    x = scene.pick(lambda t: t.dim() > 0 and kind_of(t) != "other")
    y = scene.pick(lambda t: t.dim() > 0)
    if x is None or y is None or x == y:
        return None
    header = draw.choice(
        (
            f"if {{{x}}}.shape[-1] == {{{y}}}.shape[0]:",
            f"if {{{x}}}.shape[0] > {{{y}}}.shape[-1]:",
            f"if {{{x}}}.numel() % ({{{y}}}.shape[0] + 1) == 0:",
            f"if {{{x}}}.shape == {{{y}}}.shape:",
            f"if ({{{x}}}.shape[0] + {{{y}}}.shape[0]) // 2 >= 4:",
            f"if max({{{x}}}.shape[0], {{{y}}}.shape[0]) == {{{x}}}.shape[0]:",
        )
    )
    return _branches(draw, scene, header, x, (x, y))


def draw_identity(draw: Draw, scene: Scene) -> Statement | None:
    """A branch on whether two names are one tensor, or share memory."""
    x = scene.pick(lambda t: kind_of(t) != "other")
    y = scene.pick()
    if x is None or y is None or x == y:
        return None
    return _branches(draw, scene, f"if {{{x}}} is {{{y}}}:", x, (x, y))


def draw_own_strides(draw: Draw, scene: Scene) -> Statement | None:
    """A comparison of strides, or of the storage offset, with those of this call."""
    x = scene.pick(lambda t: t.dim() > 0 and kind_of(t) != "other")
    if x is None:
        return None
    tensor = scene.values[x]
    header = draw.choice(
        (
            f"if {{{x}}}.stride() == {tuple(tensor.stride())}:",
            f"if {{{x}}}.stride(0) > {tensor.stride(0)}:",
            f"if {{{x}}}.storage_offset() == {tensor.storage_offset()}:",
            f"if {{{x}}}.stride(-1) == 1:",
        )
    )
    return _branches(draw, scene, header, x, (x,))


def draw_as_strided_by_numbers(draw: Draw, scene: Scene) -> Statement | None:
    """as_strided with constant sizes."""
    x = scene.pick(lambda t: t.dim() > 0 and t.numel() > 1 and t.is_contiguous() and kind_of(t) != "other")
    if x is None:
        return None
    count = draw.integer(1, scene.values[x].numel())
    result = scene.fresh()
    text = draw.choice(
        (
            f"{{{result}}} = {{{x}}}.flatten()[:{count}] * {{{x}}}.shape[0]",
            f"{{{result}}} = {{{x}}}.flatten().narrow(0, 0, {count}) + {{{x}}}.numel()",
            f"{{{result}}} = {{{x}}}.reshape(-1).split({count})[0] * 2",
        )
    )
    return Lines(text=text, uses=(x,), results=(result,))


def _branches(draw: Draw, scene: Scene, header: str, x: str, uses: tuple[str, ...]) -> Block:
    """A branch with another computation on x on each side."""
    result = scene.fresh()
    kind = kind_of(scene.values[x])
    texts = [f"{{{result}}} = {computation(draw, kind, 'f', f'{{{x}}}')}" for _ in range(2)]
    first, second = (Lines(text=text, uses=(x,), results=(result,)) for text in (texts[0], f"{texts[1]} * 3"))
    return Block(header=header, body=(first,), orelse=(second,), uses=uses)


RULES: tuple[Rule, ...] = tuple(
    Rule(name=name, family="python", draw_statements=rule, weight=weight)
    for name, rule, weight in (
        ("size_compared", draw_size_compared, 2),
        ("sizes_of_two", draw_sizes_of_two, 1.5),
        ("identity", draw_identity, 1),
        ("own_strides", draw_own_strides, 1),
        ("count_of_elements", draw_as_strided_by_numbers, 1),
    )
)
