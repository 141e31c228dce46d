"""Records of pytree specs, with container types by their registered names.

Counterpart: treespec_dumps, treespec_loads of torch/utils/_pytree.py
Differs: no class is imported by a name in the file; classes registered without a serialized name have their qualified name.
"""

from __future__ import annotations

import collections
from typing import Any

from refimpl._torch import pytree
from refimpl.export.archive.errors import ArchiveError, field, identifier, optional
from refimpl.export.archive.values import ValueReader, ValueWriter

LEAF = "*"
_FACTORIES: dict[str, Any] = {
    "list": list, "dict": dict, "set": set, "tuple": tuple, "int": int, "float": float, "str": str, "bool": bool, "none": None,
}  # fmt: skip
_NO_NAME = "NO_SERIALIZED_TYPE_NAME_FOUND"


def tree_record(spec: pytree.TreeSpec, values: ValueWriter, where: str) -> Any:
    """The record of a spec. Raises ArchiveError for containers that cannot be found by their name."""
    if spec.type is None:
        return LEAF
    generic = {"is_generic": True} if spec.type is collections.namedtuple else {}  # an unregistered named tuple
    return {
        **generic,
        "type": _type_name(_class_of(spec), where),
        "context": _context_record(spec, values, where),
        "children": [tree_record(child, values, where) for child in spec.children()],
    }


def _class_of(spec: pytree.TreeSpec) -> Any:
    return spec.context if spec.type is collections.namedtuple else spec.type


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _type_name(kind: Any, where: str) -> str:
    name = next((name for name, known in _registered() if known is kind), None)
    if name is not None and _type_named(name) is kind:
        return name
    raise ArchiveError(
        seen=f"{where} has a container {kind.__module__}.{kind.__qualname__}, which has no unique registered name",
        expected="containers that are registered with a unique name",
        do="register it with refimpl.export.register_dataclass(cls, serialized_type_name=...), or for a named tuple with torch's "
        "register function",
    )


def _registered() -> list[tuple[str, Any]]:
    """Registered types with their names: the serialized type name, else the qualified name of the class."""
    names = [
        (node.serialized_type_name, kind)
        for kind, node in pytree.SUPPORTED_SERIALIZED_TYPES.items()
        if node.serialized_type_name != _NO_NAME
    ]
    named = {id(kind) for _, kind in names}
    own = [(_own_name(kind), kind) for kind in pytree.SUPPORTED_NODES if id(kind) not in named]
    return [*names, *((name, kind) for name, kind in own if not _is_private(name))]


def _is_private(name: str) -> bool:
    """Whether the name is of a private module of torch."""
    package, _, rest = name.partition(".")
    return package == "torch" and rest.startswith("_")


def _own_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _type_named(name: str) -> Any:
    found = [kind for known, kind in _registered() if known == name]
    if len(found) == 1:
        return found[0]
    raise ArchiveError(
        seen=f"the container {name!r}, which is the name of {len(found) or 'no'} registered classes in this process",
        expected="one class",
        do="import the module that registers it (refimpl.export.register_dataclass) with a unique name before loading",
    )


def _context_record(spec: pytree.TreeSpec, values: ValueWriter, where: str) -> Any:
    kind = spec.type
    if _is_named_tuple(_class_of(spec)):
        return None
    if kind is collections.defaultdict:
        factory, keys = spec.context
        name = next((name for name, known in _FACTORIES.items() if known is factory), None)
        if name is None:
            raise ArchiveError(seen=f"{where} has a defaultdict of {factory!r}", expected=f"one of {sorted(_FACTORIES)}",
                               do="use a dict")  # fmt: skip
        return [name, values.record(list(keys), where)]
    return values.record(spec.context, f"{where}, a {kind.__name__},")


def to_tree(record: Any, values: ValueReader, where: str) -> pytree.TreeSpec:
    """Build a spec. Raises ArchiveError for containers that are not registered, and for invalid records."""
    if record == LEAF:
        return pytree.tree_flatten(0)[1]
    kind = _type_named(field(record, "type", str, where))
    children = [to_tree(child, values, where) for child in field(record, "children", list, where)]
    context = record.get("context")
    if _is_named_tuple(kind):
        if len(children) != len(kind._fields):
            raise ArchiveError(
                seen=f"{where}: a {kind.__name__} with {len(children)} fields", expected=f"the fields {kind._fields}",
                do="load it with the version of the class that it was saved with",
            )  # fmt: skip
        generic = optional(record, "is_generic", bool, where)
        return pytree.TreeSpec(collections.namedtuple if generic else kind, kind, children)
    if kind is collections.defaultdict:
        if not isinstance(context, list) or len(context) != 2 or context[0] not in _FACTORIES:
            raise ArchiveError(
                seen=f"{where}: a defaultdict of {context!r}", expected=f"one of {sorted(_FACTORIES)} and keys"
            )
        found: Any = [_FACTORIES[context[0]], values.value(context[1], where)]
    else:
        found = values.value(context, where)
    if kind in (dict, collections.OrderedDict) and (not isinstance(found, list) or len(found) != len(children)):
        raise ArchiveError(seen=f"{where}: keys {found!r}", expected=f"{len(children)} keys")
    return pytree.TreeSpec(kind, found, children)


def check_call(spec: pytree.TreeSpec, where: str) -> pytree.TreeSpec:
    """Check that a spec is one of (args, kwargs). Names of kwargs must be identifiers, since generated code contains them."""
    children = spec.children() if spec.type is tuple else []
    if len(children) != 2 or children[0].type is not tuple or children[1].type is not dict:
        raise ArchiveError(seen=f"{where} is {spec}", expected="(args, kwargs)")
    for name in children[1].context:
        identifier(name, where)
    return spec
