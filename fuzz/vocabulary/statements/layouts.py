"""Arguments of a program: separate tensors, several on one storage, one tensor twice, views with autograd history, lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuzz.draw.choices import Draw
from fuzz.draw.inputs.shapes import draw_shape
from fuzz.draw.inputs.specs import draw_dtype, draw_fill, draw_spec, is_inexact
from fuzz.draw.inputs.strides import contiguous_stride
from fuzz.draw.scene import Scene, dtype_name
from fuzz.program.structure import Expr, Items, Lines, OpCall, Operand, Ref, Statement

# Weight of each layout, by focus.
LAYOUT_WEIGHTS: Mapping[str, Mapping[str, float]] = {
    "all": {"plain": 10, "shared": 1, "same": 0.5, "derived": 1.5, "container": 0.7},
    "views": {"plain": 6, "shared": 1.5, "same": 1, "derived": 4, "container": 0.7},
    "autograd": {"plain": 8, "shared": 0.5, "same": 0.7, "derived": 3, "container": 0.5},
    "export": {"plain": 8, "shared": 0.5, "same": 1, "container": 1},
    "ops": {"plain": 1},
    "dtype": {"plain": 1},
}


def draw_layout(draw: Draw, scene: Scene) -> None:
    """Adds the first arguments to the scene."""
    kind = draw.weighted(LAYOUT_WEIGHTS.get(scene.settings.focus, LAYOUT_WEIGHTS["all"]))
    match kind:
        case "shared":
            _add_shared(draw, scene)
        case "same":
            _add_same(draw, scene)
        case "derived":
            _add_derived(draw, scene)
        case "container":
            _add_container(draw, scene)
        case _:
            for _ in range(draw.integer(1, 2)):
                scene.new_tensor()
    if kind != "plain" and draw.chance(0.3):
        scene.new_tensor()
    if draw.chance(0.12):
        scene.add_argument(draw.choice((2, 1, 3, -1, 0)) if draw.chance(0.5) else draw.choice((0.5, 2.0, -1.5, 0.0)))
    if draw.chance(0.06):
        scene.new_tensor(())
    if kind != "plain" or draw.chance(0.05):
        _add_optional(draw, scene)


# ------------------------------------------------------------------------------------------------ arguments, one storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One tensor on a storage of `shape`, contiguous: its own shape, stride and offset, or another dtype."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    dtype: str | None = None

    def spec(self, storage: str, dtype: str) -> dict[str, Any]:
        fields: dict[str, Any] = {"$": "tensor", "shape": list(self.shape), "dtype": self.dtype or dtype}
        fields["stride"] = list(self.stride)
        if self.offset:
            fields["offset"] = self.offset
        return {**fields, "storage": storage}


def draw_parts(draw: Draw, shape: Sequence[int], dtype: str) -> tuple[Part, ...]:
    """Two or three tensors on a contiguous storage of this shape (one dimension at least, sizes positive)."""
    shape, stride = tuple(shape), tuple(contiguous_stride(shape))
    whole = Part(shape=shape, stride=stride)
    rows = shape[0]
    options: dict[str, float] = {"equal": 2, "flat": 1.5, "row": 2}
    if rows >= 2:
        options |= {"overlapping": 3, "disjoint": 3, "interleaved": 2, "base and part": 3, "three": 1.5}
    if len(shape) >= 2:
        options |= {"transposed": 3, "columns": 1.5}
    if dtype in _OTHER_DTYPES:
        options |= {"other dtype": 1.5}
    if dtype in _REAL:
        options |= {"real parts": 4}
    at = draw.integer(1, rows - 1) if rows >= 2 else 0

    def rows_from(start: int, stop: int, step: int = 1) -> Part:
        count = len(range(start, stop, step))
        return Part(shape=(count, *shape[1:]), stride=(stride[0] * step, *stride[1:]), offset=start * stride[0])

    match draw.weighted(options):
        case "flat":
            numel = stride[0] * rows
            parts = (whole, Part(shape=(numel,), stride=(1,)))
        case "row":
            parts = (whole, Part(shape=shape[1:], stride=stride[1:], offset=stride[0] * draw.integer(0, rows - 1)))
        case "overlapping":
            parts = (rows_from(0, rows - 1), rows_from(1, rows))
        case "disjoint":
            parts = (rows_from(0, at), rows_from(at, rows))
        case "interleaved":
            parts = (rows_from(0, rows, 2), rows_from(1, rows, 2))
        case "base and part":
            parts = (whole, rows_from(at, rows))
        case "three":
            parts = (whole, rows_from(0, at), rows_from(at, rows))
        case "transposed":
            parts = (whole, Part(shape=(*shape[:-2], *shape[:-3:-1]), stride=(*stride[:-2], *stride[:-3:-1])))
        case "columns":
            columns = [draw.integer(0, size - 1) for size in (*shape[-1:], *shape[-1:])]
            parts = tuple(Part(shape=shape[:-1], stride=stride[:-1], offset=column) for column in columns)
        case "other dtype":
            parts = (whole, Part(shape=shape, stride=stride, dtype=_OTHER_DTYPES[dtype]))
        case "real parts":
            real = Part(shape=(*shape, 2), stride=(*(step * 2 for step in stride), 1), dtype=_REAL[dtype])
            imaginary = Part(shape=shape, stride=tuple(step * 2 for step in stride), offset=1, dtype=_REAL[dtype])
            parts = (whole, draw.choice((real, imaginary)))
        case _:
            parts = (whole, whole)
    return parts if draw.chance(0.7) else parts[::-1]


_OTHER_DTYPES: Mapping[str, str] = {
    "float32": "int32",
    "float64": "int64",
    "int32": "float32",
    "int64": "int32",
    "int16": "int8",
}
_REAL: Mapping[str, str] = {"complex64": "float32", "complex128": "float64"}


def _base_shape(draw: Draw, scene: Scene) -> tuple[int, ...]:
    """The shape of a base for views: one to three dimensions, none empty."""
    rank = draw.weighted({2: 5, 1: 3, 3: 2})
    shape = draw_shape(draw, [size for size in scene.sizes if size], max_numel=scene.settings.max_numel // 4, rank=rank)
    return tuple(max(1, size) for size in shape)


def _add_shared(draw: Draw, scene: Scene) -> None:
    dtype = draw_dtype(draw, scene.settings.dtypes)
    parts = draw_parts(draw, _base_shape(draw, scene), dtype)
    has_gradient = draw.chance(0.05)
    domain = "small" if any(part.dtype for part in parts) else "any"
    fill = {"fill": draw_fill(draw, dtype, domain=domain)}
    specs = []
    for part in parts:
        spec = part.spec("s0", dtype)
        if part.dtype is None and fill:
            spec |= fill
            fill = {}
        if has_gradient and is_inexact(spec["dtype"]) and draw.chance(0.6) and "float8" not in spec["dtype"]:
            spec["requires_grad"] = True
        specs.append(spec)
    scene.add_arguments(specs)


def _add_same(draw: Draw, scene: Scene) -> None:
    """One tensor object twice."""
    shape = draw_shape(draw, scene.sizes, max_numel=scene.settings.max_numel)
    spec = draw_spec(draw, shape, draw_dtype(draw, scene.settings.dtypes), requires_grad=draw.chance(0.4))
    spec["id"] = "t0"
    scene.add_arguments([spec, {"$": "same", "id": "t0"}])


# --------------------------------------------------------------------------------------------- arguments with a history

# Arguments as expressions over one tensor of one or more dims. Each is a list of (target, args after the tensor).
_VIEWS: Mapping[str, tuple[str, tuple[Operand, ...]]] = {
    "tail": ("getitem", (Expr("1:"),)),
    "head": ("getitem", (Expr(":2"),)),
    "even": ("getitem", (Expr("::2"),)),
    "odd": ("getitem", (Expr("1::2"),)),
    "row": ("getitem", (Expr("0"),)),
    "last row": ("getitem", (Expr("-1"),)),
    "column": ("getitem", (Expr("..., 0"),)),
    "other column": ("getitem", (Expr("..., -1"),)),
    "flat": (".view", (-1,)),
    "turned": ("getattr", ("mT",)),
    "unsqueezed": (".unsqueeze", (0,)),
    "expanded": (".expand", ()),
    "strided": (".as_strided", (Items((2, 2), "tuple"), Items((2, 1), "tuple"), 1)),
    "overlapping": (".as_strided", (Items((2, 2), "tuple"), Items((1, 1), "tuple"))),
    "detached": (".detach", ()),
    "alias": (".view_as", ()),
    "windows": (".unfold", (0, 2, 2)),
    "diagonal": (".diagonal", ()),
    "chunk": (".chunk", (2,)),
}
_PAIRS: tuple[tuple[str, ...], ...] = (
    ("head", "tail"), ("even", "odd"), ("base", "tail"), ("row", "base"), ("base", "flat"), ("flat", "base"), ("base", "turned"),
    ("turned", "row"), ("column", "other column"), ("base", "detached"), ("alias", "base"), ("head", "head"), ("row", "last row"),
    ("strided", "overlapping"), ("base", "tail", "head"), ("unsqueezed", "base"), ("base", "windows"), ("diagonal", "base"),
    ("base", "base"),
)  # fmt: skip
_ALONE = (
    "base", "tail", "even", "turned", "row", "column", "flat", "strided", "unsqueezed", "windows", "diagonal", "alias", "chunk",
    "expanded",
)  # fmt: skip


def _add_derived(draw: Draw, scene: Scene) -> None:
    """Arguments that are the result of an operation on an input, or views of the input or that result, with autograd history."""
    dtype = draw_dtype(draw, scene.settings.dtypes)
    spec = draw_spec(draw, _base_shape(draw, scene), dtype, requires_grad=draw.chance(0.75), layouts=("contiguous",))
    root = scene.add_input(spec)
    base = root
    derive: list[Statement] = []
    if draw.chance(0.75) and dtype != "bool":
        base = "t0"
        target, operand = draw.choice((("operator.mul", 1), (".clone", None), ("operator.mul", 2)))
        args = (Ref(root),) if operand is None else (Ref(root), operand)
        derive.append(OpCall(target=target, args=args, results=(base,)))
    kinds = draw.choice(_PAIRS) if draw.chance(0.35) else (draw.choice(_ALONE),)
    names: list[str] = []
    for kind in kinds:
        name = f"a{len(scene.arguments) + len(names)}"
        names.append(name)
        derive += _view_statements(kind, base, name, spec["shape"])
    if not scene.derive_arguments(derive, names):  # a view that this shape does not allow
        whole = [*derive[: base != root], *_view_statements("base", base, names[0], spec["shape"])]
        if not scene.derive_arguments(whole, names[:1]):
            scene.add_argument(scene.specs.pop(root))


def _view_statements(kind: str, base: str, name: str, shape: Sequence[int]) -> list[Statement]:
    if kind == "base":
        return [Lines(text=f"{{{name}}} = {{{base}}}", uses=(base,), results=(name,))]
    target, args = _VIEWS[kind]
    if kind == "expanded":
        args = (Items((2, *shape), "tuple"),)
    if kind == "alias":
        args = (Ref(base),)
    if kind == "chunk":
        whole = f"{name}_parts"
        return [
            OpCall(target=target, args=(Ref(base), *args), results=(whole,)),
            OpCall(target="getitem", args=(Ref(whole), -1), results=(name,)),
        ]
    return [OpCall(target=target, args=(Ref(base), *args), results=(name,))]


# ------------------------------------------------------------------------------------------------- containers, None


def _add_container(draw: Draw, scene: Scene) -> None:
    """A list, tuple or dict of tensors; the program takes them out, or takes the list as it is."""
    shape = draw_shape(draw, scene.sizes, max_numel=scene.settings.max_numel)
    dtype = draw_dtype(draw, scene.settings.dtypes)
    count = draw.choice((2, 2, 3, 1))
    has_gradient = draw.chance(0.4)
    specs: list[Any] = [draw_spec(draw, shape, dtype, requires_grad=has_gradient) for _ in range(count)]
    if draw.chance(0.15):
        specs[0]["id"] = "t0"
        specs.append({"$": "same", "id": "t0"})
    kind = draw.weighted({"list": 4, "tuple": 2, "dict": 2.5, "nested": 1})
    keys: list[Any] = [*range(len(specs))]
    match kind:
        case "list":
            tree: Any = specs
        case "tuple":
            tree = {"$": "tuple", "items": specs}
        case "dict":
            keys = ["x", "y", "z", "w"][: len(specs)]
            tree = dict(zip(keys, specs, strict=True))
        case _:
            tree = [specs[:1], {"rest": specs[1:]}]
    name = scene.add_argument(tree)
    if kind in ("list", "tuple") and draw.chance(0.3):
        how, args = draw.choice((("torch.stack", (Ref(name),)), ("torch.cat", (Ref(name), -1))))
        scene.add(OpCall(target=how, args=args, results=(scene.fresh(),)))
    if kind == "nested":
        scene.add(OpCall(target="getitem", args=(Ref(name), 0), results=(f"{name}_first",)))
        scene.add(OpCall(target="getitem", args=(Ref(f"{name}_first"), 0), results=(scene.fresh(),)))
        return
    for key in keys:
        scene.add(OpCall(target="getitem", args=(Ref(name), key), results=(scene.fresh(),)))


def _add_optional(draw: Draw, scene: Scene) -> None:
    """An argument that is None at the first call, and may be a tensor later."""
    if not draw.chance(0.12):
        return
    other = scene.pick(lambda tensor: tensor.numel() > 0 and is_inexact(dtype_name(tensor)))
    if other is None:
        return
    tensor = scene.values[other]
    name, result = scene.add_argument(None), scene.fresh()
    spec = draw_spec(draw, tuple(tensor.shape), dtype_name(tensor), layouts=("contiguous",))
    scene.alternatives[name] = (None, spec)
    text = f"{{{result}}} = {{{other}}} * 2 if {{{name}}} is None else {{{other}}} + {{{name}}}"
    scene.add(Lines(text=text, uses=(other, name), results=(result,)))
