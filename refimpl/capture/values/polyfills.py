"""Polyfills: Python functions that are interpreted in place of C functions some steps of which may run code of the user's.

Counterpart: torch/_dynamo/polyfills
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any


def initialised(instance: Any, init: Any, args: Any, kwargs: Any) -> Any:
    """Calls `__init__` on a new object."""
    found = init(instance, *args, **kwargs)
    if found is not None:
        raise TypeError(f"__init__() should return None, not '{type(found).__name__}'")
    return instance


def do_nothing(instance: Any) -> None:
    """`object.__init__`."""


def any_of(iterable: Any) -> bool:
    """`any`."""
    for item in iterable:  # noqa: SIM110 - it stands for what is proposed
        if item:
            return True
    return False


def all_of(iterable: Any) -> bool:
    """`all`."""
    for item in iterable:  # noqa: SIM110 - likewise
        if not item:
            return False
    return True


def total(iterable: Any, start: Any = 0) -> Any:
    """`sum`."""
    for item in iterable:
        start = start + item
    return start


def product(iterable: Any, start: Any) -> Any:
    """`math.prod`."""
    for item in iterable:
        start = start * item
    return start


def next_of(iterator: Any) -> Any:
    """`next` of an iterator."""
    for item in iterator:
        return item
    raise StopIteration


def next_or(iterator: Any, default: Any) -> Any:
    """`next(iterator, default)` of an iterator."""
    for item in iterator:
        return item
    return default


def closed(generator: Any) -> None:
    """`generator.close()` of a suspended generator."""
    try:
        generator.throw(GeneratorExit)
    except (GeneratorExit, StopIteration):
        return
    raise RuntimeError("generator ignored GeneratorExit")


def has(object_: Any, name: str) -> bool:
    """`hasattr`."""
    try:
        getattr(object_, name)
    except AttributeError:
        return False
    return True


def attribute_by_two(reader: Any, otherwise: Any, object_: Any, name: str) -> Any:
    """`object_.name` where the class has both `__getattribute__` and `__getattr__`."""
    try:
        return reader(object_, name)
    except AttributeError:
        return otherwise(object_, name)


def attribute_or(object_: Any, name: str, default: Any) -> Any:
    """`getattr(object, name, default)`."""
    try:
        return getattr(object_, name)
    except AttributeError:
        return default


def listed(iterable: Any) -> Any:
    """`[*iterable]`."""
    items = []
    for item in iterable:
        items.append(item)
    return items


def unpacked(iterable: Any, count: int) -> Any:
    """The items to unpack into `count` variables. It requests one more item, as Python does, and not all."""
    items = []
    for item in iterable:
        items.append(item)
        if len(items) > count:
            failed(ValueError)
    return items


def extended(target: Any, iterable: Any) -> None:
    """`target.extend(iterable)`."""
    for item in iterable:
        target.append(item)


def extended_in_place(target: Any, iterable: Any) -> Any:
    """`target += iterable`."""
    for item in iterable:
        target.append(item)
    return target


def item_of(keys: Any, object_: Any) -> Any:
    """`operator.itemgetter(*keys)(object_)`."""
    if len(keys) == 1:
        return object_[keys[0]]
    items = []
    for key in keys:
        items.append(object_[key])
    return tuple(items)


def attribute_of(names: Any, object_: Any) -> Any:
    """`operator.attrgetter(*names)(object_)`, with each name split at its dots."""
    found = []
    for parts in names:
        attribute = object_
        for part in parts:
            attribute = getattr(attribute, part)
        found.append(attribute)
    return found[0] if len(found) == 1 else tuple(found)


def method_called(name: Any, args: Any, kwargs: Any, object_: Any) -> Any:
    """`operator.methodcaller(name, *args, **kwargs)(object_)`."""
    return getattr(object_, name)(*args, **kwargs)


def computed_once(instance: Any, function: Any, name: str) -> Any:
    """`functools.cached_property`."""
    value = function(instance)
    setattr(instance, name, value)
    return value


def counted_into(table: Any, iterable: Any) -> None:
    """`collections.Counter.update` with an iterable."""
    for item in iterable:
        table[item] = table.get(item, 0) + 1


def called_with_second_list(function: Any, first: Any, iterable: Any) -> Any:
    """`function(first, iterable)`, for a function that first reads the iterable to the end."""
    items = []
    for item in iterable:
        items.append(item)
    return function(first, items)


def constant_only(result: Any, changes: int, cached: Any, args: Any, kwargs: Any) -> Any:
    """The result, if it is a constant, was computed without effects, and equals the cached one. The domain implements it."""
    return result


def called_for_a_constant(function: Any, args: Any, kwargs: Any, changes: int, cached: Any) -> Any:
    """Calls the function behind a cache."""
    return constant_only(function(*args, **kwargs), changes, cached, args, kwargs)


def called_for_nothing(function: Any, first: Any, second: Any) -> None:
    """`function(first, second)` without its result."""
    function(first, second)


def called_with_each(function: Any, iterable: Any, kwargs: Any) -> Any:
    """`function(*iterable, **kwargs)`."""
    items = []
    for item in iterable:
        items.append(item)
    return function(*items, **kwargs)


def called_with_list(function: Any, iterable: Any, rest: Any, kwargs: Any) -> Any:
    """`function(iterable, *rest, **kwargs)`, for a function that first reads the iterable to the end."""
    items = []
    for item in iterable:
        items.append(item)
    return function(items, *rest, **kwargs)


def failed(kind: Any) -> None:
    """Raises an exception whose arguments are not known. The domain implements it."""
    raise kind


def truth_of(value: Any) -> bool:
    """`bool(value)`."""
    return True if value else False  # noqa: SIM210 - it stands for what is proposed


def negated(value: Any) -> bool:
    """`not value`."""
    return False if value else True  # noqa: SIM211 - it stands for what is proposed


def truth_by(function: Any, object_: Any) -> bool:
    """`bool(object_)` by `__bool__`."""
    found = function(object_)
    if type(found) is not bool:
        raise TypeError(f"__bool__ should return bool, returned {type(found).__name__}")
    return found


def length_by(function: Any, object_: Any) -> int:
    """`len(object_)` by `__len__`."""
    found = operator.index(function(object_))
    if found < 0:
        raise ValueError("__len__() should return >= 0")
    return found


def truth_by_length(function: Any, object_: Any) -> bool:
    """`bool(object_)` by `__len__`."""
    return length_by(function, object_) != 0


def unbound(tensor: Any) -> Any:
    """`iter(tensor)`."""
    return iter(tensor.unbind(0))


def iterated_by(function: Any, object_: Any) -> Any:
    """`iter(object_)` by `__iter__`."""
    found = function(object_)
    if not is_iterator(found):
        raise TypeError(f"iter() returned non-iterator of type '{type(found).__name__}'")
    return found


def is_iterator(value: Any) -> bool:
    """Whether the class has `__next__`. The domain implements it."""
    return hasattr(type(value), "__next__")


def text_by(function: Any, object_: Any, name: str) -> Any:
    """`str(object_)` or `repr(object_)`, by the method of that name."""
    found = function(object_)
    if not isinstance(found, str):
        raise TypeError(f"{name} returned non-string (type {type(found).__name__})")
    return found


def format_by(function: Any, object_: Any, spec: Any) -> Any:
    """`format(object_, spec)` by `__format__`."""
    found = function(object_, spec)
    if not isinstance(found, str):
        raise TypeError(f"__format__ must return a str, not {type(found).__name__}")
    return found


def number_by(function: Any, object_: Any, kind: Any, returned: str) -> Any:
    """`int(object_)`, `float(object_)` or `complex(object_)`, by that method. returned: the beginning of the error."""
    found = function(object_)
    if not isinstance(found, kind):
        raise TypeError(f"{returned} (type {type(found).__name__})")
    if type(found) is not kind:
        # The graph breaks, and Python warns.
        warnings.warn("a subclass is deprecated", DeprecationWarning, stacklevel=2)
    return kind(found)


def hash_by(function: Any, object_: Any) -> Any:
    """`hash(object_)` by `__hash__`."""
    found = function(object_)
    if not isinstance(found, int):
        raise TypeError("__hash__ method should return an integer")
    if not -(1 << 63) <= found < 1 << 63:
        return hash(found)
    return -2 if found == -1 else int(found)  # -1 stands for an error in C


def matched(subject: Any, kind: Any, takes_itself: bool, names: Any) -> Any:
    """What a class pattern of `match` compares with its parts: attributes, before them the subject if it `takes_itself`. None if
    the pattern does not match.
    """
    if not isinstance(subject, kind):
        return None
    found = [subject] if takes_itself else []
    for name in names:
        try:
            found.append(getattr(subject, name))
        except AttributeError:
            return None
    return tuple(found)


def holds_for_any(asked: Any, value: Any) -> bool:
    """`isinstance(value, classes)`: pairs of a method and its class, or of None and an answer that is known."""
    for function, class_ in asked:  # noqa: SIM110 - a generator would be one more frame
        if class_ if function is None else function(class_, value):
            return True
    return False


def contained_by(function: Any, container: Any, item: Any, wanted: bool) -> bool:
    """`item in container`, by a method; `not in` if `wanted` is False."""
    return wanted if function(container, item) else not wanted


def next_by(iterator: Any, default: Any) -> Any:
    """`next(iterator, default)` of an object of the program's classes."""
    try:
        return iterator.__next__()
    except StopIteration:
        return default


