"""Builds models of transformers and their inputs, in a worker. Programs import `build` and `make_inputs` from here.

A recipe says how: how much the configuration is shrunk, and which inputs the model takes. It is found by trying, once for each
process: the first recipe with which the model runs in eager is taken. It depends on the installed transformers alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from oracle.hygiene import seed_everything
from suites.base import group_of
from suites.models.zoo import LossAndOutput, spread, tensors_of
from suites.transformers.catalog import Named, architectures, transformers_module
from suites.transformers.inputs import Inputs, InputSpec, candidates, make_tensor
from suites.transformers.shrink import STRENGTHS, Strength, shrunk

_MOST_PARAMETERS = 40_000_000  # a model with more is not small, and is not built
_SEED = 1000


class CannotBuildError(Exception):
    """No shrunk configuration gives a model. The message says why the first one does not.

    Eager raises it when the model is called, so that the case is not compared, and no finding.
    """


class NotBuilt(nn.Module):
    """Stands for a model that cannot be built."""

    def __init__(self, problem: str) -> None:
        super().__init__()
        self.problem = problem

    def forward(self) -> torch.Tensor:
        raise CannotBuildError(self.problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to build a model that runs.

    `problem` is why it does not run, if no inputs were found; without a `strength`, why none is built.
    """

    strength: Strength | None
    inputs: Inputs
    problem: str = ""


def build(model_type: str, *, mode: str, dtype: str, device: str) -> nn.Module:
    """A fresh model. `mode`: "eval" (returns what the model returns) or "train" (returns loss and first output).

    If no shrunk configuration gives a model, the module raises CannotBuildError when it is called. Raises UsageError without
    transformers.
    """
    named = _named(model_type)
    recipe = _recipe(model_type)
    if recipe.strength is None:
        return NotBuilt(recipe.problem)
    seed_everything(_SEED)  # finding the recipe has drawn numbers, in the first call only
    model = _model(named, recipe.strength)
    if mode == "train":
        model = LossAndOutput(model)
    return model.to(device=device, dtype=getattr(torch, dtype))


def make_inputs(model_type: str, *, dtype: str, device: str, call: int) -> tuple[tuple[()], dict[str, torch.Tensor]]:
    """Keyword arguments of one call: floats of `dtype`, integers of int64."""
    generator = torch.Generator().manual_seed(_SEED + call)
    inputs = _recipe(model_type).inputs
    return (), {name: make_tensor(spec, generator, getattr(torch, dtype)).to(device) for name, spec in inputs.items()}


def _named(model_type: str) -> Named:
    return group_of(architectures(), model_type, suite="transformers", what="architecture")


@functools.cache
def _recipe(model_type: str) -> Recipe:
    """The first strength and inputs with which the model runs; else the first strength that builds it."""
    named = _named(model_type)
    built: Recipe | None = None
    problem, last = "", ""
    for strength in STRENGTHS:
        seed_everything(_SEED)
        try:
            model = _model(named, strength).eval()
        except Exception as error:  # whatever transformers raises; reported if no model can be built
            why = _said(error)
            problem = problem or why
            if _is_alike(why, last):
                break
            last = why
            continue
        inputs, why = _found_inputs(model)
        if not why:
            return Recipe(strength=strength, inputs=inputs)
        built = built or Recipe(strength=strength, inputs=inputs, problem=why)
        if _is_alike(why, last):
            break
        last = why
    return built or Recipe(strength=None, inputs={}, problem=f"{named.model_class}: {problem}")


def _found_inputs(model: nn.Module) -> tuple[Inputs, str]:
    """The first inputs with which the model runs and gives finite floats, and ""; or the first ones, and what is wrong."""
    first: Inputs = {}
    problem = ""
    for inputs in candidates(model, model.config):
        first = first or inputs
        said = _trial(model, inputs)
        if said and "pixel_values" in inputs and "input_ids" in inputs:
            with_images = _with_image_tokens(model, inputs)
            if with_images is not None and not _trial(model, with_images):
                return with_images, ""
        if not said:
            return inputs, ""
        problem = problem or said
    return first, problem or "no inputs: forward has no parameter whose name is known"


