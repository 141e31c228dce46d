"""Build the models of the zoo and their inputs, in a worker. Programs import `build` and `make_inputs` from here.

Weights are random, spread so that every parameter matters: matrices by their fan-in, biases and norms around their
initial values. With transformers' own 0.02 the attention of so small a model is uniform and its logits are noise.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from oracle.errors import UsageError
from suites.models.architecture import Architecture, TensorSpec
from suites.models.catalog import ARCHITECTURES

_SPREAD = 0.05  # of one-dimensional parameters


def build(name: str, *, mode: str, dtype: str, device: str) -> nn.Module:
    """A fresh model. `mode`: "eval" (returns what the model returns) or "train" (returns loss and first output).

    Raises UsageError if the model needs transformers and it is not installed.
    """
    architecture = ARCHITECTURES[name]
    config = {**architecture.config, **(architecture.train_config if mode == "train" else {})}
    model = _from_transformers(architecture, config) if architecture.config_class else _own(architecture, config)
    spread(model)
    if mode == "train":
        model = LossAndOutput(model)
    return model.to(device=device, dtype=getattr(torch, dtype))


def make_inputs(
    name: str, *, mode: str, dtype: str, device: str, call: int, sizes: Mapping[str, int] | None = None, size: int = 0
) -> tuple[tuple[()], dict[str, torch.Tensor]]:
    """Keyword arguments of one call: floats of `dtype`, integers and masks of int64.

    sizes: from inputs to the dimension that has `size` instead of its own; None for the architecture's own sizes.
    """
    architecture = ARCHITECTURES[name]
    specs = {**architecture.inputs, **(architecture.labels if mode == "train" else {})}
    generator = torch.Generator().manual_seed(1000 + call)
    for key, dim in (sizes or {}).items():
        shape = specs[key].shape
        specs[key] = replace(specs[key], shape=(*shape[:dim], size, *shape[dim + 1 :]))
    return (), {key: _tensor(spec, generator, getattr(torch, dtype)).to(device) for key, spec in specs.items()}


class LossAndOutput(nn.Module):
    """Returns (loss, first output). The loss of a model without one is the sum of the mean squares of its outputs, so that all of
    its parts have a gradient.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = self.model(**inputs)
        outputs = tensors_of(result)
        loss = getattr(result, "loss", None)
        if loss is None:
            loss = torch.stack([output.pow(2).mean() for output in outputs]).sum()
        return loss, outputs[0]


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors at the top level of whatever a model returns, without the loss; if there are none, those below."""
    if isinstance(result, torch.Tensor):
        return [result]
    values = [result[key] for key in result if key != "loss"] if hasattr(result, "keys") else list(result)
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return tensors or [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _from_transformers(architecture: Architecture, config: dict[str, Any]) -> nn.Module:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # never download anything; read when transformers is imported
    try:
        # Optional and heavy. By its name, since an import statement has pyright read its 2900 files at each `make lint`.
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise UsageError(
            seen=f"model {architecture.name!r} without transformers ({error})",
            expected="the optional dependency transformers",
            do="pip install 'torch-oracle[models]', or select models with --tag torch-only",
        ) from error
    transformers.utils.logging.set_verbosity_error()
    config_class = getattr(transformers, architecture.config_class)
    return getattr(transformers, architecture.model_class)(config_class(**config))


def _own(architecture: Architecture, config: dict[str, Any]) -> nn.Module:
    module_name, _, class_name = architecture.model_class.partition(":")
    return getattr(importlib.import_module(module_name), class_name)(**config)


@torch.no_grad()
def spread(model: nn.Module) -> None:
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        if parameter.ndim >= 2:
            parameter.normal_(std=1 / math.sqrt(parameter[0].numel()))
        else:
            parameter.add_(torch.randn_like(parameter) * _SPREAD)


def _tensor(spec: TensorSpec, generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    match spec.kind:
        case "ids":
            low = 3 if spec.high > 20 else 0  # ids below 3 are the padding, begin and end tokens
            return torch.randint(low, spec.high, spec.shape, generator=generator)
        case "floats":
            return torch.randn(spec.shape, generator=generator).to(dtype)
        case "mask":
            mask = torch.ones(spec.shape, dtype=torch.int64)
            mask[1::2, -spec.shape[-1] // 4 :] = 0
            return mask
        case _:
            raise ValueError(f"kind of input {spec.kind!r}")
