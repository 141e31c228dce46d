"""Statements that write: in place, through an index, into `out=`, into lists, through views and aliases of a tensor, into state.

A write has one meaning or it is not drawn: never through memory that overlaps itself, never from operands that are partly
overwritten, never to places that are named twice, never where autograd has saved the old value and is not told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fuzz.draw import Draw
from fuzz.geometry import partly_overlap, share_memory, share_storage
from fuzz.opspec import OPERATORS
from fuzz.scene import Scene, dtype_name
from fuzz.strategies.indices import draw_basic_index, draw_mask, draw_positions, draw_slice
from fuzz.strategies.rule import Rule
from fuzz.strategies.views import any_dim, has_dims, two_dims
from fuzz.structure import Expr, Items, OpCall, Operand, Ref, Statement

Drawn = Statement | Sequence[Statement] | None
_OPERATORS = {"add_": "operator.iadd", "sub_": "operator.isub", "mul_": "operator.imul", "div_": "operator.itruediv"}


def write(name: str, how: str, *args: Operand, keyword: tuple[str, Operand] | None = None, result: str = "") -> OpCall:
    """`name.how(*args)`, with one keyword and bound to a name where asked for."""
    return OpCall(
        target=f".{how}",
        args=(Ref(name), *args),
        kwargs=(keyword,) if keyword else (),
        results=(result,) if result else (),
    )


def is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _is_float8(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() == 1


# ------------------------------------------------------------------------------------------------------ whole tensors


def arithmetic(draw: Draw, scene: Scene) -> Drawn:
    """add_, mul_ and their operators, with a tensor that broadcasts, a number, itself, or another dtype."""
    name = scene.target(lambda tensor: not _is_float8(tensor))
    if name is None:
        return None
    tensor = scene.values[name]
    how = draw.weighted({"add_": 5, "mul_": 5, "sub_": 2, "div_": 1, "copy_": 2})
    if tensor.dtype is torch.bool:
        how = draw.choice(("logical_and_", "logical_or_", "logical_xor_", "copy_"))
    if how == "div_" and not is_inexact(tensor):
        how = "mul_"
    operand = Ref(name) if draw.chance(0.08) else scene.operand_for(name)
    if not isinstance(operand, Ref):
        how = {"copy_": "fill_", "logical_and_": "fill_", "logical_or_": "fill_", "logical_xor_": "fill_"}.get(how, how)
    if how == "div_" and not isinstance(operand, Ref):
        operand = 2.0
    if how in _OPERATORS and draw.chance(0.3):
        return OpCall(target=_OPERATORS[how], args=(Ref(name), operand))
    keyword = ("alpha", 2) if how in ("add_", "sub_") and draw.chance(0.15) else None
    return write(name, how, operand, keyword=keyword, result=scene.fresh() if draw.chance(0.2) else "")


def unary(draw: Draw, scene: Scene) -> Drawn:
    name = scene.target(lambda tensor: not _is_float8(tensor))
    if name is None:
        return None
    tensor = scene.values[name]
    if tensor.dtype is torch.bool:
        return write(name, draw.choice(("logical_not_", "zero_")))
    options: list[tuple[str, tuple[Operand, ...]]] = [
        ("neg_", ()), ("zero_", ()), ("fill_", (scene.number(tensor),)), ("square_", ()), ("conj_physical_", ()),
    ]  # fmt: skip
    if not tensor.is_complex():
        options += [
            ("abs_", ()),
            ("clamp_", (-1, 1) if tensor.dtype is not torch.uint8 else (0, 1)),
            ("clamp_min_", (0,)),
            ("sign_", ()),
        ]
    if tensor.is_floating_point():
        options += [
            ("sin_", ()), ("sigmoid_", ()), ("tanh_", ()), ("relu_", ()), ("floor_", ()), ("exp_", ()), ("sqrt_", ()),
            ("round_", ()), ("nan_to_num_", ()), ("leaky_relu_", ()), ("hardtanh_", ()), ("frac_", ()),
        ]  # fmt: skip
    how, args = draw.choice(options)
    if how in ("leaky_relu_", "hardtanh_"):
        how = f"torch.nn.functional.{how}"
        return OpCall(target=how, args=(Ref(name),), results=(scene.fresh(),))
    return write(name, how, *args, result=scene.fresh() if draw.chance(0.15) else "")


def filled(draw: Draw, scene: Scene) -> Drawn:
    """One number everywhere: allowed where elements share a place as well."""
    name = scene.pick(lambda tensor: tensor.numel() > 0 and not scene.is_saved_elsewhere(tensor))
    if name is None:
        return None
    return write(name, "zero_") if draw.chance(0.5) else write(name, "fill_", scene.number(scene.values[name]))


def ternary(draw: Draw, scene: Scene) -> Drawn:
    name = scene.target(lambda tensor: is_inexact(tensor) and not _is_float8(tensor))
    if name is None:
        return None
    one, other = _beside(draw, scene, name), _beside(draw, scene, name)
    how = draw.weighted({"addcmul_": 2, "lerp_": 2, "addcdiv_": 0.5})
    if how == "lerp_":
        return write(name, how, one, 0.5)
    return write(name, how, one, other, keyword=("value", 0.5) if draw.chance(0.5) else None)


def triangular(draw: Draw, scene: Scene) -> Drawn:
    name = scene.target(lambda tensor: tensor.dim() >= 2 and not _is_float8(tensor))
    if name is None:
        return None
    how = draw.choice(("tril_", "triu_", "fill_diagonal_", "cumsum_", "cumprod_"))
    if how.startswith("cum"):
        return write(name, how, any_dim(draw, scene.values[name]))
    if how == "fill_diagonal_":
        return write(name, how, scene.number(scene.values[name]))
    return write(name, how, draw.choice((0, 1, -1)))


def random_write(draw: Draw, scene: Scene) -> Drawn:
    """Random numbers in place."""
    if scene.is_random or not scene.settings.is_random:
        return None
    name = scene.target(lambda tensor: tensor.is_floating_point() and not _is_float8(tensor))
    if name is None:
        return None
    how = draw.choice(("uniform_", "normal_", "bernoulli_", "exponential_", "random_", "log_normal_", "geometric_"))
    scene.is_random = True
    args: tuple[Operand, ...] = {"bernoulli_": (0.5,), "random_": (5,), "geometric_": (0.4,)}.get(how, ())
    return write(name, how, *args)


def catalogued(draw: Draw, scene: Scene) -> Drawn:
    """An operator of the catalogue that writes."""
    steering = scene.settings.steering
    weights = {
        name: spec.weight * steering.factor(f"op:{name}")
        for name, spec in OPERATORS.items()
        if spec.writes and not spec.is_random
    }
    return OPERATORS[draw.weighted(weights)].draw_call(draw, scene) if weights else None


# ------------------------------------------------------------------------------------------------------- parts of them


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
        return OpCall(target="setitem", args=(Ref(name), index, _source(draw, scene, part, tensor)))
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
    name = scene.target(lambda tensor: not _is_float8(tensor))
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
            return write(name, how, Ref(mask), _beside(draw, scene, name))
        case "where" if is_whole:
            chosen = OpCall(
                target="torch.where", args=(Ref(mask), Ref(name), _beside(draw, scene, name)), results=(scene.fresh(),)
            )
            return [chosen, write(name, "copy_", Ref(chosen.results[0]))]
        case _:
            return OpCall(target="setitem", args=(Ref(name), Ref(mask), scene.number(tensor)))


def indexed(draw: Draw, scene: Scene) -> Drawn:
    """By positions: each at most once, unless what is written is added and the sum is exact."""
    name = scene.target(lambda tensor: has_dims(tensor) and not _is_float8(tensor))
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
    name = scene.target(lambda tensor: has_dims(tensor) and not _is_float8(tensor))
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
    name = scene.target(lambda tensor: has_dims(tensor) and not _is_float8(tensor))
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


# ----------------------------------------------------------------------------------------------- several, and elsewhere


def out_argument(draw: Draw, scene: Scene) -> Drawn:
    """`torch.add(a, b, out=c)`: of the right shape, dtype and without a gradient."""
    name = scene.target(
        lambda tensor: not tensor.requires_grad and tensor.dtype is not torch.bool and not _is_float8(tensor)
    )
    if name is None:
        return None
    tensor = scene.values[name]
    one, other = (_beside(draw, scene, name, requires_grad=False) for _ in range(2))
    how = draw.weighted(
        {"add": 3, "mul": 3, "sub": 1, "neg": 1, "cat": 1.5, "clone": 1, "where": 1, "matmul": 0.5, "sum": 1}
    )
    kwargs = (("out", Ref(name)),)
    results = (scene.fresh(),) if draw.chance(0.4) else ()
    args: tuple[Operand, ...]
    match how:
        case "neg":
            args = (one,)
        case "clone":
            how, args = "ops.aten.clone", (one,)
        case "cat" if tensor.dim():
            args = (Items((one,)), 0)
        case "where":
            args = (Ref(scene.tensor(shape=tuple(tensor.shape), dtype="bool")), one, other)
        case "sum" if is_inexact(tensor):
            wide = scene.new_tensor((draw.choice((2, 3)), *tensor.shape), dtype_name(tensor), requires_grad=False)
            args = (Ref(wide), 0)
        case "matmul" if tensor.dim() == 2:
            rows, columns = tensor.shape
            inner = draw.choice((2, 3))
            left = scene.new_tensor((rows, inner), dtype_name(tensor), requires_grad=False)
            args = (Ref(left), Ref(scene.new_tensor((inner, columns), dtype_name(tensor), requires_grad=False)))
        case _:
            how, args = how if how in ("add", "mul", "sub") else "add", (one, other)
    target = "torch.ops.aten.clone.out" if how == "ops.aten.clone" else f"torch.{how}"
    return OpCall(target=target, args=args, kwargs=kwargs, results=results)


def foreach(draw: Draw, scene: Scene) -> Drawn:
    """Several tensors in place at once, none of which shares memory with another."""
    names: list[str] = []
    for _ in range(draw.choice((2, 2, 3))):
        name = scene.target(
            lambda tensor: (
                is_inexact(tensor)
                and not _is_float8(tensor)
                and not any(share_storage(tensor, scene.values[taken]) for taken in names)
            )
        )
        if name is not None:
            names.append(name)
    if not names:
        return None
    targets = Items(tuple(Ref(name) for name in names))
    how = draw.weighted({"add": 3, "mul": 3, "zero": 1, "neg": 1, "copy": 1.5, "addcmul": 1, "sub": 1, "lerp": 0.5})
    args: tuple[Operand, ...]
    if how in ("zero", "neg"):
        args = ()
    elif how == "copy" or draw.chance(0.5) or how in ("addcmul", "lerp"):
        args = (Items(tuple(_beside(draw, scene, name) for name in names)),)
        if how == "addcmul":
            args = (*args, Items(tuple(_beside(draw, scene, name) for name in names)))
        if how == "lerp":
            args = (*args, 0.5)
    else:
        args = (draw.choice((2, 0.5, -1)),)
    return OpCall(target=f"torch._foreach_{how}_", args=(targets, *args))


def reshaped_in_place(draw: Draw, scene: Scene) -> Drawn:
    """Another geometry for the same tensor object."""
    name = scene.pick(lambda tensor: tensor.dim() > 0)
    if name is None:
        return None
    tensor = scene.values[name]
    how = draw.weighted(
        {"unsqueeze_": 3, "squeeze_": 2, "transpose_": 3, "t_": 2, "swapaxes_": 1, "resize_": 1, "as_strided_": 0.7}
    )
    match how:
        case "unsqueeze_":
            return write(name, how, draw.integer(0, tensor.dim()))
        case "t_" if tensor.dim() == 2:
            return write(name, how)
        case "transpose_" | "swapaxes_" if tensor.dim() >= 2:
            return write(name, how, *two_dims(draw, tensor))
        case "resize_" if tensor.numel() > 1 and tensor.is_contiguous() and not tensor.requires_grad:
            return write(name, how, draw.choice((tensor.numel() // 2, tensor.numel() - 1)))
        case "as_strided_" if tensor.numel() >= 4 and tensor.is_contiguous():
            half = tensor.numel() // 2
            return write(
                name, how, Items((half,), "tuple"), Items((draw.choice((1, 2)),), "tuple"), int(tensor.storage_offset())
            )
        case _:
            return write(name, "squeeze_")


def behind_autograd(draw: Draw, scene: Scene) -> Drawn:
    """Through `.data` and `.detach()`: nothing that autograd has saved changes unseen."""
    how = draw.choice(("detach", "data", "detach"))

    def fits(tensor: torch.Tensor) -> bool:
        if _is_float8(tensor) or scene.is_saved_elsewhere(tensor):
            return False
        return how == "detach" or not _is_read(scene, tensor)

    name = scene.target(fits)
    if name is None:
        return None
    hidden = (
        OpCall(target="getattr", args=(Ref(name), "data"), results=(scene.fresh(),))
        if how == "data"
        else OpCall(target=".detach", args=(Ref(name),), results=(scene.fresh(),))
    )
    tensor = scene.values[name]
    change = draw.choice(("add_", "mul_", "fill_")) if tensor.dtype is not torch.bool else "fill_"
    return [hidden, write(hidden.results[0], change, scene.number(tensor))]


def _is_read(scene: Scene, tensor: torch.Tensor) -> bool:
    """Whether a statement has read memory of this storage in a computation that autograd records."""
    sharing = {name for name, value in scene.values.items() if value.requires_grad and share_storage(value, tensor)}
    return any(sharing.intersection(statement.uses) for statement in scene.statements)


def state_written(draw: Draw, scene: Scene) -> Drawn:
    """A parameter or buffer of the module, changed under no_grad or, where it wants no gradient, as it is."""
    name = scene.target(
        lambda tensor: any(tensor is scene.values[name] for name in scene.values if name.startswith("self."))
    )
    if name is None or not name.startswith("self."):
        return None
    tensor = scene.values[name]
    how = draw.choice(("add_", "mul_", "copy_", "zero_")) if tensor.dtype is not torch.bool else "zero_"
    if how == "zero_":
        return write(name, how)
    operand = scene.operand_for(name)
    if how == "copy_" and not isinstance(operand, Ref):
        how = "fill_"
    return write(name, how, operand)


# ------------------------------------------------------------------------------------------------------------- operands


def _beside(draw: Draw, scene: Scene, name: str, *, requires_grad: bool | None = None) -> Ref:
    """A tensor of the shape and dtype of the target that is not partly overwritten with it."""
    tensor = scene.values[name]
    found = scene.pick(
        lambda other: (
            other is not tensor
            and other.shape == tensor.shape
            and other.dtype is tensor.dtype
            and not partly_overlap(other, tensor)
            and (requires_grad is None or other.requires_grad is requires_grad)
        )
    )
    return Ref(found or scene.new_tensor(tuple(tensor.shape), dtype_name(tensor), requires_grad=requires_grad))


def _source(draw: Draw, scene: Scene, part: torch.Tensor, whole: torch.Tensor) -> Ref:
    """A tensor to write into a part: of its shape, or one that broadcasts to it; of its dtype, or one that can be cast."""
    found = scene.pick(
        lambda other: (
            other.dim() <= part.dim()
            and all(m in (1, n) for m, n in zip(reversed(other.shape), reversed(part.shape), strict=False))
            and torch.can_cast(other.dtype, part.dtype)
            and not share_memory(other, whole)
        )
    )
    if found is not None and draw.chance(0.6):
        return Ref(found)
    shape = tuple(part.shape)[1:] if draw.chance(0.2) else tuple(part.shape)
    return Ref(scene.new_tensor(shape, dtype_name(part)))


_TABLE: tuple[tuple[Callable[[Draw, Scene], Drawn], float], ...] = (
    (arithmetic, 5),
    (unary, 3),
    (filled, 1),
    (ternary, 1),
    (triangular, 0.7),
    (random_write, 0.3),
    (catalogued, 3),
    (assigned, 4),
    (shifted, 1.5),
    (masked, 2),
    (indexed, 2),
    (through_view, 3.5),
    (beside_view, 1.5),
    (out_argument, 2),
    (foreach, 1.5),
    (reshaped_in_place, 1.5),
    (behind_autograd, 1),
    (state_written, 1),
)
RULES = tuple(Rule(name=rule.__name__, family="write", draw_statements=rule, weight=weight) for rule, weight in _TABLE)