def same(left: Any, right: Any) -> bool:
    """Compares items as containers do. The domain implements it."""
    return left is right


def index_of(items: Any, sought: Any) -> int | None:
    """`items.index(sought)`."""
    for index, item in enumerate(items):
        if same(item, sought) or item == sought:
            return index
    failed(ValueError)


def count_of(items: Any, sought: Any) -> int:
    """`items.count(sought)`."""
    count = 0
    for item in items:
        if same(item, sought) or item == sought:
            count += 1
    return count


def contained(items: Any, sought: Any, wanted: bool) -> bool:
    """`sought in items`; `not in` if `wanted` is False."""
    for item in items:
        if same(item, sought) or item == sought:
            return wanted
    return not wanted


def added(target: Any, iterable: Any) -> None:
    """`target.update(iterable)` of a set."""
    for item in iterable:
        target.add(item)


def merged(target: Any, mapping: Any, is_unique: bool) -> None:
    """`target |= mapping` for a mapping that is no dict. is_unique: it is an error if the target has one of its keys."""
    for key in mapping.keys():  # noqa: SIM118 - Python asks for the keys
        if is_unique and key in target:
            raise TypeError("got multiple values for a keyword argument")
        target[key] = mapping[key]


def filled(target: Any, mapping: Any, named: Any) -> Any:
    """`target.update(mapping, **named)` for a mapping that is no dict, as an expression."""
    for key in mapping.keys():  # noqa: SIM118 - likewise
        target[key] = mapping[key]
    target.update(named)
    return target


