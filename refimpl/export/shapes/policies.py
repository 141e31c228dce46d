"""Converts `dynamic_shapes` to a policy for every leaf of the inputs.

Counterpart: torch/export/dynamic_shapes.py _check_dynamic_shapes, _process_dynamic_shapes, _tree_map_with_path
Differs: dimensions are recognised by their attributes (`__name__`, `min`, `max`, `root`, `fn`), so that those of torch.export
work too. Shapes for `**kwargs` may be given by the keywords or below the parameter's name; upstream takes one, by mode.
"""

from __future__ import annotations

import collections
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from refimpl._torch import pytree
from refimpl.export.errors import invalid_input
from refimpl.export.shapes.dims import NO_LIMIT
from refimpl.symbolic.dynamic_shapes import DimSpec, InputPolicy

_HINTS = {"AUTO": "OWN", "DYNAMIC": "DYNAMIC", "STATIC": "STATIC"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLeaf:
    """One leaf of the inputs, in the order of pytree's leaves of (args, kwargs).

    path: the Python source after the argument's name, `['k'][0]`. words: its parts, for the placeholder's name. policy: that of a
    tensor; number: that of a dynamic integer, None for a constant.
    """

    argument: str
    path: str
    words: tuple[str, ...]
    value: Any
    policy: InputPolicy | None = None
    number: DimSpec | None = None

    @property
    def source(self) -> str:
        """Python source that reads the leaf from a dictionary of the arguments."""
        return f"L[{self.argument!r}]{self.path}"


def input_leaves(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> list[InputLeaf]:
    """All leaves of (args, kwargs), with the policies of their sizes.

    Raises UserError if the arguments do not match the signature, or `dynamic_shapes` the arguments.
    """
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise invalid_input(f"{error}\n  expected: arguments for forward{signature}") from error
    arguments = list(_arguments(signature, args, kwargs))
    specs = _by_argument(list(signature.parameters), arguments, dynamic_shapes)
    by_name = isinstance(dynamic_shapes, Mapping)
    parameters = sorted({parameter for _, _, (parameter, _) in arguments}, key=list(signature.parameters).index)
    leaves: list[InputLeaf] = []
    for (name, value, (parameter, key)), spec in zip(arguments, specs, strict=True):
        path = f"[{parameter!r}]" if by_name else f"[{parameters.index(parameter)}]"
        place = _Place(path=path if key is None else f"{path}[{key!r}]")
        leaves += _leaves(name, "", (name,), value, spec, place)
    _check_definitions(leaves)
    return leaves


def _check_definitions(leaves: Sequence[InputLeaf]) -> None:
    """Raises UserError for two Dims with the same name and different bounds."""
    known: dict[str, DimSpec] = {}
    for leaf in leaves:
        specs = [] if leaf.policy is None else list(leaf.policy.dims.values())
        for spec in [*specs, *([] if leaf.number is None else [leaf.number])]:
            if spec.name is None:
                continue
            first = known.setdefault(spec.name, spec)
            if (first.min, first.max) != (spec.min, spec.max):
                raise invalid_input(
                    f"Found different definitions {_defined(first)} and {_defined(spec)} for the same symbolic dimension\n"
                    "  what to do: use one Dim for all dimensions of one size, and other names for other sizes"
                )


def _defined(spec: DimSpec) -> str:
    bounds = [f", {name}={bound}" for name, bound in (("min", spec.min), ("max", spec.max)) if bound is not None]
    return f"Dim({spec.name!r}{''.join(bounds)})"


def argument_names(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """A name for every argument of a call, positional ones first; those of `*args` are numbered."""
    return [name for name, _, _ in _arguments(signature, args, kwargs)]


# name; value; name of the parameter, and the index or key in it if it is *args or **kwargs
Argument = tuple[str, Any, tuple[str, Any]]


def _arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Argument]:
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    keywords = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "kwargs")
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for index, value in enumerate(args):
        if index < len(positional):
            yield positional[index].name, value, (positional[index].name, None)
        else:
            place = index - len(positional)
            yield f"{variadic}_{place}", value, (variadic, place)
    for name, value in kwargs.items():
        yield name, value, (name, None) if name in named else (keywords, name)


def _by_argument(parameters: list[str], arguments: Sequence[Argument], dynamic_shapes: Any) -> list[Any]:
    """The dynamic shapes of each argument. A list of shapes is in the order of the parameters; keywords of a call may not be."""
    if not dynamic_shapes:  # also {} and ()
        return [None] * len(arguments)
    names = sorted({parameter for _, _, (parameter, _) in arguments}, key=parameters.index)
    if isinstance(dynamic_shapes, Mapping):
        flat = list(dict.fromkeys(p if type(place) is not str else place for _, _, (p, place) in arguments))
        if set(dynamic_shapes) not in (set(names), set(flat)):
            hint = _forgotten_list(arguments, dynamic_shapes)
            raise invalid_input(
                "When `dynamic_shapes` is specified as a dict, its top-level keys must be the arg names "
                f"{names} of `inputs`, but here they are {list(dynamic_shapes)}. {hint}Alternatively, "
                "you could also ignore arg names entirely and specify `dynamic_shapes` as a list/tuple matching `inputs`."
            )
        shapes = dict(dynamic_shapes)
    elif isinstance(dynamic_shapes, (list, tuple)):
        if len(dynamic_shapes) != len(names):
            raise invalid_input(
                f"When `dynamic_shapes` is specified as a list/tuple, it has one entry for each of the arguments {names}, "
                f"but here it has {len(dynamic_shapes)}"
            )
        shapes = dict(zip(names, dynamic_shapes, strict=True))
    else:
        raise invalid_input(
            f"`dynamic_shapes` is a {type(dynamic_shapes).__name__}\n  expected: a dict by argument, a list or tuple"
        )
    return [_shape_of(parameter, place, shapes, arguments) for _, _, (parameter, place) in arguments]


def _forgotten_list(arguments: Sequence[Argument], shapes: Mapping[str, Any]) -> str:
    """A hint for the shapes of a single dict, which look like shapes by name."""
    value = arguments[0][1] if len(arguments) == 1 else None
    if not isinstance(value, Mapping) or set(shapes) != set(value):
        return ""
    return (
        "Since here `inputs` is a list/tuple enclosing a single dict, maybe you just forgot to enclose `dynamic_shapes` "
        "in a list/tuple? "
    )


def _shape_of(parameter: str, place: Any, shapes: Mapping[str, Any], arguments: Sequence[Argument]) -> Any:
    if place is None:
        return shapes[parameter]
    if isinstance(place, str) and parameter not in shapes:
        return shapes[place]
    variadic = shapes[parameter]
    if variadic is None:
        return None
    places = [inner for _, _, (name, inner) in arguments if name == parameter]
    if isinstance(place, int):
        if not isinstance(variadic, (list, tuple)) or len(variadic) != len(places):
            raise _misfit(
                parameter, variadic, f"a list or tuple of {len(places)}, one for each argument in *{parameter}"
            )
        return variadic[place]
    if not isinstance(variadic, Mapping) or set(variadic) != set(places):
        raise _misfit(parameter, variadic, f"a dict with the keys {places}")
    return variadic[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The Python source after `inputs` and `dynamic_shapes` that reads a part of them, for messages."""

    path: str

    def mismatch(self, input_is: str, shapes_are: str) -> Exception:
        return invalid_input(
            "Detected mismatch between the structure of `inputs` and `dynamic_shapes`: "
            f"`inputs{self.path}` {input_is}, but `dynamic_shapes{self.path}` {shapes_are}"
        )


def _leaves(
    argument: str, path: str, words: tuple[str, ...], value: Any, spec: Any, place: _Place
) -> Iterator[InputLeaf]:
    if pytree.tree_is_leaf(value):
        yield _leaf(argument, path, words, value, spec, place)
        return
    keys, children = _children(value)
    specs = _specs_of_children(place, value, keys, spec)
    for key, child, inner_spec in zip(keys, children, specs, strict=True):
        step = f".{key}" if isinstance(key, _Field) else f"[{key!r}]"
        inner = _Place(path=f"{place.path}{step}")
        yield from _leaves(argument, f"{path}{step}", (*words, str(key)), child, inner_spec, inner)


_STANDARD = (list, dict, collections.OrderedDict, collections.defaultdict, collections.deque)


def map_arguments(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Map the leaves of an argument, and those of others of the same form. An instance of a user's class becomes the list of its
    children: the class may not take shapes where it has tensors, and `dynamic_shapes` takes the list too."""

    def mapped(part: Any, *parts: Any) -> Any:
        if pytree.tree_is_leaf(part):
            return function(part, *parts)
        children = [_children(each)[1] for each in (part, *parts)]
        return [map_arguments(function, *each) for each in zip(*children, strict=True)]

    return pytree.tree_map(mapped, value, *others, is_leaf=lambda part: not _is_standard(part))


def _is_standard(value: Any) -> bool:
    return type(value) in _STANDARD or isinstance(value, tuple)


class _Field(str):
    """The name of an attribute, as the key of a child."""


def _children(value: Any) -> tuple[list[Any], list[Any]]:
    """Keys and children of a container, in pytree's order."""
    pairs, _ = pytree.tree_flatten_with_path(value, is_leaf=lambda inner: inner is not value)
    keys: list[Any] = [path[0] for path, _ in pairs]
    names = [
        _Field(key.name) if hasattr(key, "name") else getattr(key, "key", getattr(key, "idx", None)) for key in keys
    ]
    return names, [child for _, child in pairs]


def _specs_of_children(place: _Place, value: Any, keys: list[Any], spec: Any) -> list[Any]:
    if spec is None:
        return [None] * len(keys)
    other_type = place.mismatch(f"is a {type(value)}", "is not" if pytree.tree_is_leaf(spec) else f"is a {type(spec)}")
    if isinstance(value, Mapping):
        if not isinstance(spec, Mapping):
            raise other_type
        if set(spec) != set(keys):
            raise place.mismatch(f"has keys {keys}", f"has keys {list(spec)}")
        return [spec[key] for key in keys]
    if isinstance(spec, Mapping) and set(spec) == {str(key) for key in keys}:  # the fields of a dataclass
        return [spec[str(key)] for key in keys]
    if {type(value), type(spec)} == {list, tuple} or not (isinstance(spec, (list, tuple)) or type(spec) is type(value)):
        raise other_type
    given = list(spec) if isinstance(spec, (list, tuple)) else _children(spec)[1]
    if len(given) != len(keys):
        raise place.mismatch(f"has {len(keys)} elements", f"has {len(given)} elements")
    return given


def _leaf(argument: str, path: str, words: tuple[str, ...], value: Any, spec: Any, place: _Place) -> InputLeaf:
    name = f"{argument}{path}"
    leaf = InputLeaf(argument=argument, path=path, words=words, value=value)
    if isinstance(value, torch.Tensor):
        return replace(leaf, policy=_policy(name, value, spec, place))
    if spec is None:
        return leaf
    if type(value) is int:
        number = _dim_spec(name, spec, value)
        return leaf if number.policy == "STATIC" else replace(leaf, number=number)
    raise _misfit(name, spec, f"None, for the input is a {type(value).__name__}")


def _policy(name: str, tensor: torch.Tensor, spec: Any, place: _Place) -> InputPolicy:
    dims = {dim: DimSpec.static() for dim in range(tensor.dim())}
    items: Mapping[Any, Any] = {}
    if isinstance(spec, Mapping):
        items = spec
    elif isinstance(spec, (list, tuple)):
        if len(spec) != tensor.dim():
            raise invalid_input(
                f"Expected dynamic shape spec {spec!r} specified at `dynamic_shapes{place.path}` to have the same length as the "
                f"actual tensor shape {tensor.shape} (expected {tensor.dim()}, but got {len(spec)} instead)"
            )
        items = dict(enumerate(spec))
    elif spec is not None:
        raise invalid_input(
            f"Unexpected input tensor shape {spec!r} specified at `dynamic_shapes{place.path}` (expected either a list/tuple of "
            "dimensions, or a dict mapping indices to dimensions, where each dimension is an int, a Dim, Dim.AUTO, Dim.STATIC, "
            "or Dim.DYNAMIC)"
        )
    for dim, dynamic in items.items():
        if not isinstance(dim, int) or not 0 <= dim < tensor.dim():
            raise _misfit(name, spec, f"dimensions from 0 to {tensor.dim() - 1}, and {dim!r} is none of them")
        dims[dim] = _dim_spec(f"{name}.shape[{dim}]", dynamic, tensor.shape[dim])
    return InputPolicy(dims)


def _dim_spec(name: str, dynamic: Any, size: int) -> DimSpec:
    if dynamic is None:
        return DimSpec.static()
    if type(dynamic) is int:
        if dynamic != size:
            raise invalid_input(
                f"Static shape constraint of {dynamic} does not match input size of {size}, for {name}\n"
                "  what to do: give the size of the example, or a Dim"
            )
        return DimSpec.static()
    hint = getattr(getattr(dynamic, "type", None), "name", None)
    if hint in _HINTS:
        return DimSpec(_HINTS[hint], dynamic.min or None, _bound(dynamic.max))  # pyright: ignore[reportArgumentType]
    if not hasattr(dynamic, "min") or not hasattr(dynamic, "__name__"):
        raise invalid_input(
            f"Unexpected dimension {dynamic!r} of {name}\n  expected: None, an int, a Dim, Dim.AUTO, Dim.DYNAMIC or Dim.STATIC"
        )
    root = getattr(dynamic, "root", dynamic)
    spec = DimSpec.dynamic(root.__name__, min=root.min or None, max=_bound(root.max), strict=True)
    if root is dynamic:
        return spec
    offset = dynamic.fn(0)
    return spec.times(dynamic.fn(1) - offset).plus(offset)


def _bound(limit: Any) -> int | None:
    """The bound; None for no limit."""
    return limit if type(limit) is int and limit < NO_LIMIT else None


def _misfit(name: str, spec: Any, expected: str) -> Exception:
    return invalid_input(f"Detected mismatch between the structure of `inputs` and `dynamic_shapes`: {name} has the "
                         f"shapes {spec!r}\n  expected: {expected}")  # fmt: skip


def signature_of(module: torch.nn.Module) -> inspect.Signature:
    """The signature of `forward`."""
    return inspect.signature(module.forward)
