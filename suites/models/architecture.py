"""Architecture: one model of the zoo as data. Torch-free, so that groups are listed without loading anything.

Sizes are as small as the architecture allows: width 32, two layers, a vocabulary of 99.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 99
WIDTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One input tensor. `kind`: "ids" (integers below `high`), "floats" (standard normal),
    "mask" (ones, with the end of every second row masked)."""

    kind: str
    shape: tuple[int, ...]
    high: int = VOCABULARY


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One model. With `config_class` it comes from transformers, otherwise `model_class` names a class of ours.

    `inputs` go to every call, `labels` to training calls only; without labels the loss is made from the first output.
    """

    name: str
    model_class: str  # "BertForMaskedLM"; or "suites.models.classics:ResNet"
    config_class: str = ""  # "BertConfig"
    config: Mapping[str, Any] = field(default_factory=dict)
    train_config: Mapping[str, Any] = field(default_factory=dict)  # what differs in training
    inputs: Mapping[str, TensorSpec]
    labels: Mapping[str, TensorSpec] = field(default_factory=dict)
    tags: tuple[str, ...]
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float64")
    timeout_s: float | None = None


def ids(*shape: int, high: int = VOCABULARY) -> TensorSpec:
    return TensorSpec(kind="ids", shape=shape, high=high)


def floats(*shape: int) -> TensorSpec:
    return TensorSpec(kind="floats", shape=shape)


def mask(*shape: int) -> TensorSpec:
    return TensorSpec(kind="mask", shape=shape)


def transformers_model(
    name: str,
    model_class: str,
    config_class: str,
    tags: tuple[str, ...],
    *,
    inputs: Mapping[str, TensorSpec],
    labels: Mapping[str, TensorSpec] | None = None,
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float64"),
    train_config: Mapping[str, Any] | None = None,
    **config: Any,
) -> Architecture:
    return Architecture(
        name=name, model_class=model_class, config_class=config_class, config=config, train_config=train_config or {},
        inputs=inputs, labels=labels or {}, tags=(*tags, "transformers"), dtypes=dtypes,
    )  # fmt: skip


def torch_model(
    name: str,
    model_class: str,
    tags: tuple[str, ...],
    *,
    inputs: Mapping[str, TensorSpec],
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float64"),
    **config: Any,
) -> Architecture:
    """`config` is handed to the class as keyword arguments."""
    return Architecture(
        name=name, model_class=model_class, config=config, inputs=inputs, tags=(*tags, "torch-only"), dtypes=dtypes
    )