def updated_from(target: Any, mapping: Any, named: Any) -> None:
    """`target.update(mapping, **named)` for a mapping that is no dict."""
    filled(target, mapping, named)


def updated(target: Any, pairs: Any, named: Any) -> None:
    """`target.update(pairs, **named)` of a dict, for pairs that an iterator gives."""
    for key, value in pairs:
        target[key] = value
    target.update(named)


def removed(items: Any, sought: Any) -> None:
    """`items.remove(sought)`."""
    for index, item in enumerate(items):
        if same(item, sought) or item == sought:
            del items[index]
            return
    failed(ValueError)


def equal_sequences(left: Any, right: Any, wanted: bool) -> bool:
    """`left == right` of two sequences; `!=` if `wanted` is False."""
    if len(left) != len(right):
        return not wanted
    index = 0
    while index < len(left) and index < len(right):  # a comparison may change them
        if not same(left[index], right[index]) and not left[index] == right[index]:  # noqa: SIM201 - `!=` may be another method
            return not wanted
        index += 1
    return wanted if len(left) == len(right) else not wanted


def equal_dicts(left: Any, right: Any, wanted: bool) -> bool:
    """`left == right` of two dicts; `!=` if `wanted` is False."""
    if len(left) != len(right):
        return not wanted
    for key, item in left.items():
        if key not in right:
            return not wanted
        other = right[key]
        if not same(item, other) and not item == other:  # noqa: SIM201 - likewise
            return not wanted
    return wanted


