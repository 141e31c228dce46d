"""Statements that make views of arguments, results and views, and that undo them, copy them or scatter into them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.geometry import share_storage
from fuzz.draw.inputs.strides import extent
from fuzz.draw.scene import Scene
from fuzz.program.structure import Expr, Items, OpCall, Operand, Ref, Statement
from fuzz.vocabulary.statements.indices import draw_advanced_index, draw_basic_index
from fuzz.vocabulary.statements.rule import Rule

Drawn = Statement | Sequence[Statement] | None
_BITS = {1: ("uint8", "int8"), 2: ("int16", "bfloat16", "float16"), 4: ("int32", "float32"), 8: ("int64", "float64")}


def method(scene: Scene, name: str, how: str, *args: Operand, **kwargs: Operand) -> OpCall:
    """`v0 = name.how(*args)`."""
    return OpCall(target=f".{how}", args=(Ref(name), *args), kwargs=tuple(kwargs.items()), results=(scene.fresh(),))


def ints(numbers: Sequence[int]) -> Items:
    return Items(tuple(numbers), "tuple")


def has_dims(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 0 and tensor.numel() > 0


def two_dims(draw: Draw, tensor: torch.Tensor) -> tuple[int, int]:
    """Two different dimensions, counted from either end."""
    one = draw.integer(0, tensor.dim() - 2)
    other = draw.integer(one + 1, tensor.dim() - 1)
    if draw.chance(0.3):
        other -= tensor.dim()
    return (other, one) if draw.chance(0.3) else (one, other)


def any_dim(draw: Draw, tensor: torch.Tensor) -> int:
    dim = draw.integer(0, tensor.dim() - 1)
    return dim - tensor.dim() if draw.chance(0.3) else dim


# ------------------------------------------------------------------------------------------------------ parts of it


def sliced(draw: Draw, scene: Scene) -> Drawn:
    name = scene.pick(lambda tensor: tensor.dim() > 0)
    index = name and draw_basic_index(draw, scene.values[name].shape)
    return OpCall(target="getitem", args=(Ref(name), index), results=(scene.fresh(),)) if name and index else None


def gathered(draw: Draw, scene: Scene) -> Drawn:
    """Reads by masks and index tensors: a copy with the syntax of a view."""
    name = scene.pick(has_dims)
    index = name and draw_advanced_index(draw, scene, scene.values[name])
    return OpCall(target="getitem", args=(Ref(name), index), results=(scene.fresh(),)) if name and index else None


def narrowed(draw: Draw, scene: Scene) -> Drawn:
    name = scene.pick(has_dims)
    if name is None:
        return None
    dim = any_dim(draw, scene.values[name])
    size = scene.values[name].shape[dim]
    start = draw.integer(0, size - 1)
    return method(scene, name, "narrow", dim, start, draw.integer(1, size - start))


def selected(draw: Draw, scene: Scene) -> Drawn:
    name = scene.pick(has_dims)
    if name is None:
        return None
    dim = any_dim(draw, scene.values[name])
    size = scene.values[name].shape[dim]
    return method(scene, name, "select", dim, draw.integer(-size, size - 1))


def diagonal(draw: Draw, scene: Scene) -> Drawn:
    name = scene.pick(lambda tensor: tensor.dim() >= 2)
    if name is None:
        return None
    offset = draw.choice((0, 1, -1))
    if draw.chance(0.5):
        return method(scene, name, "diagonal", offset)
    return method(scene, name, "diagonal", offset, *two_dims(draw, scene.values[name]))


def unfolded(draw: Draw, scene: Scene) -> Drawn:
    """unfold with windows that overlap, are adjacent, or have gaps."""
    name = scene.pick(lambda tensor: tensor.dim() > 0 and tensor.numel() > 0)
    if name is None:
        return None
    dim = any_dim(draw, scene.values[name])
    size = draw.integer(1, min(scene.values[name].shape[dim], 5))
    return method(scene, name, "unfold", dim, size, draw.choice((1, size, size + 1, 2, 3)))


def divided(draw: Draw, scene: Scene) -> Drawn:
    """Several views at once: split, chunk, tensor_split, unbind."""
    name = scene.pick(lambda tensor: tensor.dim() > 0 and tensor.numel() > 0 and max(tensor.shape) > 1)
    if name is None:
        return None
    tensor = scene.values[name]
    dim = draw.choice([at for at, size in enumerate(tensor.shape) if size > 1])
    size = tensor.shape[dim]
    how = draw.weighted(
        {"chunk": 3, "split": 3, "split list": 1.5, "tensor_split": 2, "tensor_split at": 1, "unbind": 2.5}
    )
    args: tuple[Operand, ...]
    match how:
        case "unbind":
            args, count = (dim,), size
        case "chunk":
            wanted = draw.choice((2, 2, 3))
            args, count = (wanted, dim), math.ceil(size / math.ceil(size / wanted))
        case "split":
            step = draw.integer(1, size)
            args, count = (step, dim), math.ceil(size / step)
        case "split list":
            first = draw.integer(0, size)
            args, count = (Items((first, size - first)), dim), 2
        case "tensor_split":
            count = draw.choice((2, 2, 3))
            args = (count, dim)
        case _:
            at = draw.integer(0, size)
            args, count = (Items((at,), "tuple"), dim), 2
    target = how.split()[0]
    if 2 <= count <= 4:
        results = tuple(scene.fresh() for _ in range(count))
        return OpCall(target=f".{target}", args=(Ref(name), *args), results=results)
    # too many to bind, or only one: use one of them
    whole = method(scene, name, target, *args)
    at = draw.choice((0, -1)) if count == 1 else draw.choice((0, 1, -1))
    return [whole, OpCall(target="getitem", args=(Ref(whole.results[0]), at), results=(scene.fresh(),))]


# -------------------------------------------------------------------------------------------------- the same elements


def rearranged(draw: Draw, scene: Scene) -> Drawn:
    name = scene.pick(lambda tensor: tensor.dim() >= 2)
    if name is None:
        return None
    tensor = scene.values[name]
    how = draw.weighted(
        {"transpose": 4, "permute": 3, "movedim": 1, "swapaxes": 1, "mT": 1.5, "t": 2, "T": 1, "swapdims": 0.5}
    )
    match how:
        case "mT" | "T":
            attribute = "T" if how == "T" and tensor.dim() == 2 else "mT"
            return OpCall(target="getattr", args=(Ref(name), attribute), results=(scene.fresh(),))
        case "t" if tensor.dim() == 2:
            return method(scene, name, "t")
        case "permute":
            left = list(range(tensor.dim()))
            order = [left.pop(draw.integer(0, len(left) - 1)) for _ in range(tensor.dim())]
            return method(scene, name, "permute", ints(order))
        case _:
            return method(scene, name, "transpose" if how == "t" else how, *two_dims(draw, tensor))


def reshaped(draw: Draw, scene: Scene) -> Drawn:
    name = scene.pick(lambda tensor: tensor.numel() > 0)
    if name is None:
        return None
    tensor = scene.values[name]
    numel = tensor.numel()
    how = draw.weighted(
        {"view": 4, "reshape": 3, "flatten": 2, "ravel": 1, "unflatten": 2, "view_as": 0.7, "merge": 1.5, "flat": 2}
    )
    if how == "flat":
        return method(scene, name, "view", -1)
    if how in ("flatten", "ravel") or not tensor.dim():
        return method(scene, name, "ravel" if how == "ravel" else "flatten")
    if how == "view_as":
        other = scene.pick(lambda found: found.numel() == numel)
        return method(scene, name, "view_as", Ref(other)) if other else None
    if how == "merge" and tensor.dim() >= 2:
        dim = draw.integer(0, tensor.dim() - 2)
        return method(scene, name, "flatten", dim, dim + 1)
    if how == "unflatten":
        dim = any_dim(draw, tensor)
        return method(scene, name, "unflatten", dim, ints(_factors(draw, tensor.shape[dim])))
    shape = list(_factors(draw, numel))
    if len(shape) == 2 and draw.chance(0.5):
        shape = [*_factors(draw, shape[0]), shape[1]]
    if draw.chance(0.3):
        shape[draw.integer(0, len(shape) - 1)] = -1
    return method(scene, name, "view" if how == "view" else "reshape", ints(shape))


def squeezed(draw: Draw, scene: Scene) -> Drawn:
    has_one = draw.chance(0.7)
    name = scene.pick(lambda tensor: 1 in tensor.shape if has_one else tensor.dim() > 0)
    if name is None:
        return None
    ones = [dim for dim, size in enumerate(scene.values[name].shape) if size == 1]
    how = draw.choice(("dim", "all", "dims"))
    if how == "all" or not ones:
        return method(scene, name, "squeeze")
    return method(scene, name, "squeeze", draw.choice(ones) if how == "dim" else ints(ones[:2]))


def unsqueezed(draw: Draw, scene: Scene) -> Drawn:
    name = scene.pick()
    if name is None:
        return None
    rank = scene.values[name].dim()
    return method(scene, name, "unsqueeze", draw.integer(-rank - 1, rank))


def expanded(draw: Draw, scene: Scene) -> Drawn:
    name = scene.pick(lambda tensor: tensor.numel() <= 512 and tensor.dim() <= 5)
    if name is None:
        return None
    shape = [draw.choice((2, 3)) if size == 1 and draw.chance(0.8) else size for size in scene.values[name].shape]
    has_more = draw.chance(0.5) or shape == [*scene.values[name].shape]
    sizes = [draw.choice((2, 1, 3)), *shape] if has_more else shape
    how = draw.choice(("expand", "expand", "broadcast_to"))
    if how == "expand" and draw.chance(0.3):
        sizes = [
            -1 if at >= len(sizes) - len(shape) and draw.chance(0.5) and size != 1 else size
            for at, size in enumerate(sizes)
        ]
        sizes = [size if size != -1 or _is_kept(scene, name, at, len(sizes)) else 2 for at, size in enumerate(sizes)]
    return method(scene, name, how, ints(sizes))


def _is_kept(scene: Scene, name: str, at: int, rank: int) -> bool:
    """Whether expand may use -1 for this dimension, since it does not change."""
    return at >= rank - scene.values[name].dim()


def as_strided(draw: Draw, scene: Scene) -> Drawn:
    """as_strided with any layout inside initialized memory."""
    name = scene.pick(lambda tensor: _written_room(scene, tensor) >= 4)
    if name is None:
        return None
    room = _written_room(scene, scene.values[name])
    offset = draw.integer(0, room // 2)
    rows, columns = draw.integer(1, 4), draw.integer(1, 4)
    step = draw.choice((1, 2, columns))
    row_step = draw.choice((columns * step, 1, columns, columns + 1, 0))
    if offset + (rows - 1) * row_step + (columns - 1) * step >= room:
        return None
    args: tuple[Operand, ...] = (ints((rows, columns)), ints((row_step, step)))
    return method(scene, name, "as_strided", *args, *((offset,) if draw.chance(0.7) else ()))


def _written_room(scene: Scene, tensor: torch.Tensor) -> int:
    """The number of initialized elements at the storage's start: all for arguments, the tensor's own for results.

    The storage of a mean loss has room for every element's loss, but eager writes only one element.
    """
    room = tensor.untyped_storage().nbytes() // tensor.element_size()
    if any(share_storage(tensor, scene.values[name]) for name in scene.arguments if name in scene.values):
        return room
    base = tensor if tensor._base is None else tensor._base
    reach = extent(base.shape, base.stride(), int(base.storage_offset()))
    return min(room, reach * base.element_size() // tensor.element_size())


def aliased(draw: Draw, scene: Scene) -> Drawn:
    """A view of the whole tensor, a detached view, or the tensor itself."""
    name = scene.pick()
    if name is None:
        return None
    how = draw.weighted({"detach": 4, "alias": 2, "view_as": 1, "[:]": 1.5, "contiguous": 1, "requires_grad_": 0.3})
    if how == "[:]" and scene.values[name].dim():
        return OpCall(target="getitem", args=(Ref(name), Expr(":")), results=(scene.fresh(),))
    if how == "alias":
        return OpCall(target="torch.ops.aten.alias", args=(Ref(name),), results=(scene.fresh(),))
    if how == "view_as":
        return method(scene, name, "view_as", Ref(name))
    if how == "requires_grad_":
        return method(scene, name, "requires_grad_", False) if not scene.values[name].requires_grad else None
    return method(scene, name, "contiguous" if how == "contiguous" else "detach")


def complex_parts(draw: Draw, scene: Scene) -> Drawn:
    name = scene.pick(lambda tensor: tensor.is_complex())
    if name is None:
        name = scene.pick(lambda tensor: tensor.dtype in (torch.float32, torch.float64) and tensor.shape[-1:] == (2,))
        if name is None:
            return None
        return OpCall(target="torch.view_as_complex", args=(Ref(name),), results=(scene.fresh(),))
    how = draw.weighted(
        {"real": 3, "imag": 3, "view_as_real": 2, "conj": 3, "resolve_conj": 0.5, "conj imag": 0.7, "mH": 0.5}
    )
    match how:
        case "view_as_real" if not scene.values[name].is_conj():
            return OpCall(target="torch.view_as_real", args=(Ref(name),), results=(scene.fresh(),))
        case "conj imag":
            conjugate = method(scene, name, "conj")
            return [
                conjugate,
                OpCall(target="getattr", args=(Ref(conjugate.results[0]), "imag"), results=(scene.fresh(),)),
            ]
        case "conj" | "resolve_conj":
            return method(scene, name, how)
        case "mH" if scene.values[name].dim() >= 2:
            return OpCall(target="getattr", args=(Ref(name), "mH"), results=(scene.fresh(),))
        case _:
            return OpCall(
                target="getattr", args=(Ref(name), "imag" if how == "imag" else "real"), results=(scene.fresh(),)
            )


def other_dtype(draw: Draw, scene: Scene) -> Drawn:
    """A view with another dtype. Only for arguments and their views, since the last bits of computed values may differ."""
    arguments = {scene.values[name].untyped_storage()._cdata for name in scene.arguments if name in scene.values}

    def fits(tensor: torch.Tensor) -> bool:
        return (
            not tensor.is_complex()
            and not tensor.is_conj()
            and not tensor.is_neg()
            and tensor.dtype is not torch.bool
            and tensor.untyped_storage()._cdata in arguments
            and (not tensor.is_floating_point() or tensor.element_size() > 1)
            and (not tensor.is_floating_point() or bool(torch.isfinite(tensor.detach()).all()))
        )

    name = scene.pick(fits)
    if name is None:
        return None
    tensor = scene.values[name]
    size = tensor.element_size()
    sizes = [size] if draw.chance(0.7) or not tensor.dim() else [other for other in (1, 2, 4, 8) if other != size]
    options = [dtype for dtype in _BITS[draw.choice(sizes)] if getattr(torch, dtype) is not tensor.dtype]
    # to integers, or between floats and integers of one size; other floats would contain NaN
    options = [dtype for dtype in options if "int" in dtype or (size == 4 and dtype == "float32")]
    return method(scene, name, "view", Expr(f"torch.{draw.choice(options)}")) if options else None


# -------------------------------------------------------------------------------------------------------- copies of it


def relaid(draw: Draw, scene: Scene) -> Drawn:
    """Copies with another memory format."""
    name = scene.pick(lambda tensor: tensor.dim() > 0)
    if name is None:
        return None
    rank = scene.values[name].dim()
    formats = ["contiguous_format", "preserve_format"]
    formats += ["channels_last"] if rank == 4 else ["channels_last_3d"] if rank == 5 else []
    memory_format = Expr(f"torch.{draw.choice(formats)}")
    how = draw.weighted({"contiguous": 4, "clone": 2, "clone as": 2, "contiguous as": 1})
    if how in ("contiguous", "clone"):
        return method(scene, name, how)
    if how == "contiguous as" and "preserve" in memory_format.text:
        return None
    return method(scene, name, how.split()[0], memory_format=memory_format)


def relaid_and_reduced(draw: Draw, scene: Scene) -> Drawn:
    """`x.t().contiguous().argmin()`: a reduction that counts elements in an order that is not the one in memory."""
    name = scene.pick(lambda tensor: tensor.dim() >= 2 and tensor.numel() > 0 and not tensor.is_complex())
    if name is None:
        return None
    tensor = scene.values[name]
    turned = method(scene, name, "transpose", *two_dims(draw, tensor))
    copied = method(scene, turned.results[0], draw.choice(("contiguous", "contiguous", "clone")))
    how = draw.weighted({"argmin": 3, "argmax": 3, "cumsum": 1, "flatten": 1, "sum": 1, "amax": 1})
    if tensor.dtype is torch.bool and how.startswith("arg"):
        how = "sum"
    dims: tuple[Operand, ...] = ()
    if how == "cumsum" or (how != "flatten" and draw.chance(0.4)):
        dims = (any_dim(draw, tensor),)
    return [turned, copied, method(scene, copied.results[0], how, *dims)]


def scattered(draw: Draw, scene: Scene) -> Drawn:
    """A copy with one part replaced, as functionalization makes it from a write through a view."""
    name = scene.pick(has_dims)
    if name is None:
        return None
    tensor = scene.values[name]
    how = draw.weighted(
        {"slice_scatter": 4, "select_scatter": 2, "diagonal_scatter": 1.5, "index_copy": 1, "index_fill": 1}
    )
    dim = any_dim(draw, tensor)
    size = tensor.shape[dim]
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = list(tensor.shape)
    match how:
        case "select_scatter":
            del shape[dim % tensor.dim()]
            part = scene.tensor(shape=shape, dtype=dtype)
            return method(scene, name, how, Ref(part), dim, draw.integer(-size, size - 1))
        case "diagonal_scatter" if tensor.dim() >= 2:
            diagonal_of = torch.empty(shape, device="meta").diagonal()
            return method(scene, name, how, Ref(scene.tensor(shape=tuple(diagonal_of.shape), dtype=dtype)))
        case "index_fill":
            return method(
                scene, name, how, dim, Expr(f"torch.tensor([{draw.integer(0, size - 1)}])"), scene.number(tensor)
            )
        case _:
            start = draw.integer(0, size - 1)
            end = draw.integer(start + 1, size)
            step = draw.choice((1, 1, 2))
            shape[dim] = len(range(start, end, step))
            part = Ref(scene.tensor(shape=shape, dtype=dtype))
            return method(scene, name, "slice_scatter", part, dim, start, end, step)


def _factors(draw: Draw, number: int) -> tuple[int, int]:
    """Two factors of a size."""
    if number == 0:
        return (0, draw.choice((1, 2)))
    divisors = [divisor for divisor in range(1, min(number, 64) + 1) if number % divisor == 0]
    one = draw.choice(divisors)
    return (one, number // one) if draw.chance(0.5) else (number // one, one)


_TABLE: tuple[tuple[Callable[[Draw, Scene], Drawn], float], ...] = (
    (sliced, 5),
    (gathered, 1.5),
    (narrowed, 1.5),
    (selected, 2),
    (diagonal, 1.5),
    (unfolded, 1.5),
    (divided, 2.5),
    (rearranged, 4),
    (reshaped, 4),
    (squeezed, 1.5),
    (unsqueezed, 1.5),
    (expanded, 2),
    (as_strided, 1.5),
    (aliased, 1.5),
    (complex_parts, 1.5),
    (other_dtype, 0.7),
    (relaid, 1.5),
    (relaid_and_reduced, 1),
    (scattered, 1.5),
)
RULES = tuple(Rule(name=rule.__name__, family="view", draw_statements=rule, weight=weight) for rule, weight in _TABLE)
