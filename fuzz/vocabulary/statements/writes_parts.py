"""Statements that write to parts of a tensor: by slices, masks and positions, and through views that are read as well."""

from __future__ import annotations

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.geometry import share_memory
from fuzz.draw.scene import Scene, dtype_name
from fuzz.program.structure import Expr, Items, OpCall, Operand, Ref, Statement
from fuzz.vocabulary.statements.indices import draw_basic_index, draw_mask, draw_positions, draw_slice
from fuzz.vocabulary.statements.views import any_dim, has_dims, two_dims
from fuzz.vocabulary.statements.write_operands import Drawn, beside, is_float8, source_for, write


def assigned(draw: Draw, scene: Scene) -> Drawn:
    """`x[1:] = ...`, `x[..., 0] += ...`."""
    name = scene.target(has_dims)
    index = name and draw_basic_index(draw, scene.values[name].shape, can_insert=False)
    if not name or not index:
        return None
    tensor = scene.values[name]
    part = eval(f"x[{index.text}]", {"x": tensor.detach()})
    if not part.numel():
        return None
    how = draw.weighted({"number": 3, "tensor": 4, "add": 2, "mul": 1})
    if how == "tensor":
        return OpCall(target="setitem", args=(Ref(name), index, source_for(draw, scene, part, tensor)))
    if how == "number" or tensor.dtype is torch.bool:
        return OpCall(target="setitem", args=(Ref(name), index, scene.number(tensor)))
    view = OpCall(target="getitem", args=(Ref(name), index), results=(scene.fresh(),))
    return [view, OpCall(target=f"operator.i{how}", args=(Ref(view.results[0]), scene.scalar(tensor)))]


def shifted(draw: Draw, scene: Scene) -> Drawn:
    """`x[1:] = x[:-1].clone()`, and with something done to it on the way."""
    name = scene.target(lambda tensor: tensor.dim() > 0 and max(tensor.shape) > 1)
    if name is None:
        return None
    tensor = scene.values[name]
    dim = draw.choice([at for at, size in enumerate(tensor.shape) if size > 1])
    by = draw.integer(1, tensor.shape[dim] - 1)
    before = ":, " * dim
    parts = [Expr(f"{before}{by}:"), Expr(f"{before}:-{by}")]
    if draw.chance(0.4):
        parts.reverse()
    source = OpCall(target="getitem", args=(Ref(name), parts[1]), results=(scene.fresh(),))
    how = draw.weighted({".clone": 4, "operator.mul": 1, "operator.add": 1, ".contiguous": 1, ".flip": 1})
    if tensor.dtype is torch.bool and how.startswith("operator"):
        how = ".clone"
    if how == ".contiguous" and _is_itself(tensor, parts[1].text):
        how = ".clone"
    operands: tuple[Operand, ...] = (scene.number(tensor),) if how.startswith("operator") else ()
    operands = (0,) if how == ".flip" else operands
    copied = OpCall(target=how, args=(Ref(source.results[0]), *operands), results=(scene.fresh(),))
    written = OpCall(target="setitem", args=(Ref(name), parts[0], Ref(copied.results[0])))
    return [source, copied, written]


def _is_itself(tensor: torch.Tensor, index: str) -> bool:
    """Whether `contiguous` gives the part itself, which is about to be partly overwritten."""
    return eval(f"x[{index}]", {"x": tensor.detach()}).is_contiguous()


def masked(draw: Draw, scene: Scene) -> Drawn:
    name = scene.target(lambda tensor: not is_float8(tensor))
    if name is None:
        return None
    tensor = scene.values[name]
    mask = draw_mask(draw, scene, tensor)
    if share_memory(scene.values[mask], tensor):
        return None
    is_whole = scene.values[mask].shape == tensor.shape
    how = draw.weighted({"setitem": 3, "masked_fill_": 3, "masked_fill_ tensor": 0.7, "masked_scatter_": 1, "where": 1})
    match how:
        case "masked_fill_" if is_whole:
            return write(name, how, Ref(mask), scene.number(tensor))
        case "masked_fill_ tensor" if is_whole:
            return write(name, "masked_fill_", Ref(mask), Ref(scene.new_tensor((), dtype_name(tensor))))
        case "masked_scatter_" if is_whole:
            return write(name, how, Ref(mask), beside(draw, scene, name))
        case "where" if is_whole:
            chosen = OpCall(
                target="torch.where", args=(Ref(mask), Ref(name), beside(draw, scene, name)), results=(scene.fresh(),)
            )
            return [chosen, write(name, "copy_", Ref(chosen.results[0]))]
        case _:
            return OpCall(target="setitem", args=(Ref(name), Ref(mask), scene.number(tensor)))


