"""The architectures that the installed transformers has, by model type, without importing any of them.

transformers lists its architectures in tables of names (`MODEL_MAPPING_NAMES` and, for models with a head, forty others), from
which its `Auto` classes import a model when it is asked for.
"""

from __future__ import annotations

import functools
import importlib
import os
from dataclasses import dataclass
from typing import Any

from oracle.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One architecture: the names of its classes in transformers. `kind` is a tag of the suite: "base" or "head"."""

    model_type: str  # "bert"
    model_class: str  # "BertModel"
    config_class: str  # "BertConfig"
    kind: str


def transformers_module() -> Any:
    """The package transformers, with downloads off. Raises UsageError if it is not installed."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # never download anything; read when transformers is imported
    try:
        # Optional and heavy. By its name, since an import statement has pyright read its 2900 files at each `make lint`.
        module: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise UsageError(
            seen=f"suite transformers without the package transformers ({error})",
            expected="the optional dependency transformers",
            do="pip install 'torch-oracle[models]'",
        ) from error
    module.utils.logging.set_verbosity_error()
    return module


@functools.cache
def architectures() -> dict[str, Named]:
    """Model type -> architecture, in alphabetical order. Raises UsageError without transformers."""
    transformers_module()
    configs = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES
    tables = vars(importlib.import_module("transformers.models.auto.modeling_auto"))
    base = tables["MODEL_MAPPING_NAMES"]
    with_head: dict[str, Any] = {}
    for name in sorted(tables):
        if name.startswith("MODEL_FOR_") and name.endswith("_MAPPING_NAMES"):
            for model_type, classes in tables[name].items():
                with_head.setdefault(model_type, classes)
    found = {}
    for model_type, classes in sorted({**with_head, **base}.items()):
        if model_type in configs:
            found[model_type] = Named(
                model_type=model_type,
                model_class=classes if isinstance(classes, str) else classes[0],
                config_class=configs[model_type],
                kind="base" if model_type in base else "head",
            )
    return found


def family_of(model_type: str) -> str:
    """The folder of transformers that defines an architecture: "clip" for "clip_vision_model"."""
    transformers_module()
    return importlib.import_module("transformers.models.auto.configuration_auto").model_type_to_module_name(model_type)
