"""Program: Python source and a plan of calls, as JSON. All packages exchange programs in this form.

The source defines, at module level:

- `program`: a function; or, with `is_module`, a factory without arguments (such as a class) that returns an `nn.Module`;
- optionally `inputs(call: int) -> (args, kwargs)`, for calls without input specs;
- optionally `derive(*args, **kwargs) -> (args, kwargs)`: computes the arguments of a call from the inputs. Inputs are leaves;
  derived arguments may be non-leaves or views with a base. Gradients are those of the inputs.

The source is executed in a worker process with a seeded RNG, so it may build its inputs from random numbers. Inputs given as
specs are rebuilt from shapes, strides, dtypes and seeds; nothing is ever unpickled. This module does not import torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from oracle.errors import UsageError

FORMAT_VERSION = 1
TWICE_DIFFERENTIATED = 4  # one program in so many has a double backward
VALUES = ("given", "scaled", "moved")  # changes of the arguments' values, from none to the strongest

JsonTree = Any  # the tagged JSON of oracle.program.inputs: nested lists, {"$": tag, ...} objects and plain JSON scalars


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the plan, with everything that changes before it."""

    args: JsonTree = None  # tagged JSON list (see oracle.program.inputs); None: from the source's `inputs(call)`
    kwargs: JsonTree = None  # tagged JSON object; None: none, or from `inputs(call)`
    # "given", "scaled" or "moved": other values in the same arguments (oracle.program.other_values).
    values: str = "given"
    before: str = ""  # statements run before the call, in the source's namespace, with `target` bound to the original
    backward: bool = False  # differentiate all differentiable outputs with seeded tangents
    double_backward: bool = False  # with `backward`: differentiate the gradients as well
    grad_mode: str = "grad"  # "grad" | "no_grad" | "inference"
    training: bool | None = None  # call train() or eval() on the module first
    outside: bool = False  # only for the last call: its sizes are outside the program's `sizes`, and must be refused


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePolicy:
    """Which comparisons apply to this program. It has no tolerances: those depend on the dtype only."""

    strides: str = "exact"  # "exact" | "views" (only outputs that alias an input) | "ignore"
    aliases: bool = True
    is_random: bool | None = None  # None: determined by running eager with two seeds
    index_outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # ^ output path -> {"of": input path, "dim": int | None, "stable": bool}: compare the values at the indices
    undefined_outputs: tuple[str, ...] = ()  # paths of outputs with undefined values, such as those of torch.empty
    invariant: str = ""  # comparison up to a symmetry: "eigenvectors", "svd", "qr", "order" (oracle.judge.symmetry)
    reason: str = ""  # required if any other field differs from its default

    @property
    def describes_outputs(self) -> bool:
        """Whether it is about outputs as they are, by path or by their relation. It does not fit a program with other outputs."""
        return bool(self.index_outputs or self.undefined_outputs or self.invariant)

    def to_json(self) -> dict[str, Any]:
        """JSON without fields that have their default."""
        return _without_defaults(asdict(self), asdict(ComparePolicy()))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ComparePolicy:
        """Raises TypeError for unknown fields."""
        fields = dict(data)
        if "undefined_outputs" in fields:
            fields["undefined_outputs"] = tuple(fields["undefined_outputs"])
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Python source, a call plan, a seed. JSON round trip by `to_json`/`from_json`."""

    name: str
    source: str
    calls: tuple[Call, ...] = (Call(),)
    seed: int = 0
    is_module: bool = False
    dynamic: bool | None = None  # passed to subjects that support it
    # Ranges of the sizes that may vary, for subjects that support them (SubjectSpec.ranges): parameter -> dimension ->
    # [name, smallest, largest], as in {"x": {"0": ["batch", 3, 8]}}. Sizes of one name are equal.
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Torch configuration while a subject compiles and runs: {"torch._functorch.config.activation_memory_budget": 0.1}.
    config: Mapping[str, Any] = field(default_factory=dict)
    expects_raise: bool = False  # eager and the subject should raise on the last call
    policy: ComparePolicy = ComparePolicy()

    def __post_init__(self) -> None:
        if not self.calls:
            raise UsageError(
                seen=f"program {self.name!r} with an empty call plan",
                expected="at least one call",
                do="give it `calls`",
            )
        for call in self.calls:
            if call.values not in VALUES:
                raise UsageError(
                    seen=f"values {call.values!r} in program {self.name!r}",
                    expected=" or ".join(map(repr, VALUES)),
                    do="correct the program's call plan",
                )
            if call.grad_mode not in ("grad", "no_grad", "inference"):
                raise UsageError(
                    seen=f"grad_mode {call.grad_mode!r} in program {self.name!r}",
                    expected="'grad', 'no_grad' or 'inference'",
                    do="correct the program's call plan",
                )
        if any(call.outside for call in self.calls[:-1]) or (len(self.calls) == 1 and self.calls[0].outside):
            raise UsageError(
                seen=f"a call outside of the sizes that is not the last of several in program {self.name!r}",
                expected="calls inside of the sizes, then one outside: what it is refused with ends the plan",
                do="make a program of each call outside",
            )

    def to_json(self) -> dict[str, Any]:
        """JSON without fields that have their default, so that a plan of many thousand rows stays small."""
        data: dict[str, Any] = {"format": FORMAT_VERSION, "name": self.name, "source": self.source}
        defaults = Program(name="", source="")
        data["calls"] = [_without_defaults(asdict(call), asdict(Call())) for call in self.calls]
        for key in ("seed", "is_module", "dynamic", "sizes", "config", "expects_raise"):
            if getattr(self, key) != getattr(defaults, key):
                data[key] = getattr(self, key)
        if policy := self.policy.to_json():
            data["policy"] = policy
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Program:
        """Raises UsageError for another format version or unknown fields."""
        fields = dict(data)
        version = fields.pop("format", None)
        if version != FORMAT_VERSION:
            raise UsageError(
                seen=f"a program of format {version!r}",
                expected=f"format {FORMAT_VERSION}",
                do="use the torch-oracle version that wrote it",
            )
        try:
            calls = tuple(Call(**call) for call in fields.pop("calls", [{}]))
            policy = ComparePolicy.from_json(fields.pop("policy", {}))
            return cls(**fields, calls=calls, policy=policy)
        except TypeError as error:
            raise UsageError(
                seen=f"program {data.get('name')!r}: {error}",
                expected=f"fields among format, {', '.join(cls.__dataclass_fields__)}",
                do="correct the JSON, or use the torch-oracle version that wrote it",
            ) from error


def default_plan(call: Call, *, key: str | None, count: int = 3) -> tuple[Call, ...]:
    """The call, then the same call on other values, which shows stale results and memory that is reused too early.

    `key` identifies the program among many: of those with a backward, one in `TWICE_DIFFERENTIATED` has a double backward in its
    last call. With None it has one.
    """
    later = [replace(call, values="moved") for _ in range(count - 1)]
    digest = b"" if key is None else hashlib.blake2b(key.encode(), digest_size=4).digest()
    if call.backward and count > 2 and int.from_bytes(digest, "little") % TWICE_DIFFERENTIATED == 0:
        later[-1] = replace(later[-1], double_backward=True)
    return (call, *later)


def _without_defaults(data: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value != defaults[key]}
