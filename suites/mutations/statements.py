"""The table of statements: families of small rules, each of which writes one statement for a scene, or None where it cannot.

A rule may write something that eager refuses: the generator runs it, and then leaves it out.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from fuzz.draw.geometry import share_memory, share_storage
from suites.mutations.scene import Scene, is_inexact

Rule = Callable[[Scene], str | None]
_OPERATORS = {"add_": "+=", "mul_": "*=", "sub_": "-="}


# -------------------------------------------------------------------------------------------------------------- views


def _has_dims(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 0 and tensor.numel() > 0


def _index_text(scene: Scene, tensor: torch.Tensor) -> str:
    """An index made of slices and numbers, such as `[:, 1:3]`."""
    dim = scene.rng.randrange(tensor.dim())
    length = tensor.shape[dim]
    at = scene.rng.randrange(length)
    part = scene.choice((f"{at}:", f":{at + 1}", "::2", "1:", ":-1", f"{at}", f"{at - length}:", "1::2"))
    prefix = "..., " if dim == tensor.dim() - 1 and dim and scene.chance(0.3) else ":, " * dim
    return f"[{prefix}{part}]"


def index(scene: Scene) -> str | None:
    name = scene.pick(_has_dims)
    return name and f"{scene.fresh()} = {name}{_index_text(scene, scene.values[name])}"


def narrow(scene: Scene) -> str | None:
    name = scene.pick(_has_dims)
    if name is None:
        return None
    dim = scene.rng.randrange(scene.values[name].dim())
    length = scene.values[name].shape[dim]
    start = scene.rng.randrange(length)
    return f"{scene.fresh()} = {name}.narrow({dim}, {start}, {scene.rng.randint(1, length - start)})"


def select(scene: Scene) -> str | None:
    name = scene.pick(_has_dims)
    if name is None:
        return None
    dim = scene.rng.randrange(scene.values[name].dim())
    return f"{scene.fresh()} = {name}.select({dim}, {scene.rng.randrange(scene.values[name].shape[dim])})"


def rearranged(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.dim() >= 2)
    if name is None:
        return None
    dims = scene.values[name].dim()
    one, other = scene.rng.sample(range(dims), 2)
    order = ", ".join(map(str, scene.rng.sample(range(dims), dims)))
    how = scene.choice(
        (
            f"transpose({one}, {other})",
            f"permute({order})",
            "mT",
            f"movedim({one}, {other})",
            f"swapaxes({one}, {other})",
            "t()" if dims == 2 else f"transpose({one}, {other})",
        )
    )
    return f"{scene.fresh()} = {name}.{how}"


def reshaped(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.numel() > 0)
    if name is None:
        return None
    tensor = scene.values[name]
    numel = tensor.numel()
    divisors = [number for number in range(1, numel + 1) if numel % number == 0]
    one = scene.choice(divisors)
    dim = scene.rng.randint(0, tensor.dim())
    how = scene.choice(
        (
            "view(-1)",
            f"view({one}, {numel // one})",
            f"reshape({one}, -1)",
            "flatten()",
            "ravel()",
            f"unsqueeze({dim})",
            "squeeze()",
            "unflatten(0, (-1, 1))" if tensor.dim() else "view(1)",
            "view_as(" + name + ")",
            "contiguous()",
            "expand_as(" + name + ")",
        )
    )
    return f"{scene.fresh()} = {name}.{how}"


def expanded(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.numel() <= 30)
    if name is None:
        return None
    shape = list(scene.values[name].shape)
    sizes = [scene.choice((2, 3)) if length == 1 else -1 for length in shape]
    if scene.chance(0.5):
        sizes.insert(0, 2)
    return f"{scene.fresh()} = {name}.expand({', '.join(map(str, sizes))})" if sizes else None


def diagonal(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.dim() >= 2)
    return name and f"{scene.fresh()} = {name}.diagonal({scene.choice((0, 1, -1))})"


def split(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.dim() > 0 and max(tensor.shape) > 1 and tensor.numel() > 0)
    if name is None:
        return None
    dim = scene.choice([at for at, length in enumerate(scene.values[name].shape) if length > 1])
    how = scene.choice(("chunk", "split", "tensor_split", "unbind"))
    if how == "unbind":
        return f"{scene.fresh()} = {name}.unbind({dim})[{scene.choice((0, 1, -1))}]"
    first = scene.fresh()
    second = f"v{int(first[1:]) + 1}"
    size = math.ceil(scene.values[name].shape[dim] / 2) if how == "split" else 2
    return f"{first}, {second} = {name}.{how}({size}, {dim})"


def unfold(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.dim() > 0 and tensor.shape[-1] >= 2)
    if name is None:
        return None
    size = scene.rng.randint(1, scene.values[name].shape[-1])
    return f"{scene.fresh()} = {name}.unfold({scene.values[name].dim() - 1}, {size}, {scene.choice((1, 2, size))})"


def as_strided(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.untyped_storage().nbytes() >= 4 * tensor.element_size())
    if name is None:
        return None
    tensor = scene.values[name]
    room = tensor.untyped_storage().nbytes() // tensor.element_size()
    offset = scene.rng.randrange(room // 2)
    rows = scene.rng.randint(1, 3)
    columns = scene.rng.randint(1, 3)
    step = scene.choice((1, 2, columns))
    row_step = scene.choice((1, columns, columns * step, columns + 1))
    if offset + (rows - 1) * row_step + (columns - 1) * step >= room:
        return None
    at = scene.choice((f", {offset}", f", {offset}", ""))
    return f"{scene.fresh()} = {name}.as_strided(({rows}, {columns}), ({row_step}, {step}){at})"


def complex_view(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.is_complex())
    if name is None:
        name = scene.pick(lambda tensor: tensor.is_floating_point() and tensor.dim() > 0 and tensor.shape[-1] == 2)
        return name and f"{scene.fresh()} = torch.view_as_complex({name})"
    how = scene.choice(("{0}.real", "{0}.imag", "{0}.conj()", "torch.view_as_real({0})", "{0}.conj().imag"))
    return f"{scene.fresh()} = {how.format(name)}"


def bit_view(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.dtype in (torch.float32, torch.float64, torch.int64, torch.int32))
    if name is None:
        return None
    dtypes = {4: ("int32", "float32"), 8: ("int64", "float64")}[scene.values[name].element_size()]
    return f"{scene.fresh()} = {name}.view(torch.{scene.choice(dtypes)})"


def detached(scene: Scene) -> str | None:
    name = scene.pick()
    return name and f"{scene.fresh()} = {name}.{scene.choice(('detach()', 'data', 'detach()'))}"


# ------------------------------------------------------------------------------------------------------------ values


def computed(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.numel() > 0)
    if name is None:
        return None
    options = [f"{name} * {scene.constant(scene.values[name])}", f"{name} + {scene.operand(name)}", f"{name}.clone()"]
    if is_inexact(scene.values[name]):
        options += [f"{name}.sin()", f"{name} * {scene.operand(name)}", f"{name}.sigmoid()", f"{name}.sum()"]
    return f"{scene.fresh()} = {scene.choice(options)}"


def saved(scene: Scene) -> str | None:
    """Results that backward reads: of themselves, or of what they are made of."""
    name = scene.pick(lambda tensor: tensor.requires_grad and is_inexact(tensor))
    if name is None:
        return None
    how = scene.choice(("{0}.sigmoid()", "{0}.tanh()", "{0} * {0}", "{0}.sin()", "{0} * {1}", "{0}.relu()", "{0} ** 2"))
    return f"{scene.fresh()} = {how.format(name, scene.operand(name))}"


def cast(scene: Scene) -> str | None:
    name = scene.pick()
    if name is None:
        return None
    dtype = scene.choice(("float32", "float64", "int64", "complex64"))
    return f"{scene.fresh()} = {name}.to(torch.{dtype})"


# ----------------------------------------------------------------------------------------------------------- in place


def arithmetic(scene: Scene) -> str | None:
    name = scene.target()
    if name is None:
        return None
    operand = scene.operand(name) if scene.chance(0.5) else scene.constant(scene.values[name])
    how = scene.choice(("add_", "mul_", "sub_", "add_", "mul_", "copy_"))
    if how == "copy_" and not operand.startswith(tuple(scene.values)):
        how = "fill_"
    if scene.chance(0.2) and how in _OPERATORS:
        return f"{name} {_OPERATORS[how]} {operand}"
    return f"{name}.{how}({operand})"


def assigned(scene: Scene) -> str | None:
    name = scene.target(_has_dims)
    if name is None:
        return None
    place = _index_text(scene, scene.values[name])
    part = f"{name}{place}"
    return scene.choice(
        (
            f"{part} = {scene.constant(scene.values[name])}",
            f"{part} += {scene.constant(scene.values[name])}",
            f"{part} = {part} * 2",
            f"{part} = {part}.clone().flip(0)",
        )
    )


def copied(scene: Scene) -> str | None:
    name = scene.target()
    if name is None:
        return None
    operand = scene.operand(name)
    return f"{name}.copy_({operand})" if operand.startswith(tuple(scene.values)) else None


def unary(scene: Scene) -> str | None:
    name = scene.target()
    if name is None:
        return None
    tensor = scene.values[name]
    if tensor.dtype is torch.bool:
        return f"{name}.logical_not_()"
    options = ["neg_()", "abs_()", "zero_()", f"fill_({scene.constant(tensor)})", "clamp_(-1, 1)", "square_()"]
    if tensor.is_floating_point():
        options += ["sin_()", "sigmoid_()", "tanh_()", "relu_()", "floor_()", "clamp_min_(0)", "exp_().clamp_(max=4)"]
    return f"{name}.{scene.choice(options)}"


def filled(scene: Scene) -> str | None:
    """Writes one number everywhere: allowed also where elements share a place."""
    name = scene.pick(lambda tensor: tensor.numel() > 0)
    return name and f"{name}.{scene.choice(('zero_()', f'fill_({scene.constant(scene.values[name])})'))}"


def masked(scene: Scene) -> str | None:
    name = scene.target(lambda tensor: not tensor.is_complex())
    if name is None:
        return None
    tensor = scene.values[name]
    mask = f"{name}.clone() > 0" if tensor.dtype is not torch.bool else f"{name}.clone()"
    constant = scene.constant(tensor)
    return scene.choice(
        (
            f"{name}.masked_fill_({mask}, {constant})",
            f"{name}[{mask}] = {constant}",
            f"{name}.copy_(torch.where({mask}, {name}, {name}.clone()))",
            f"{name}.masked_scatter_({mask}, torch.ones_like({name}))",
        )
    )


def indexed(scene: Scene) -> str | None:
    name = scene.target(lambda tensor: tensor.dim() > 0 and tensor.shape[0] >= 2)
    if name is None:
        return None
    tensor = scene.values[name]
    constant = scene.constant(tensor)
    rows = "torch.tensor([0, 1])"
    slot = f"{name}[:2].clone()"
    return scene.choice(
        (
            f"{name}.index_put_(({rows},), torch.tensor({constant}, dtype={name}.dtype))",
            f"{name}.index_put_((torch.tensor([1, 1]),), {slot}, accumulate=True)",
            f"{name}[{rows}] = {constant}",
            f"{name}.index_fill_(0, {rows}, {constant})",
            f"{name}.index_add_(0, {rows}, {slot})",
            f"{name}.index_copy_(0, {rows}, {slot}.flip(0))",
            f"{name}.scatter_(0, torch.zeros_like({name}[:1], dtype=torch.int64), {constant})",
            f"{name}.scatter_add_(0, torch.ones_like({name}[:2], dtype=torch.int64), {slot})",
        )
    )


def shaped_write(scene: Scene) -> str | None:
    name = scene.target(lambda tensor: tensor.dim() >= 2)
    if name is None:
        return None
    constant = scene.constant(scene.values[name])
    return f"{name}.{scene.choice(('tril_()', 'triu_()', f'fill_diagonal_({constant})', 'cumsum_(0)'))}"


def ternary(scene: Scene) -> str | None:
    name = scene.target(is_inexact)
    if name is None:
        return None
    one, other = (scene.operand(name, same_dtype=True, same_shape=True) for _ in range(2))
    return scene.choice(
        (f"{name}.addcmul_({one}, {other}, value=0.5)", f"{name}.lerp_({one}, 0.5)", f"{name}.addcmul_({one}, {one})")
    )


def functional_in_place(scene: Scene) -> str | None:
    name = scene.target(lambda tensor: tensor.is_floating_point())
    how = scene.choice(("relu({0}, inplace=True)", "hardtanh({0}, inplace=True)", "leaky_relu({0}, 0.5, inplace=True)"))
    return name and f"{scene.fresh()} = functional.{how.format(name)}"


def out_argument(scene: Scene) -> str | None:
    name = scene.target(lambda tensor: not tensor.requires_grad)
    if name is None:
        return None
    one, other = (scene.operand(name, same_shape=True) for _ in range(2))
    if any(operand.removesuffix(".clone()") not in scene.values for operand in (one, other)):
        return None
    if any(scene.values[operand.removesuffix(".clone()")].requires_grad for operand in (one, other)):
        return f"torch.add({one}.detach(), {other}.detach(), out={name})"
    result = f"{scene.fresh()} = " if scene.chance(0.5) else ""
    how = scene.choice(
        (
            f"add({one}, {other}, out={name})",
            f"mul({one}, {other}, out={name})",
            f"neg({one}, out={name})",
            f"sub({one}, 1, out={name})",
            f"where({one} == {other}, {one}, {other}, out={name})",
            f"cat([{one}], out={name})",
            f"sum({_apart(scene, one, name)}, 0, keepdim=True, out={name}[:1])",
        )
    )
    return f"{result}torch.{how}"


def _apart(scene: Scene, operand: str, target: str) -> str:
    """The operand as memory of its own: a reduction reads an element after others have been written."""
    tensor = scene.values.get(operand)
    is_shared = tensor is not None and share_storage(tensor, scene.values[target])
    return f"{operand}.clone()" if is_shared else operand


def foreach(scene: Scene) -> str | None:
    """On tensors that lie apart, by what none of them changes: the order in which a kernel takes them is its own affair."""
    names: list[str] = []
    for name in filter(None, (scene.target(is_inexact) for _ in range(scene.choice((2, 2, 3))))):
        if not any(share_memory(scene.values[name], scene.values[other]) for other in names):
            names.append(name)
    if not names:
        return None
    listed = f"[{', '.join(names)}]"
    others = f"[{', '.join(_unwritten(scene, scene.operand(name, same_shape=True), names) for name in names)}]"
    how = scene.choice(
        (
            f"_foreach_add_({listed}, 1)",
            f"_foreach_mul_({listed}, 2)",
            f"_foreach_add_({listed}, {others})",
            f"_foreach_mul_({listed}, {others})",
            f"_foreach_zero_({listed})",
            f"_foreach_neg_({listed})",
            f"_foreach_copy_({listed}, {others})",
        )
    )
    return f"torch.{how}"


def _unwritten(scene: Scene, operand: str, written: list[str]) -> str:
    """The operand, or a copy of it where it shares memory with what is written."""
    value = scene.values.get(operand)
    if value is None or not any(share_memory(value, scene.values[name]) for name in written):
        return operand
    return f"{operand}.clone()"


def random_write(scene: Scene) -> str | None:
    name = scene.target(lambda tensor: tensor.is_floating_point())
    if name is None:
        return None
    how = scene.choice(("uniform_()", "normal_()", "bernoulli_(0.5)", "exponential_()", "random_(5)"))
    return f"{name}.{how}"


def random_value(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.is_floating_point() and tensor.numel() > 0)
    how = scene.choice(("torch.rand_like({0})", "functional.dropout({0}, 0.5)", "torch.bernoulli({0}.sigmoid())"))
    return name and f"{scene.fresh()} = {how.format(name)}"


# ------------------------------------------------------------------------------------------------- metadata and storage


def metadata(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.dim() > 0)
    if name is None:
        return None
    dims = scene.values[name].dim()
    options = [f"unsqueeze_({scene.rng.randint(0, dims)})", "squeeze_()"]
    if dims >= 2:
        one, other = scene.rng.sample(range(dims), 2)
        options += [f"transpose_({one}, {other})", f"swapaxes_({one}, {other})", f"transpose_({other}, {one})"]
    if dims == 2:
        options += ["t_()", "t_()"]
    return f"{name}.{scene.choice(options)}"


def as_strided_in_place(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.dim() > 0 and tensor.numel() >= 4)
    if name is None:
        return None
    half = scene.values[name].numel() // 2
    return f"{name}.as_strided_(({half},), ({scene.choice((1, 2))},), {scene.values[name].storage_offset()})"


def resized(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.numel() >= 2)
    if name is None:
        return None
    numel = scene.values[name].numel()
    if scene.chance(0.3):  # larger: what is new has no value before it is written
        return f"{name}.resize_({numel + 2}).fill_({scene.constant(scene.values[name])})"
    return f"{name}.resize_({scene.choice((numel // 2, numel - 1, numel))})"


def set_to(scene: Scene) -> str | None:
    name = scene.pick()
    if name is None:
        return None
    dtype = scene.values[name].dtype
    other = scene.pick(lambda tensor: tensor.dtype is dtype and tensor is not scene.values[name])
    if other is None:
        return None
    how = scene.choice(("{0}.set_({1}.detach())", "{0}.data = {1}.detach()", "{0}.set_({1}.detach().clone())"))
    return how.format(name, other)


def require_grad(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: is_inexact(tensor) and not tensor.requires_grad)
    if name is None or name in scene.arguments:
        return None
    return f"{name}.requires_grad_()"


def detach_in_place(scene: Scene) -> str | None:
    name = scene.pick(lambda tensor: tensor.requires_grad and not tensor.is_leaf)
    return name and f"{name}.detach_()"


# ---------------------------------------------------------------------------------------------------- around statements

_WRITES: tuple[Rule, ...] = (arithmetic, assigned, copied, unary, masked, indexed)


def without_grad(scene: Scene) -> str | None:
    inner = scene.choice((*_WRITES, index, computed, random_write))(scene)
    return inner and f"with torch.no_grad():\n{textwrap.indent(inner, '    ')}"


def with_grad(scene: Scene) -> str | None:
    inner = scene.choice((arithmetic, unary, computed))(scene)
    return inner and f"with torch.enable_grad():\n{textwrap.indent(inner, '    ')}"


def write_hidden(scene: Scene) -> str | None:
    name = scene.target()
    if name is None:
        return None
    constant = scene.constant(scene.values[name])
    how = scene.choice(("add_", "mul_", "fill_"))
    return f"{name}.{scene.choice(('detach()', 'data'))}.{how}({constant})"


def chain(scene: Scene) -> str | None:
    name = scene.target(is_inexact)
    if name is None:
        return None
    steps = scene.rng.sample(("add_(1)", "mul_(2)", "neg_()", "sin_()", "sub_(0.5)", "clamp_(-2, 2)"), 3)
    return f"{scene.fresh()} = {name}.{'.'.join(steps)}"


VIEWS: tuple[Rule, ...] = (
    index, index, narrow, select, rearranged, reshaped, reshaped, expanded, diagonal, split, unfold,
)  # fmt: skip
ALL_WRITES: tuple[Rule, ...] = (
    *_WRITES,
    shaped_write,
    ternary,
    functional_in_place,
    chain,
    filled,
    foreach,
    out_argument,
)
_EVERY: tuple[Rule, ...] = (
    *VIEWS, as_strided, complex_view, detached, computed, cast, *ALL_WRITES, metadata, as_strided_in_place, resized, set_to,
    without_grad, write_hidden, random_write, random_value, saved, require_grad, detach_in_place,
)  # fmt: skip

# theme -> rules, one drawn for each statement; a rule that stands twice is drawn twice as often
FAMILIES: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "views": (*VIEWS, arithmetic, arithmetic, assigned, unary, masked, copied),
        "overlap": (index, narrow, as_strided, as_strided, unfold, expanded, arithmetic, arithmetic, copied, filled, unary),
        "aliased-inputs": (index, rearranged, reshaped, arithmetic, arithmetic, assigned, copied, unary, computed),
        "in-place": (index, reshaped, computed, *ALL_WRITES, chain, indexed, masked, shaped_write),
        "out": (index, reshaped, computed, out_argument, out_argument, out_argument, arithmetic),
        "foreach": (index, split, rearranged, foreach, foreach, arithmetic, computed),
        "metadata": (metadata, metadata, index, reshaped, computed, arithmetic, as_strided_in_place, unary),
        "storage": (resized, set_to, set_to, as_strided_in_place, index, arithmetic, computed, reshaped),
        "no-grad": (without_grad, without_grad, write_hidden, detached, index, computed, arithmetic, with_grad),
        "random": (random_write, random_write, random_value, index, rearranged, reshaped, arithmetic),
        "outputs": (*VIEWS, computed, detached, arithmetic, metadata, cast),
        "saved": (saved, saved, saved, index, reshaped, arithmetic, without_grad, write_hidden, computed),
        "dtypes": (complex_view, complex_view, bit_view, cast, index, reshaped, arithmetic, copied, unary, indexed),
        "all": _EVERY,
    }
)  # fmt: skip