def _trial(model: nn.Module, inputs: Inputs) -> str:
    """The error of a call on these inputs; "" if there is none."""
    try:
        outputs = [output for output in tensors_of(_call(model, inputs)) if output.is_floating_point()]
    except Exception as error:  # whatever the model raises on inputs that it does not take
        return _said(error)
    if not outputs:
        return "no floating-point tensor among the outputs"
    if not all(output.isfinite().all() for output in outputs):
        return "outputs are not finite"
    return ""


def _call(model: nn.Module, inputs: Inputs) -> Any:
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        return model(**{name: make_tensor(spec, generator, torch.float32) for name, spec in inputs.items()})


def _with_image_tokens(model: Any, inputs: Inputs) -> Inputs | None:
    """The same inputs with as many image tokens in each row as the model has features of an image; None if it does not say."""
    token = next((getattr(model.config, name, None) for name in ("image_token_id", "image_token_index")), None)
    features = getattr(model, "get_image_features", None)
    if features is None or not isinstance(token, int):
        return None
    generator = torch.Generator().manual_seed(_SEED)
    given = {
        name: make_tensor(spec, generator, torch.float32)
        for name, spec in inputs.items()
        if name not in ("input_ids", "decoder_input_ids")
    }
    try:
        with torch.no_grad():
            result = features(**given)

        width = model.get_input_embeddings().weight.shape[-1]
    except Exception:  # the model takes images in another way: it is tried without
        return None
    result = getattr(result, "pooler_output", result)
    parts = result if isinstance(result, (list, tuple)) else [result]
    count = sum(part.numel() for part in parts if isinstance(part, torch.Tensor)) // width
    rows = inputs["input_ids"].shape[0]
    if count == 0 or count % rows:
        return None
    length = count // rows + inputs["input_ids"].shape[1]
    text = InputSpec(kind="ids", shape=(rows, length), mark=token, marks=count // rows)
    return {**inputs, "input_ids": text}


def _model(named: Named, strength: Strength) -> nn.Module:
    transformers = transformers_module()
    config = _config(transformers, named, strength)
    model_class = getattr(transformers, named.model_class)
    _check_size(model_class, config)
    model = model_class(config)
    spread(model)
    return model.float()


def _check_size(model_class: Any, config: Any) -> None:
    """Raises CannotBuildError for a large model, before any memory is taken."""
    try:
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in model_class(config).parameters())
    except Exception:  # the model reads values while it is built; the limit of memory of the case holds
        return
    if count > _MOST_PARAMETERS:
        raise CannotBuildError(f"{count} parameters, more than {_MOST_PARAMETERS}")


def _config(transformers: Any, named: Named, strength: Strength) -> Any:
    config_class = getattr(transformers, named.config_class)
    values = _without_timm(config_class, config_class().to_dict())
    small = shrunk(values, strength)
    for name in ("transformers_version", "model_type", "architectures", "dtype", "torch_dtype"):
        small.pop(name, None)
    if "use_cache" in small:
        small["use_cache"] = False
    config = config_class(**small)
    for one in (config, *(value for value in vars(config).values() if hasattr(value, "to_dict"))):
        if getattr(one, "use_cache", None):
            one.use_cache = False
    return config


def _without_timm(config_class: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The package timm is not asked for: its backbone gives way to the one that the configuration names otherwise."""
    found = dict(values)
    for name, value in values.items():
        if isinstance(value, Mapping) and value.get("model_type") == "timm_backbone":
            spec = getattr(config_class, "sub_configs_defaults", {}).get(name)
            if spec is not None and spec.model_type not in (None, "timm_backbone"):
                part = transformers_module().AutoConfig.for_model(spec.model_type, **(spec.init_kwargs or {}))
                found[name] = part.to_dict()
    return found


def _is_alike(why: str, last: str) -> bool:
    """Whether two problems differ in numbers only: then other sizes do not help, unless shapes are what does not fit."""
    return re.sub(r"\d+", "", why) == re.sub(r"\d+", "", last) and not re.search(
        r"shape|size|divi|channel|parameters", why
    )


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]
