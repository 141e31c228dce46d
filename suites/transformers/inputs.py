"""Inputs of a model of transformers, derived from the parameters of its forward and from its configuration.

What a parameter takes follows from its name ("input_ids", "pixel_values"). Where several shapes are usual (audio is a wave or a
spectrogram, either way round), each is a candidate; the first set of inputs with which the model runs is taken.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from suites.transformers.shrink import WORDS

_BATCH, _LENGTH, _FRAMES = 2, 12, 2
_MOST_CANDIDATES = 24
# Optional parameters that carry data, and are given if the model has them. Masks, caches, positions and switches are left out.
_DATA = (
    "input_ids", "decoder_input_ids", "pixel_values", "pixel_values_videos", "input_features", "input_values", "bbox",
    "past_values", "past_time_features", "past_observed_mask", "future_values", "future_time_features", "inputs",
)  # fmt: skip
_TEXT = ("input_ids", "decoder_input_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input. `kind`: "ids" (integers below `high`), "floats" (standard normal), "ones" (integers), "bools" (all true),
    "zeros" (integers), or "constant" (`values`, integers). An "ids" tensor starts with `marks` times the id `mark` in each row.
    """

    kind: str
    shape: tuple[int, ...]
    high: int = WORDS
    values: tuple[Any, ...] = ()
    mark: int = 0
    marks: int = 0


Inputs = Mapping[str, InputSpec]


