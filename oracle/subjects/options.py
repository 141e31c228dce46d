"""Options of subjects: `name[key=value,key=value]` on the command line, tables in the subjects file. Does not import torch.

Keys may be dotted (`options.fallback_random`); values are numbers, true, false, null, quoted or bare strings.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oracle.errors import UsageError

_NAME_WITH_OPTIONS = re.compile(r"^(?P<base>[^\[\]]+)\[(?P<options>[^\[\]]*)\]$")
_LITERALS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionSpec:
    """Values that one option may have: one of `choices`, or any of the given types. With `several`, choices joined by `+`."""

    types: tuple[type, ...] = ()  # empty: any scalar
    choices: tuple[Any, ...] = ()
    several: bool = False

    def describe(self) -> str:
        if self.several:
            return f"some of {', '.join(map(_as_typed, self.choices))}, joined by +"
        if self.choices:
            return ", ".join(map(_as_typed, self.choices))
        return " or ".join("null" if t is type(None) else t.__name__ for t in self.types) or "a scalar"

    def allows(self, value: Any) -> bool:
        if self.several:
            parts = str(value).split("+")
            return len(set(parts)) == len(parts) and set(parts) <= set(map(str, self.choices))
        if self.choices:
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        return not self.types or type(value) in self.types


def split_names(text: str) -> list[str]:
    """The names in `"eager,inductor[mode=default,dynamic=true]"`: commas inside brackets do not separate."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def split_options(name: str) -> tuple[str, dict[str, Any]]:
    """The name without its brackets, and the options in them. Raises UsageError for other text than `key=value,...`."""
    if "[" not in name and "]" not in name:
        return name, {}
    match = _NAME_WITH_OPTIONS.match(name)
    if match is None:
        raise _malformed(name)
    options: dict[str, Any] = {}
    for pair in filter(None, (part.strip() for part in match["options"].split(","))):
        key, separator, text = (part.strip() for part in pair.partition("="))
        if not separator or not key or not text:
            raise _malformed(name)
        if key in options:
            raise UsageError(
                seen=f"option {key!r} twice in subject {name!r}", expected="each option once", do="leave one out"
            )
        options[key] = _scalar(text)
    return match["base"].strip(), options


def flatten_tables(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables of the subjects file with dotted keys: {"options": {"epilogue_fusion": False}} has one key."""
    flat: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            flat.update(flatten_tables(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def check_options(name: str, options: Mapping[str, Any], allowed: Mapping[str, OptionSpec]) -> None:
    """Raises UsageError for an unknown option or an invalid value. `"options.*"` allows any dotted key."""
    for key, value in options.items():
        stem = key.split(".", 1)[0]
        spec = allowed.get(key) or (allowed.get(f"{stem}.*") if "." in key else None) or allowed.get("*")
        if spec is None:
            near = difflib.get_close_matches(key, list(allowed), n=3)
            hint = f"did you mean {', '.join(near)}?" if near else "leave it out"
            raise UsageError(
                seen=f"option {key!r} of subject {name!r}",
                expected=f"one of {', '.join(allowed)}" if allowed else "no options: this subject has none",
                do=hint,
            )
        if not spec.allows(value):
            raise UsageError(
                seen=f"{key}={_as_typed(value)} for subject {name!r}",
                expected=f"{key} is {spec.describe()}",
                do="correct the value",
            )


def _scalar(text: str) -> Any:
    if text in _LITERALS:
        return _LITERALS[text]
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text.strip("'")
    return text if isinstance(value, (list, dict)) else value


def _as_typed(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (bool, type(None))) else str(value)


def _malformed(name: str) -> UsageError:
    return UsageError(
        seen=f"subject {name!r}",
        expected="name[key=value,key=value]",
        do="write for example inductor[mode=max-autotune-no-cudagraphs]",
    )
