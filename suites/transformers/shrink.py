"""Shrinks a configuration of transformers by the names of its fields, so that a model of any architecture fits into a test.

All widths of a configuration and of those within it are divided by one number. So what has to fit still fits: 4096 = 32 heads of
128 becomes 256 = 32 heads of 8, and a vision tower still ends in the width that the text model reads. Numbers of layers, experts
and words are cut to a few. A field is known by the words of its name, never by the architecture.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VOCABULARY = 128
WORDS = 96  # ids from here on are special tokens of shrunk configurations (padding, images)
_LAYERS = 2
_MOST_LAYERS = 6
_POSITIONS = 512
_EXPERTS = 8
_FORECAST = 8
_QUERIES = 16
_MANY_GROUPS = 128  # one for each channel: a width
_LAYER_WORDS = frozenset({"layers", "layer", "depth", "depths", "blocks", "nlayers"})
_WIDTH_WORDS = frozenset(
    [
        "hidden", "dim", "dims", "width", "widths", "embed", "embd", "embedding", "embeddings", "ffn", "inner", "intermediate",
        "channels", "channel", "planes", "rank", "projection", "proj", "features", "filters", "section", "sections", "size",
        "sizes", "state", "units", "d", "dff",
    ]
)  # fmt: skip
_NO_COUNT_WORDS = frozenset(
    {"size", "dim", "norm", "type", "offset", "period", "interval", "freq", "frequency", "step"}
)
_COUNT_WORDS = frozenset({"num", "n", "max", "min"})  # num_channels is no width; num_embeddings neither
# Sizes of something that is not a vector of features: "patch_size", "chunk_size_feed_forward", "window_size".
_OTHER_SIZES = frozenset(
    [
        "patch", "kernel", "window", "chunk", "block", "step", "batch", "stride", "grid", "crop", "pool", "pooling", "spatial",
        "merge", "temporal", "group", "norm", "init", "cache", "beam", "dilation", "shift", "ratio", "factor", "rate", "lag",
        "memory", "query", "std", "range", "scale", "eps", "expand", "expansion", "use", "act", "activation", "type", "name",
        "fn", "path", "token", "index", "indices", "id", "ids",
    ]
)  # fmt: skip


_STAGE = re.compile(r"stage\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strength:
    """How much is cut: widths are divided by `width`, sides of images by `image`.

    A width is that of a head times the number of heads. One of the two is divided: the number with `fewer_heads`.
    """

    width: int
    image: int
    fewer_heads: bool = False


# Tried in this order: the strongest that builds and runs is taken. A group norm of 32 groups needs 32 channels, for example.
# Some architectures cut a head into sections of fixed sizes: those need fewer heads, not smaller ones.
STRENGTHS = tuple(
    Strength(width=width, image=image, fewer_heads=fewer_heads)
    for image in (4, 1)
    for fewer_heads, widths in ((False, (16, 8, 4, 2, 64, 1)), (True, (16, 8, 4)))
    for width in widths
)


def shrunk(values: Mapping[str, Any], strength: Strength) -> dict[str, Any]:
    """The fields of a configuration (`to_dict()`), made smaller; those of configurations within it too."""
    return _Shrinking(strength).mapping(_with_heads(values), patch=None)


class _Shrinking:
    def __init__(self, strength: Strength) -> None:
        self._strength = strength
        self._ids: dict[
            int, int
        ] = {}  # ids of special tokens: the same token has one id in all parts of a configuration

    def mapping(self, values: Mapping[str, Any], *, patch: int | None) -> dict[str, Any]:
        patch = _patch_of(values) or patch
        layers = _layer_counts(values)
        small = {name: self._field(name, value, patch, layers) for name, value in values.items()}
        return _with_fewer_stages(small, values, layers)

    def _field(self, name: str, value: Any, patch: int | None, layers: Mapping[int, int]) -> Any:
        if isinstance(value, Mapping):
            return self._mapping_within(value, patch, layers)
        if name == "prediction_length" and value is None:
            return _FORECAST  # models of time series need a number of steps, and their configurations name none
        words = frozenset(name.lower().split("_"))
        if isinstance(value, (list, tuple)):
            return self._list(name, words, value, patch, layers)
        if isinstance(value, bool) or not isinstance(value, int):
            return value
        return self._number(name, words, value, patch, layers)

    def _mapping_within(
        self, value: Mapping[Any, Any], patch: int | None, layers: Mapping[int, int]
    ) -> Mapping[Any, Any]:
        if value and all(str(key).isdigit() and isinstance(item, Mapping) for key, item in value.items()):
            most = max(layers.values(), default=_MOST_LAYERS)  # one entry for each of some layers
            return {key: self.mapping(item, patch=patch) for key, item in value.items() if int(key) < most}
        return self.mapping(value, patch=patch) if all(isinstance(key, str) for key in value) else value

    def _list(
        self, name: str, words: frozenset[str], values: Sequence[Any], patch: int | None, layers: Mapping[int, int]
    ) -> list[Any]:
        is_of_integers = _are_integers(values)
        if is_of_integers and ("indices" in words or "indexes" in words or name.endswith("_layers")):
            return _fewer_indices(values, layers)
        if len(values) in layers and len(values) > layers[len(values)] and "stages" not in words:
            values = values[: layers[len(values)]]  # one value for each layer
        if is_of_integers:
            return [self._number(name, words, value, patch, {}) for value in values]
        return [
            self.mapping(value, patch=patch)
            if isinstance(value, Mapping)
            else self._list(name, words, value, patch, layers)
            if isinstance(value, (list, tuple))
            else value
            for value in values
        ]

    def _number(
        self, name: str, words: frozenset[str], value: int, patch: int | None, layers: Mapping[int, int]
    ) -> int:
        if name.endswith(("_id", "_ids", "token_index")):
            return self._token(value)
        if "vocab" in words:
            return min(value, VOCABULARY)
        if _counts_layers(name):
            return layers.get(value, min(value, _LAYERS))
        if words & {"heads", "head"} and "dim" not in words and self._strength.fewer_heads:
            return max(1, value // self._strength.width)
        if words & {"head", "headdim"} and self._strength.fewer_heads:
            return value
        if words & {"queries", "query"} and "num" in words:
            return min(value, _QUERIES)
        if "groups" in words and value >= _MANY_GROUPS:
            return self._width(value)
        if words & {"position", "positions"}:
            return min(value, _POSITIONS)
        if words & {"experts", "expert"} and not words & {"size", "dim", "hidden"}:
            return min(value, 2 if words & {"per", "top", "topk", "k"} else _EXPERTS)
        if name in ("n_group", "topk_group", "top_k", "topk", "moe_topk", "moe_k"):
            return min(value, 1 if name == "topk_group" else 2)
        if words & {"image", "img", "resolution"} and words & {"size", "resolution"}:
            return self._side(value, patch)
        return self._width(value) if _is_width(name, words) else value

    def _width(self, value: int) -> int:
        return value // self._strength.width if value >= self._strength.width else value

    def _side(self, value: int, patch: int | None) -> int:
        if self._strength.image == 1:
            return value
        step = patch or 16
        return max(2 * step, math.ceil(value / self._strength.image / step) * step)

    def _token(self, value: int) -> int:
        if value < WORDS:
            return value
        return self._ids.setdefault(value, VOCABULARY - 1 - len(self._ids) % (VOCABULARY - WORDS))


def _is_width(name: str, words: frozenset[str]) -> bool:
    if name in ("n_embd", "n_inner"):
        return True
    if words & _OTHER_SIZES or (words & _COUNT_WORDS and not words & {"dim"}):
        return False
    return bool(words & _WIDTH_WORDS)


def _patch_of(values: Mapping[str, Any]) -> int | None:
    size = values.get("patch_size")
    if isinstance(size, (list, tuple)) and size:
        size = size[-1]
    return size if isinstance(size, int) and size > 0 else None


def _layer_counts(values: Mapping[str, Any]) -> dict[int, int]:
    """Old number of layers -> new one: enough for every kind of layer, and for the layers that a list names."""
    counts = {}
    lists = {name: value for name, value in values.items() if isinstance(value, (list, tuple)) and value}
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value <= _LAYERS or not _counts_layers(name):
            continue
        if any(len(items) == value for other, items in lists.items() if _counts_layers(other) and _are_integers(items)):
            counts[value] = value  # the number of stages: each has a number of layers of its own
            continue
        needed = _LAYERS
        for other, items in lists.items():
            if len(items) == value and all(isinstance(item, str) for item in items):
                needed = max(needed, 1 + max(list(items).index(kind) for kind in set(items)))
            elif other == "out_features" or "indices" in other or other.endswith("_layers"):
                needed = max(needed, len(items))
        counts[value] = min(value, needed, _MOST_LAYERS)
    return counts


def _with_fewer_stages(small: dict[str, Any], values: Mapping[str, Any], layers: Mapping[int, int]) -> dict[str, Any]:
    """A backbone's outputs by the names of its stages ("stage12"), as those of fewer layers. The names say all: indices go."""
    names = values.get("out_features")
    if isinstance(names, (list, tuple)) and names and all(_STAGE.fullmatch(str(name)) for name in names):
        small["out_features"] = [f"stage{1 + i}" for i in _fewer_indices([int(name[5:]) - 1 for name in names], layers)]
        small.pop("out_indices", None)
    small.pop("stage_names", None)  # made anew
    return small


def _with_heads(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same fields, with the width of a head and the number of heads of keys where they are None, as in most architectures."""
    found = {key: _with_heads(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    heads, hidden = found.get("num_attention_heads"), found.get("hidden_size")
    if isinstance(heads, int) and heads > 0:
        if "num_key_value_heads" in found and found["num_key_value_heads"] is None:
            found["num_key_value_heads"] = heads
        if "head_dim" in found and found["head_dim"] is None and isinstance(hidden, int):
            found["head_dim"] = hidden // heads
    return found


def _counts_layers(name: str) -> bool:
    words = frozenset(name.lower().split("_"))
    return bool(words & _LAYER_WORDS) and not words & _NO_COUNT_WORDS


def _are_integers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _fewer_indices(values: Sequence[int], layers: Mapping[int, int]) -> list[int]:
    """Indices of layers as those of fewer layers: evenly spread, and as many as there are."""
    if not values:
        return []
    most = max(values)
    fitting = [old for old in layers if most <= old]
    if not fitting or min(values) < 0:
        return list(values)
    count = layers[min(fitting)]
    kept = min(len(values), count)
    if most < count:
        return list(values)
    return sorted({count - 1 - round(i * count / kept) for i in range(kept)})