def make_tensor(spec: InputSpec, generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """The tensor: floats in `dtype`, integers in int64, on the CPU."""
    match spec.kind:
        case "ids":
            ids = torch.randint(min(3, spec.high - 1), spec.high, spec.shape, generator=generator)
            if spec.marks:
                ids[..., : spec.marks] = spec.mark
            return ids
        case "floats":
            return torch.randn(spec.shape, generator=generator).to(dtype)
        case "ones":
            return torch.ones(spec.shape, dtype=torch.int64)
        case "zeros":
            return torch.zeros(spec.shape, dtype=torch.int64)
        case "bools":
            return torch.ones(spec.shape, dtype=torch.bool)
        case "constant":
            return torch.tensor(spec.values, dtype=torch.int64)
        case _:
            raise ValueError(f"kind of input {spec.kind!r}")


def candidates(model: torch.nn.Module, config: Any) -> Iterator[Inputs]:
    """Sets of inputs to try, the fullest first: all parameters with data; the main one; text alone."""
    parameters = inspect.signature(model.forward).parameters
    required = [
        name
        for name, one in parameters.items()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    main = getattr(model, "main_input_name", "input_ids")
    sets = (
        [name for name in parameters if name in required or name in _DATA or name == main],
        [name for name in parameters if name in required or (name in _DATA and name != "pixel_values_videos")],
        [name for name in parameters if name in required or name in (main, "decoder_input_ids")],
        [name for name in parameters if name in required or name in _TEXT],
    )
    shapes = _Shapes(config, parameters)
    seen: list[list[str]] = []
    found: list[Inputs] = []
    for names in sets:
        if not names or names in seen:
            continue
        seen.append(names)
        options = [shapes.options(name) for name in names]
        for chosen in itertools.islice(itertools.product(*options), _MOST_CANDIDATES // 3):
            inputs: Inputs = {}
            for one in chosen:
                inputs = {**inputs, **one}
            inputs = {name: spec for name, spec in inputs.items() if name in parameters}
            if inputs and inputs not in found and len(found) < _MOST_CANDIDATES:
                found.append(inputs)
                yield inputs


class _Shapes:
    """The shapes that parameters may have, by their names. Sizes come from the configuration and those within it."""

    def __init__(self, config: Any, parameters: Iterable[str]) -> None:
        self._has_grid = "grid_thw" in parameters or "image_grid_thw" in parameters
        self._configs = _with_parts(config)
        self._width = self._size("hidden_size", "d_model", "embed_dim", "hidden_dim", default=64)
        self._channels = self._size("num_channels", "in_channels", "in_chans", "image_channels", default=3)
        self._patch = self._size("patch_size", default=16)
        self._side = self._sides("image_size", "img_size", "input_size", default=64)
        self._mel = self._size(
            "num_mel_bins", "feature_size", "mel_bins", "n_mels", "input_dim", "input_feat_per_channel", default=80
        )

    def options(self, name: str) -> list[Inputs]:
        """Alternatives for one parameter, each with whatever has to come with it."""
        match name:
            case "input_ids" | "decoder_input_ids":
                return self._ids(name)
            case "pixel_values" | "prompt_pixel_values":
                return self._images(name)
            case "hidden_states" if self._has_grid:
                return self._images(name)
            case "pixel_values_videos":
                return self._videos(name)
            case "input_features" | "input_values" | "audio_mel" | "spectrogram":
                return self._audio(name)
            case "bbox":
                return [{name: InputSpec(kind="zeros", shape=(_BATCH, _LENGTH, 4))}]
            case "grid_thw" | "image_grid_thw":
                return [{}]  # comes with the images
            case "inputs":
                return [_floats(name, _BATCH, _LENGTH, self._width), *self._ids(name), _floats(name, _BATCH, 16)]
            case _:
                return self._series(name) or self._other(name)

    def _ids(self, name: str) -> list[Inputs]:
        books = self._size("num_codebooks", "n_codes_total", "audio_channels", default=1)
        found: list[Inputs] = [{name: InputSpec(kind="ids", shape=(_BATCH, _LENGTH))}]
        if books > 1:
            found.append({name: InputSpec(kind="ids", shape=(_BATCH, _LENGTH, books), high=48)})
            found.append({name: InputSpec(kind="ids", shape=(_BATCH * books, _LENGTH), high=48)})
        return found

    def _images(self, name: str) -> list[Inputs]:
        side, channels, patch = self._side, self._channels, self._patch
        frames = self._size("num_frames", "frames", default=_FRAMES)
        temporal = self._size("temporal_patch_size", default=1)
        merge = max(self._size("spatial_merge_size", "merge_size", default=2), 1)
        grid = 2 * merge
        patches = _BATCH * grid * grid
        flat = InputSpec(kind="floats", shape=(patches, channels * temporal * patch * patch))
        twice = InputSpec(kind="floats", shape=(patches, channels * 2 * patch * patch))  # two frames in each patch
        square = InputSpec(kind="floats", shape=(patches, channels, patch, patch))
        rows = InputSpec(kind="constant", shape=(_BATCH, 3), values=((1, grid, grid),) * _BATCH)
        in_grid: Inputs = {name: flat, "grid_thw": rows, "image_grid_thw": rows}
        found = [{**in_grid, name: one} for one in (flat, twice, square)] if self._has_grid else []
        found += [_floats(name, _BATCH, channels, *side)]
        if self._size("image_size", "img_size", default=0) == 0:
            found += [_floats(name, _BATCH, channels, 224, 224)]
        found += [
            _floats(name, _BATCH, frames, channels, *side),
            _floats(name, _BATCH, 1, channels, *side),
            _floats(name, _BATCH, grid * grid, channels * patch * patch),
        ]
        return found

    def _videos(self, name: str) -> list[Inputs]:
        frames = self._size("num_frames", "frames_per_clip", "frames", default=_FRAMES)
        return [_floats(name, _BATCH, frames, self._channels, *self._side)]

    def _audio(self, name: str) -> list[Inputs]:
        mel = self._mel
        lengths = [2 * self._size("max_source_positions", default=0), self._size("max_length", default=0), 128]
        found: list[Inputs] = (
            [] if name == "input_features" else [_floats(name, _BATCH, 4000), _floats(name, _BATCH, 1, 4000)]
        )
        for length in dict.fromkeys(length for length in lengths if 0 < length <= 4096):
            found += [_floats(name, _BATCH, length, mel), _floats(name, _BATCH, mel, length)]
            found += [_floats(name, _BATCH, 1, length, mel)]
        if name == "input_features":
            found += [_floats(name, _BATCH, 4000)]
        return found

    def _series(self, name: str) -> list[Inputs]:
        """Parameters of forecasts: the past is as long as the context and the longest lag."""
        lags = [lag for config in self._configs for lag in getattr(config, "lags_sequence", None) or ()]
        context = self._size("context_length", "prediction_length", default=32)
        past, future = context + max(lags, default=0), self._size("prediction_length", default=8)
        features, channels = (
            self._size("num_time_features", default=0),
            self._size("num_input_channels", "input_size", default=1),
        )
        values: tuple[int, ...] = (channels,) if channels > 1 else ()
        match name:
            case "past_values":
                return [
                    _floats(name, _BATCH, past, *values),
                    _floats(name, _BATCH, past, 1),
                    _floats(name, _BATCH, past),
                ]
            case "past_observed_mask":
                return [{name: InputSpec(kind="ones", shape=(_BATCH, past, *values))}]
            case "past_time_features":
                return [_floats(name, _BATCH, past, features)]
            case "future_values":
                return [_floats(name, _BATCH, future, *values)]
            case "future_time_features":
                return [_floats(name, _BATCH, future, features)]
            case _:
                return []

    def _other(self, name: str) -> list[Inputs]:
        if name.endswith("input_ids") or name == "ids":
            return [{name: InputSpec(kind="ids", shape=(_BATCH, _LENGTH))}]
        if name.endswith("_ids"):
            return [{name: InputSpec(kind="zeros", shape=(_BATCH, _LENGTH))}]
        if "mask" in name.split("_") or name.endswith("_padding"):
            return [
                {name: InputSpec(kind="ones", shape=(_BATCH, _LENGTH))},
                {name: InputSpec(kind="bools", shape=(_BATCH, _LENGTH))},
            ]
        return [
            _floats(name, _BATCH, _LENGTH, self._width),
            _floats(name, _BATCH, self._width, 16, 16),
            _floats(name, _BATCH, self._width, _LENGTH),
            _floats(name, _BATCH, self._width),
        ]

    def _sides(self, *names: str, default: int) -> tuple[int, int]:
        """Height and width of an image, of which a configuration gives one or both."""
        for config in self._configs:
            for name in names:
                value = getattr(config, name, None)
                if isinstance(value, (list, tuple)) and len(value) == 2:
                    return int(value[0]), int(value[1])
        side = self._size(*names, default=default)
        return side, side

    def _size(self, *names: str, default: int) -> int:
        """The first of these fields in the configuration, else in one within it."""
        for config in self._configs:
            for name in names:
                value = getattr(config, name, None)
                if isinstance(value, (list, tuple)) and value:
                    value = value[-1]
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        return default


def _floats(name: str, *shape: int) -> Inputs:
    return {name: InputSpec(kind="floats", shape=shape)}


def _with_parts(config: Any) -> Sequence[Any]:
    """The configuration and those within it, breadth first."""
    found = [config]
    for one in found:
        found += [value for value in vars(one).values() if hasattr(value, "to_dict") and value not in found]
    return found