def made_for(table: Any, key: Any, factory: Any) -> Any:
    """`defaultdict.__missing__`."""
    item = factory()
    table[key] = item
    return item


def ordered(items: Any, keys: Any, reverse: Any) -> Any:
    """The items sorted by the keys. The domain implements it."""
    return [item for _, item in sorted(zip(keys, items, strict=True), reverse=reverse)]


def sorted_by(iterable: Any, key: Any, reverse: Any) -> Any:
    """`sorted` with a key."""
    items, keys = [], []
    for item in iterable:
        items.append(item)
    for item in items:
        keys.append(key(item))
    return ordered(items, keys, reverse)


def sorted_in_place(items: Any, key: Any, reverse: Any) -> None:
    """`items.sort` with a key."""
    keys = []
    for item in items:
        keys.append(key(item))
    items[:] = ordered(items, keys, reverse)


def least(iterable: Any, key: Any) -> Any:
    """`min` with a key."""
    is_first, found, found_key = True, None, None
    for item in iterable:
        item_key = item if key is None else key(item)
        if is_first or item_key < found_key:
            is_first, found, found_key = False, item, item_key
    if is_first:
        failed(ValueError)
    return found


def greatest(iterable: Any, key: Any) -> Any:
    """`max` with a key."""
    is_first, found, found_key = True, None, None
    for item in iterable:
        item_key = item if key is None else key(item)
        if is_first or item_key > found_key:
            is_first, found, found_key = False, item, item_key
    if is_first:
        failed(ValueError)
    return found


def extremum_of_tensors(items: Any, is_better: Any, where: Any) -> Any:
    """`min` or `max` of numbers some of which are in tensors: the first one that no other is better than."""
    found, *others = items
    for item in others:
        decision = is_better(item, found)
        found = (item if decision else found) if type(decision) is bool else where(decision, item, found)
    return found


def first_of(results: Any) -> Any:
    """An operator: the result of the first method that does not return NotImplemented. `results`: functions with their two
    arguments.
    """
    for function, left, right in results:
        result = function(left, right)
        if result is not NotImplemented:
            return result
    failed(TypeError)


def equal_by(results: Any, otherwise: bool) -> Any:
    """`==` or `!=`, by the first method that does not return NotImplemented; else by identity."""
    for function, left, right, is_inverted in results:
        result = function(left, right)
        if result is not NotImplemented:
            return (not result) if is_inverted else result
    return otherwise


class FunctionContext:
    """The `ctx` of a `torch.autograd.Function`. It stores what its methods receive in attributes, under torch's names."""

    saved_tensors = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        self.saved_for_forward = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.non_differentiable = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        self.dirty_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value


def outputs_of(result: Any, args: Any, context: Any) -> Any:
    """The outputs of a `torch.autograd.Function`. The domain has a rule for it."""
    raise NotImplementedError


def applied(forward: Any, context: Any, args: Any, outputs: Any) -> Any:
    """`Function.apply` with grad mode off."""
    return outputs(forward(context, *args), args, context)


def applied_under(manager: Any, forward: Any, context: Any, args: Any, outputs: Any) -> Any:
    """`Function.apply` with grad mode on, if no argument requires grad."""
    with manager():
        result = forward(context, *args)
    return outputs(result, args, context)


