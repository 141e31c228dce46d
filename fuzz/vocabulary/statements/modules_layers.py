"""Layers of torch.nn as submodules, fit for the tensor they are called on; containers of them; hooks on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Change, Scene, dtype_name
from fuzz.program.structure import Lines, OpCall, Ref, StateEntry, Statement
from fuzz.vocabulary.statements.python_template import kind_of

_ACTIVATIONS = ("torch.nn.ReLU()", "torch.nn.LeakyReLU(0.3)", "torch.nn.Hardtanh(-1.0, 0.5)", "torch.nn.ELU()")
_HOOKS = (
    "register_forward_hook(lambda module, args, output: output * 2)",
    "register_forward_pre_hook(lambda module, args: (args[0] * 1,))",
    "register_full_backward_hook(lambda module, grads, outputs: tuple(None if g is None else g * 2 for g in grads))",
)
_KEEPING = ("torch.nn.ReLU()", "torch.nn.GELU()", "torch.nn.Tanh()", "torch.nn.Identity()", "torch.nn.Softmax(dim=-1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """`make` writes the constructor call for a tensor; `texts` change it at a later call, `{at}` being the layer."""

    make: Callable[[Draw, torch.Tensor], str]
    fits: Callable[[torch.Tensor], bool] = lambda tensor: True
    texts: tuple[str, ...] = ()
    shape: tuple[int, ...] = (2, 3)  # of a new tensor, where no live one fits
    weight: float = 1.0
    dtypes: tuple[str, ...] = ("float32", "float64")


def seeded(scene: Scene, text: str) -> str:
    """The line with its own seed before it, so that its random numbers do not depend on earlier lines."""
    assert scene.state is not None
    return f"torch.default_generator.manual_seed({len(scene.state)}); {text}"


def _linear(draw: Draw, t: torch.Tensor) -> str:
    bias = "" if draw.chance(0.7) else ", bias=False"
    return f"torch.nn.Linear({t.shape[-1]}, {draw.choice((t.shape[-1], 3, 4, 1))}{bias}{_dtype(t)})"


def _conv(draw: Draw, t: torch.Tensor) -> str:
    rank = t.dim() - 2
    groups = f", groups={t.shape[1]}" if draw.chance(0.2) else ""
    out = t.shape[1] * draw.choice((1, 2)) if groups else draw.choice((2, 3, 4))
    size = draw.choice((1, 2, 3))
    padding = f", padding={size // 2}" if draw.chance(0.7) else ""
    stride = ", stride=2" if draw.chance(0.2) else ""
    return f"torch.nn.Conv{rank}d({t.shape[1]}, {out}, {size}{padding}{stride}{groups}{_dtype(t)})"


def _batch_norm(draw: Draw, t: torch.Tensor) -> str:
    rank = max(1, t.dim() - 2)
    options = draw.choice(
        ("", "", ", affine=False", ", track_running_stats=False", ", momentum=None", ", momentum=0.9")
    )
    return f"torch.nn.BatchNorm{rank}d({t.shape[1]}{options}{_dtype(t)})"


def _dtype(t: torch.Tensor) -> str:
    return "" if t.dtype is torch.float32 else f", dtype=torch.{dtype_name(t)}"


_WEIGHT_TEXTS = (
    "{at}.weight.data.mul_(2)",
    "{at}.weight = torch.nn.Parameter(torch.ones_like({at}.weight))",
    "with torch.no_grad():\n    {at}.weight.add_(1)",
    "{at}.weight.requires_grad_(False)",
    "{at}.requires_grad_(False)",
    "{at}.weight.data = {at}.weight.data * 3",
)
LAYERS: Mapping[str, Layer] = {
    "linear": Layer(
        make=_linear,
        fits=lambda t: t.dim() > 0 and t.shape[-1] > 0,
        texts=(*_WEIGHT_TEXTS, "{at}.bias = None"),
        weight=3,
    ),
    "conv": Layer(
        make=_conv,
        fits=lambda t: t.dim() in (3, 4, 5) and 0 not in t.shape,
        texts=(*_WEIGHT_TEXTS, "{at}.bias = None"), weight=2,
        shape=(2, 3, 5, 4),
    ),
    "batch_norm": Layer(
        make=_batch_norm,
        fits=lambda t: t.dim() in (2, 3, 4, 5) and 0 not in t.shape and t.numel() > t.shape[1],
        texts=("{at}.momentum = 0.5", "{at}.eps = 0.5", "{at}.eval()", "{at}.train()", "{at}.reset_running_stats()"),
        weight=2.5,
    ),
    "layer_norm": Layer(
        make=lambda draw, t: f"torch.nn.LayerNorm({list(t.shape[-draw.choice((1, min(2, t.dim()))) :])}{_dtype(t)})",
        fits=lambda t: t.dim() > 0 and 0 not in t.shape,
        texts=("{at}.eps = 0.5", *_WEIGHT_TEXTS),
        weight=1.5,
    ),
    "group_norm": Layer(
        make=lambda draw, t: f"torch.nn.GroupNorm({draw.choice((1, t.shape[1]))}, {t.shape[1]}{_dtype(t)})",
        fits=lambda t: t.dim() in (3, 4) and 0 not in t.shape and t.numel() > t.shape[0] * t.shape[1],
        texts=("{at}.eps = 0.5",),
        shape=(2, 4, 3),
        weight=0.7,
    ),
    "dropout": Layer(
        make=lambda draw, t: f"torch.nn.Dropout({draw.choice((0.5, 0.1, 0.0))})",
        texts=("{at}.p = 0.0", "{at}.p = 0.9", "{at}.eval()", "{at}.train()"),
        weight=1,
    ),
    "activation": Layer(
        make=lambda draw, t: draw.choice(_ACTIVATIONS),
        texts=("{at}.inplace = True", "{at}.negative_slope = 0.5"),
        dtypes=("float32", "float64", "bfloat16", "float16"),
    ),
    "prelu": Layer(make=lambda draw, t: f"torch.nn.PReLU({_dtype(t)[2:]})", texts=_WEIGHT_TEXTS, weight=0.4),
    "embedding": Layer(
        make=lambda draw, t: f"torch.nn.Embedding(10, {draw.choice((3, 4, 1))}{draw.choice(('', ', padding_idx=0'))})",
        dtypes=("int64", "int32"),
        texts=_WEIGHT_TEXTS,
        weight=1,
    ),
}  # fmt: skip


def draw_layer(draw: Draw, scene: Scene) -> Statement:
    """A call of a layer, of a container of layers, or of one layer twice."""
    assert scene.state is not None
    is_random = scene.settings.is_random
    kind = draw.weighted({n: layer.weight for n, layer in LAYERS.items() if is_random or n != "dropout"})
    layer = LAYERS[kind]
    x = _operand(scene, kind, layer)
    tensor = scene.values[x]
    name = f"self.{kind}{len(scene.state)}"
    at = name.replace("self.", "target.")
    made = layer.make(draw, tensor)
    form = draw.weighted({"plain": 6, "sequential": 2, "list": 1, "dict": 0.5, "hook": 0.7})
    result = scene.fresh()
    texts = [text.replace("{at}", at) for text in layer.texts]
    match form:
        case "sequential":
            value = f"torch.nn.Sequential({made}, {draw.choice(_KEEPING)})"
            texts = [text.replace("{at}", f"{at}[0]") for text in layer.texts]
            texts += [f"{at}.append(torch.nn.Tanh())", f"{at}[1] = torch.nn.Sigmoid()", f"del {at}[1]"]
            call: Statement = OpCall(target=name, args=(Ref(x),), results=(result,))
        case "list":
            value = f"torch.nn.ModuleList([{made}, {draw.choice(_KEEPING)}])"
            texts = [f"{at}.append(torch.nn.Tanh())", f"{at}[1] = torch.nn.Sigmoid()", f"del {at}[1]"]
            text = f"{{{result}}} = {{{x}}}\nfor layer in {name}:\n    {{{result}}} = layer({{{result}}})"
            call = Lines(text=text, uses=(x,), results=(result,))
        case "dict":
            value = f"torch.nn.ModuleDict({{'a': {made}, 'b': {draw.choice(_KEEPING)}}})"
            texts = [f"{at}['a'] = torch.nn.Tanh()", f"{at}['c'] = torch.nn.Tanh()", f"{at}.pop('b')"]
            text = f"{{{result}}} = {{{x}}}\nfor key, layer in {name}.items():\n    {{{result}}} = layer({{{result}}}) * len(key)"
            call = Lines(text=text, uses=(x,), results=(result,))
        case _:
            value = made
            texts.append(f"{at} = torch.nn.Tanh()")
            if kind not in ("dropout", "activation"):
                texts.append(f"torch.default_generator.manual_seed(7)\n{at} = {made}")
            call = OpCall(target=name, args=(Ref(x),), results=(result,))
    line = seeded(scene, f"{name} = {value}")
    if form == "hook":
        line += f"; {name}.{draw.choice(_HOOKS)}"
    scene.add_state(StateEntry(name=name, text=line))
    if texts:
        scene.changes.append(Change(kind="layer", name=name, texts=tuple(texts)))
    return call


def _operand(scene: Scene, kind: str, layer: Layer) -> str:
    if kind == "embedding":
        return scene.tensor(dtype="int64", domain="index:10")

    def fits(tensor: torch.Tensor) -> bool:
        is_known = kind_of(tensor) == "float" and dtype_name(tensor) in layer.dtypes
        return is_known and layer.fits(tensor) and tensor.numel() <= 2048

    found = scene.pick(fits)
    if found is None:
        found = scene.new_tensor([*layer.shape], "float32")
    return found