def indexed(draw: Draw, scene: Scene) -> Drawn:
    """Write to rows by index. Indices are distinct, unless the written numbers are added and their sum is exact."""
    name = scene.target(lambda tensor: has_dims(tensor) and not is_float8(tensor))
    if name is None:
        return None
    tensor = scene.values[name]
    size = tensor.shape[0]
    count = draw.integer(1, min(size, 3))
    positions = draw_positions(draw, scene, size, count=count, distinct=True)
    number = scene.number(tensor)
    rows = (count, *tensor.shape[1:])
    how = draw.weighted(
        {
            "setitem": 3,
            "setitem rows": 3,
            "index_fill_": 1,
            "index_copy_": 1.5,
            "index_add_": 2,
            "index_put_": 2,
            "scatter_": 1,
        }
    )
    if how == "setitem":
        return OpCall(target="setitem", args=(Ref(name), positions, number))
    if how == "index_fill_":
        return write(name, how, 0, positions, number)
    if how == "scatter_":
        shape = (1, *tensor.shape[1:])
        at = Expr(f"torch.full({shape}, {draw.integer(0, size - 1)})")
        return write(name, how, 0, at, number)
    source = Ref(scene.new_tensor(rows, dtype_name(tensor)))
    if how == "setitem rows":
        return OpCall(target="setitem", args=(Ref(name), positions, source))
    if how == "index_put_":
        accumulate = ("accumulate", True) if draw.chance(0.4) and tensor.dtype is not torch.bool else None
        return write(name, how, Items((positions,), "tuple"), source, keyword=accumulate)
    if how == "index_add_" and tensor.dtype is torch.bool:
        how = "index_copy_"
    return write(name, how, 0, positions, source)


def through_view(draw: Draw, scene: Scene) -> Drawn:
    """A value read before a write, the write through a view or the base, the value read after."""
    name = scene.target(lambda tensor: has_dims(tensor) and not is_float8(tensor))
    if name is None:
        return None
    tensor = scene.values[name]
    view = _view_of(draw, scene, name)
    written, read = (view.results[0], name) if draw.chance(0.6) else (name, view.results[0])
    number = scene.number(tensor)
    how = draw.choice(("mul_", "add_", "zero_", "fill_", "copy_")) if tensor.dtype is not torch.bool else "logical_not_"
    if how == "copy_":
        change = write(written, how, Expr(f"torch.ones((), dtype={tensor.dtype})"))
    else:
        change = write(written, how, *((number,) if how in ("mul_", "add_", "fill_") else ()))
    statements: list[Statement] = [view, change]
    if draw.chance(0.4):
        statements.insert(1, _reading(draw, scene, read))
    elif draw.chance(0.3):
        statements.insert(0, _reading(draw, scene, name))
    if draw.chance(0.7):
        statements.append(_reading(draw, scene, read))
    return statements


def beside_view(draw: Draw, scene: Scene) -> Drawn:
    """Two views of one tensor: a write through one, a read through the other, whether they overlap or not."""
    name = scene.target(lambda tensor: has_dims(tensor) and not is_float8(tensor))
    if name is None:
        return None
    one, other = _view_of(draw, scene, name), _view_of(draw, scene, name)
    number = scene.number(scene.values[name])
    how = draw.choice(("mul_", "add_", "fill_")) if scene.values[name].dtype is not torch.bool else "fill_"
    statements: list[Statement] = [
        one,
        other,
        write(one.results[0], how, number),
        _reading(draw, scene, other.results[0]),
    ]
    if draw.chance(0.3):
        statements.append(write(other.results[0], "zero_"))
    return statements


def _view_of(draw: Draw, scene: Scene, name: str) -> OpCall:
    """A view of it no two elements of which share a place."""
    tensor = scene.values[name]
    how = draw.weighted(
        {
            "slice": 5,
            "select": 2,
            "unfold": 1.5,
            "transpose": 2,
            "unsqueeze": 1,
            "diagonal": 1,
            "alias": 1,
            "detach": 0.7,
        }
    )
    results = (scene.fresh(),)
    args: tuple[Operand, ...] = ()
    match how:
        case "unfold":
            dim = any_dim(draw, tensor)
            size = draw.integer(1, min(3, tensor.shape[dim]))
            args = (dim, size, size + draw.integer(0, 4))
        case "select":
            dim = any_dim(draw, tensor)
            args = (dim, draw.integer(0, tensor.shape[dim] - 1))
        case "transpose" | "diagonal" if tensor.dim() >= 2:
            args = two_dims(draw, tensor) if how == "transpose" else (0, *two_dims(draw, tensor))
        case "unsqueeze":
            args = (draw.integer(0, tensor.dim()),)
        case "alias":
            how = "view_as"
            args = (Ref(name),)
        case "detach" if not scene.is_saved_elsewhere(tensor) and not tensor.requires_grad:
            pass
        case _:
            dim = draw.integer(0, tensor.dim() - 1)
            index = Expr(":, " * dim + draw_slice(draw, tensor.shape[dim]))
            return OpCall(target="getitem", args=(Ref(name), index), results=results)
    return OpCall(target=f".{how}", args=(Ref(name), *args), results=results)


def _reading(draw: Draw, scene: Scene, name: str) -> OpCall:
    how = draw.weighted({".clone": 3, ".sum": 2, "operator.mul": 3, "torch.cat": 1})
    if how == "torch.cat":
        return OpCall(target=how, args=(Items((Ref(name), Ref(name))),), results=(scene.fresh(),))
    return OpCall(
        target=how, args=(Ref(name), *((Ref(name),) if how == "operator.mul" else ())), results=(scene.fresh(),)
    )