def called(function: Any, args: Any) -> Any:
    """Calls a function that is given to an operator."""
    return function(*args)


def called_named(function: Any, args: Any, kwargs: Any) -> Any:
    """The same with keyword arguments."""
    return function(*args, **kwargs)


def called_with_both(function: Any, first: Any, *rest: Any) -> Any:
    """Calls a function with the items of a list and further arguments."""
    return function(*first, *rest)


def called_before(function: Any, last: Any, *first: Any) -> Any:
    """Calls a function with `first` before the items of a list."""
    return function(*first, *last)


def combined(function: Any, count: int, last: Any, carried: Any, elements: Any) -> Any:
    """One step of a scan, for a function that returns the carried values and the outputs together.

    The source of `scan` gives the operator a function that returns a container of each: `(carry, outputs)`.
    """
    results = function(*carried, *elements, *last)
    if len(results) == 2 and isinstance(results[0], (tuple, list, dict)):
        count = 1
    return [*results[:count]], [*results[count:]]


def applied_forward(function: Any, context: Any, args: Any) -> Any:
    """`forward` or `backward` of a `torch.autograd.Function`."""
    return function(context, *args)


def set_up(forward: Any, setup_context: Any, context: Any, args: Any) -> Any:
    """`forward` and `setup_context` of a `torch.autograd.Function` that has both."""
    output = forward(*args)
    setup_context(context, args, output)
    return output


def called_to_set_up(setup_context: Any, context: Any, args: Any, output: Any) -> None:
    """`setup_context` of a `torch.autograd.Function`."""
    setup_context(context, args, output)


_CODES = {function.__code__ for function in list(globals().values()) if isinstance(function, FunctionType)}


def note_polyfills(functions: Iterable[Any]) -> None:
    """Registers the polyfills of another module."""
    _CODES.update(function.__code__ for function in functions if isinstance(function, FunctionType))


def is_polyfill(code: CodeType) -> bool:
    """Whether the code is a polyfill's: a frame that the user's program does not have."""
    return code in _CODES


def answered(handlers: Any, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """What the first handler of `__torch_function__` gives that gives anything."""
    for handler in handlers:
        result = handler(function, types, args, kwargs)
        if result is not NotImplemented:
            return result
    raise TypeError("Multiple dispatch failed: all __torch_function__ handlers returned NotImplemented")


def answered_by_mode(pop: Any, push: Any, handlers: Any, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """What the innermost mode gives, which is off meanwhile, or else the first handler of an argument."""
    mode = pop()
    try:
        result = mode.__torch_function__(function, types, args, kwargs)
        if result is not NotImplemented:
            return result
        for handler in handlers:
            result = handler(function, types, args, kwargs)
            if result is not NotImplemented:
                return result
    finally:
        push(mode)
    raise TypeError("Multiple dispatch failed: all __torch_function__ handlers returned NotImplemented")


def answered_by_default(
    class_: Any, function: Any, types: Any, args: Any, kwargs: Any, switch: Any, convert: Any
) -> Any:
    """`torch.Tensor.__torch_function__`."""
    for type_ in types:
        if not issubclass(class_, type_):
            return NotImplemented
    with switch:
        return convert(function(*args, **kwargs), class_, function)


def called_within(function: Any, args: Any, kwargs: Any, switch: Any) -> Any:
    """`function(*args, **kwargs)` within `with switch`."""
    with switch:
        return function(*args, **kwargs)


def made_by_class(class_: Any, new: Any, init: Any, args: Any, kwargs: Any) -> Any:
    """`class_(*args, **kwargs)`."""
    made = new(class_, *args, **kwargs)
    if type(made) is class_:
        if init is not None:
            init(made, *args, **kwargs)
    elif class_ in type(made).__mro__:  # an object of a subclass; `isinstance` would ask the metaclass
        type(made).__init__(made, *args, **kwargs)
    return made
