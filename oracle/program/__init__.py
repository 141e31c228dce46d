"""Program: the only thing packages exchange about *what* to run.

A program is Python source plus a call plan, as JSON. Its source defines, at module level:

- `program`: a function; or, with `is_module`, a zero-argument factory (a class will do) that returns an `nn.Module`;
- optionally `inputs(call: int) -> (args, kwargs)`, used by every call that carries no input specs of its own;
- optionally `derive(*args, **kwargs) -> (args, kwargs)`: makes the arguments of the call of the inputs. Inputs are leaves;
  what is derived may be the result of an operation, or views that autograd knows to be views. Gradients are those of the inputs.

Source is executed in a worker process with the RNG seeded, so it may build its inputs from random numbers.
Inputs given as specs are rebuilt from shapes, strides, dtypes and seeds; nothing is ever unpickled.
The module itself is torch-free, like every plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from oracle.errors import UsageError

FORMAT_VERSION = 1
TWICE_DIFFERENTIATED = 4  # one program in so many
VALUES = ("given", "scaled", "moved")  # from none to the strongest change

JsonTree = Any  # the tagged JSON of oracle.program.inputs: nested lists, {"$": tag, ...} objects and plain JSON scalars


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the plan. Everything that changes between calls is said here."""

    args: JsonTree = None  # tagged JSON list (see oracle.program.inputs); None: from the source's `inputs(call)`
    kwargs: JsonTree = None  # tagged JSON object; None: none, or from `inputs(call)`
    values: str = (
        "given"  # "given" | "scaled" | "moved": other values in the same arguments, see oracle.program.other_values
    )
    before: str = ""  # statements run before the call, in the source's namespace, with `target` bound to the original
    backward: bool = False  # then differentiate all differentiable outputs with seeded tangents
    double_backward: bool = False  # then, with `backward`, differentiate its gradients as well
    grad_mode: str = "grad"  # "grad" | "no_grad" | "inference"
    training: bool | None = None  # call train()/eval() on the module first
    outside: bool = False  # the last call only: its sizes are outside of the program's `sizes`, and must be refused


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePolicy:
    """What this program promises beyond values. There is no tolerance here: no case has one of its own."""

    strides: str = "exact"  # "exact" | "views" (only outputs that alias an input) | "ignore"
    aliases: bool = True
    is_random: bool | None = None  # None: found out by running eager with two seeds
    index_outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # ^ output path -> {"of": input path, "dim": int | None, "stable": bool}: compare the values at the indices
    undefined_outputs: tuple[str, ...] = ()  # output paths whose values are not defined (empty, uninitialised)
    invariant: str = (
        ""  # name of a comparison up to a symmetry: "eigenvectors", "svd", "qr", "order"; see oracle.judge.symmetry
    )
    reason: str = ""  # required with any departure from the defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Python source, a call plan, a seed. JSON round trip by `to_json`/`from_json`."""

    name: str
    source: str
    calls: tuple[Call, ...] = (Call(),)
    seed: int = 0
    is_module: bool = False
    dynamic: bool | None = None  # handed to subjects that take it
    sizes: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # which sizes may vary, and how far; handed to subjects that take it (SubjectSpec.ranges)
    # ^ parameter -> dimension -> [name, smallest, largest]: {"x": {"0": ["batch", 3, 8]}}; one name is one size
    config: Mapping[str, Any] = field(
        default_factory=dict
    )  # torch configuration held while a subject compiles and runs
    # ^ {"torch._functorch.config.activation_memory_budget": 0.1}; subjects that do not read torch's configuration ignore it
    expects_raise: bool = False  # eager is meant to raise on the last call, and so is the subject
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
                    do="mend the program's call plan",
                )
            if call.grad_mode not in ("grad", "no_grad", "inference"):
                raise UsageError(
                    seen=f"grad_mode {call.grad_mode!r} in program {self.name!r}",
                    expected="'grad', 'no_grad' or 'inference'",
                    do="mend the program's call plan",
                )
        if any(call.outside for call in self.calls[:-1]) or (len(self.calls) == 1 and self.calls[0].outside):
            raise UsageError(
                seen=f"a call outside of the sizes that is not the last of several in program {self.name!r}",
                expected="calls inside of the sizes, then one outside: what it is refused with ends the plan",
                do="make a program of each call outside",
            )

    def to_json(self) -> dict[str, Any]:
        """Only what differs from the defaults, so that a plan of many thousand rows stays small."""
        data: dict[str, Any] = {"format": FORMAT_VERSION, "name": self.name, "source": self.source}
        defaults = Program(name="", source="")
        data["calls"] = [_without_defaults(asdict(call), asdict(Call())) for call in self.calls]
        for key in ("seed", "is_module", "dynamic", "sizes", "config", "expects_raise"):
            if getattr(self, key) != getattr(defaults, key):
                data[key] = getattr(self, key)
        policy = _without_defaults(asdict(self.policy), asdict(ComparePolicy()))
        if policy:
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
            policy_fields = dict(fields.pop("policy", {}))
            if "undefined_outputs" in policy_fields:
                policy_fields["undefined_outputs"] = tuple(policy_fields["undefined_outputs"])
            return cls(**fields, calls=calls, policy=ComparePolicy(**policy_fields))
        except TypeError as error:
            raise UsageError(
                seen=f"program {data.get('name')!r}: {error}",
                expected=f"fields among format, {', '.join(cls.__dataclass_fields__)}",
                do="mend the JSON, or use the torch-oracle version that wrote it",
            ) from error


def default_plan(call: Call, *, key: str | None, count: int = 3) -> tuple[Call, ...]:
    """The call, then again on other values: what a compiler kept of the call before shows, and what it gave back too early.

    `key` says which of many programs it is: of those with a backward, one in `TWICE_DIFFERENTIATED` has gradients of its
    gradients in the last call. None: it is the only one, and has them.
    """
    later = [replace(call, values="moved") for _ in range(count - 1)]
    digest = b"" if key is None else hashlib.blake2b(key.encode(), digest_size=4).digest()
    if call.backward and count > 2 and int.from_bytes(digest, "little") % TWICE_DIFFERENTIATED == 0:
        later[-1] = replace(later[-1], double_backward=True)
    return (call, *later)


def _without_defaults(data: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value != defaults[key]}
