"""Statements that write elsewhere than to a tensor by its name: `out=`, lists, geometry, behind autograd's back, state."""

from __future__ import annotations

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.geometry import share_storage
from fuzz.draw.scene import Scene, dtype_name
from fuzz.program.structure import Items, OpCall, Operand, Ref
from fuzz.vocabulary.statements.views import two_dims
from fuzz.vocabulary.statements.write_operands import Drawn, beside, is_float8, is_inexact, write


def out_argument(draw: Draw, scene: Scene) -> Drawn:
    """`torch.add(a, b, out=c)`: of the right shape, dtype and without a gradient."""
    name = scene.target(
        lambda tensor: not tensor.requires_grad and tensor.dtype is not torch.bool and not is_float8(tensor)
    )
    if name is None:
        return None
    tensor = scene.values[name]
    one, other = (beside(draw, scene, name, requires_grad=False) for _ in range(2))
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
                and not is_float8(tensor)
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
        args = (Items(tuple(beside(draw, scene, name) for name in names)),)
        if how == "addcmul":
            args = (*args, Items(tuple(beside(draw, scene, name) for name in names)))
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
    """Write through `.data` or `.detach()`, so that nothing that autograd has saved changes unseen."""
    how = draw.choice(("detach", "data", "detach"))

    def fits(tensor: torch.Tensor) -> bool:
        if is_float8(tensor) or scene.is_saved_elsewhere(tensor):
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
