"""Lazy iterators of builtins and itertools: interpreted generators, rebuilt as C's iterators.

Counterpart: torch/_dynamo/variables/iter.py, itertools polyfills
Differs: their functions may be the user's and their sources generators; no item is computed before it is requested.
"""

from __future__ import annotations

import builtins
import itertools
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.rules import iterator_polyfills as steps
from refimpl.capture.rules.rule_table import Rule, RuleTable, wrong
from refimpl.capture.values import (
    CombinedIteratorValue,
    ConstantValue,
    DefaultDictValue,
    DictValue,
    GeneratorValue,
    InstanceValue,
    NativeIteratorValue,
    NativeMethodValue,
    ObjectValue,
    SequenceValue,
    Value,
    polyfills,
)

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

ITERATOR_RULES = RuleTable()
_MOST_COMBINATIONS = 4096
_NOTHING = ConstantValue(None)


def native_iterator(
    domain: SymbolicDomain, class_: type, polyfill: Any, args: list[Any], rebuild: Any
) -> NativeIteratorValue:
    """An iterator implemented by a generator. `rebuild` takes an emitter and the generator's variables and returns an
    expression.
    """
    generator = domain.enter_function(ObjectValue(polyfill), args, {})
    assert isinstance(generator, GeneratorValue)
    made_at = domain.state.position()

    def made_again(emitter: Any, frame: FrameState) -> str:
        if rebuild is None or frame.is_running:
            raise GraphBreak("cannot_rebuild", kind=class_.__name__).restarting_at(made_at)
        if frame.is_done:
            made.stepped()
            return f"{emitter.constant(map)}({emitter.constant(str)}, ())"
        return rebuild(emitter, _Variables(frame))

    made = NativeIteratorValue(class_, generator, made_again)
    return made


class _Variables:
    """The variables of a suspended generator."""

    def __init__(self, frame: FrameState) -> None:
        self._frame = frame

    def __getitem__(self, name: str) -> Any:
        return self._frame.slots[self._frame.code.slots.index(name)]


def _is_iterator(domain: SymbolicDomain, value: Any) -> bool:
    value = domain.state.realize(value)
    if isinstance(value, InstanceValue):
        return domain.special(value, "__next__") is not None
    return value.is_iterator


def iterators_of(
    domain: SymbolicDomain, function: Any, before: list[Any], iterables: list[Any], kwargs: dict[str, Any]
) -> list[Any] | Any:
    """An iterator over each; or a frame that makes them and calls the function again, if making one runs code of the user's."""
    if any(domain.runs_code(value) and not _is_iterator(domain, value) for value in iterables):
        given = [
            ObjectValue(function),
            SequenceValue(tuple, before),
            SequenceValue(tuple, iterables),
            domain.named(kwargs),
        ]
        return domain.enter_polyfill(steps.with_iterators, given)
    return [value if _is_iterator(domain, value) else domain.get_iter(value) for value in iterables]


def _over(
    function: Any,
    polyfill: Any,
    rebuild: Any,
    *,
    least: int = 1,
    leading: int = 0,
    keywords: dict[str, Any] | None = None,
) -> None:
    """Registers a class that takes `leading` values and then any number of iterables."""

    def make(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) < least or kwargs.keys() - (keywords or {}).keys():
            wrong(function.__name__)
        iterators = iterators_of(domain, function, args[:leading], args[leading:], kwargs)
        if not isinstance(iterators, list):
            return iterators
        extra = [kwargs.get(name, ConstantValue(default)) for name, default in (keywords or {}).items()]
        given = [*args[:leading], SequenceValue(tuple, iterators), *extra]
        return native_iterator(domain, function, polyfill, given, rebuild)

    ITERATOR_RULES[id(function)] = make


def _with_one(function: Any, polyfill: Any, rebuild: Any, *, extra: tuple[Any, ...] = (), leading: int = 1) -> None:
    """Registers a class that takes `leading` values and one iterable."""

    def make(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) != leading + 1 or kwargs:
            wrong(function.__name__)
        iterators = iterators_of(domain, function, args[:leading], args[leading:], kwargs)
        if not isinstance(iterators, list):
            return iterators
        given = [*args[:leading], iterators[0], *map(ConstantValue, extra)]
        return native_iterator(domain, function, polyfill, given, rebuild)

    ITERATOR_RULES[id(function)] = make


def _star(emitter: Any, value: Any) -> str:
    return "".join(f", {emitter.expression(item)}" for item in value.items)


def _written(function: Any, *names: str) -> Any:
    """A call of the class with these variables."""

    def rebuild(emitter: Any, variables: _Variables) -> str:
        args = ", ".join(emitter.expression(variables[name]) for name in names)
        return f"{emitter.constant(function)}({args})"

    return rebuild


_over(
    builtins.map, steps.mapped, leading=1, least=2,
    rebuild=lambda emitter, v: f"map({emitter.expression(v['function'])}{_star(emitter, v['iterators'])})",
)  # fmt: skip
_with_one(builtins.filter, steps.filtered, _written(builtins.filter, "function", "iterator"))
_with_one(itertools.filterfalse, steps.filtered_out, _written(itertools.filterfalse, "function", "iterator"))
_with_one(itertools.takewhile, steps.taken_while, _written(itertools.takewhile, "function", "iterator"))
_with_one(itertools.starmap, steps.starred, _written(itertools.starmap, "function", "iterator"))


def _dropping(emitter: Any, variables: _Variables) -> str:
    if not variables["is_begun"].value:
        return _written(itertools.dropwhile, "function", "iterator")(emitter, variables)
    return f"{emitter.constant(itertools.dropwhile)}({emitter.constant(_never)}, {emitter.expression(variables['iterator'])})"


def _never(item: Any) -> bool:
    return False


def _pairing(emitter: Any, variables: _Variables) -> str:
    iterator = emitter.expression(variables["iterator"])
    if variables["is_begun"].value:
        chained = emitter.constant(itertools.chain)
        iterator = f"{chained}([{emitter.expression(variables['last'])}], {iterator})"
    return f"{emitter.constant(itertools.pairwise)}({iterator})"


_with_one(itertools.dropwhile, steps.dropped_while, _dropping, extra=(False,))
_with_one(itertools.pairwise, steps.paired, _pairing, extra=(False,), leading=0)


def _zip_rebuilt(emitter: Any, variables: _Variables) -> str:
    iterators = _star(emitter, variables["iterators"])
    return f"zip(*(){iterators}, strict={emitter.expression(variables['strict'])})"


def _longest(emitter: Any, variables: _Variables) -> str:
    iterators = _star(emitter, variables["iterators"])
    return f"{emitter.constant(itertools.zip_longest)}(*(){iterators}, fillvalue={emitter.expression(variables['fillvalue'])})"


def plain_zip(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`zip` over iterators that run no code, which needs no frame."""
    if kwargs.keys() - {"strict"}:
        wrong("zip")
    strict = kwargs.get("strict", ConstantValue(False))
    is_strict = domain.truth(strict) is True
    if is_strict or not args or any(map(domain.runs_code, args)):
        return _LAZY_ZIP(domain, frame, args, {"strict": ConstantValue(is_strict)})
    return CombinedIteratorValue(zip, [domain.get_iter(arg) for arg in args])


_over(builtins.zip, steps.zipped, _zip_rebuilt, least=0, keywords={"strict": False})
_LAZY_ZIP = ITERATOR_RULES[id(zip)]
ITERATOR_RULES[id(zip)] = plain_zip
_over(itertools.zip_longest, steps.zipped_to_the_longest, _longest, least=0, keywords={"fillvalue": None})


@ITERATOR_RULES.of(builtins.enumerate)
def _enumerate(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given = [*args, *([kwargs["start"]] if "start" in kwargs else [])]
    if not 1 <= len(given) <= 2 or kwargs.keys() - {"start"}:
        wrong("enumerate")
    number = domain.constant_of(given[1], "enumerate") if len(given) > 1 else 0
    if type(number) is not int:
        wrong("enumerate")
    if not domain.runs_code(given[0]):
        return CombinedIteratorValue(enumerate, [domain.get_iter(given[0])], number)
    iterators = iterators_of(domain, enumerate, [], [given[0]], {"start": ConstantValue(number)})
    if not isinstance(iterators, list):
        return iterators
    written = _written(enumerate, "iterator", "count")
    return native_iterator(domain, enumerate, steps.enumerated, [iterators[0], ConstantValue(number)], written)


def _chaining(emitter: Any, variables: _Variables) -> str:
    chain = emitter.constant(itertools.chain)
    rest, active = emitter.expression(variables["iterables"]), variables["active"]
    is_between = isinstance(active, ConstantValue) or not isinstance(active, Value)
    return f"{chain}.from_iterable({rest if is_between else f'{chain}([{emitter.expression(active)}], {rest})'})"


@ITERATOR_RULES.of(itertools.chain)
def _chain(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if kwargs:
        wrong("chain")
    iterables = domain.get_iter(SequenceValue(tuple, list(args)))
    return native_iterator(domain, itertools.chain, steps.chain_of, [iterables], _chaining)


def _chain_from_iterable(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs or (domain.runs_code(args[0]) and not _is_iterator(domain, args[0])):
        raise GraphBreak("call_of_native_code", what="chain.from_iterable")
    iterables = args[0] if _is_iterator(domain, args[0]) else domain.get_iter(args[0])
    return native_iterator(domain, itertools.chain, steps.chain_of, [iterables], _chaining)


def _slicing(emitter: Any, variables: _Variables) -> str:
    position, upcoming, stop = (variables[name].value for name in ("position", "upcoming", "stop"))
    iterator, step = emitter.expression(variables["iterator"]), variables["step"].value
    end = None if stop is None else max(0, stop - position)
    return f"{emitter.constant(itertools.islice)}({iterator}, {upcoming - position}, {end}, {step})"


@ITERATOR_RULES.of(itertools.islice)
def _islice(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not 2 <= len(args) <= 4 or kwargs:
        wrong("islice")
    limits = [domain.constant_of(arg, "islice") for arg in args[1:]]
    if any(limit is not None and (type(limit) is not int or limit < 0) for limit in limits) or limits[2:3] == [0]:
        wrong("islice")
    start, stop, step = (None, limits[0], None) if len(limits) == 1 else (*limits, None)[:3]
    if domain.runs_code(args[0]) and not _is_iterator(domain, args[0]):
        raise GraphBreak("call_of_native_code", what="islice of an object of the program")
    iterators = args[0] if _is_iterator(domain, args[0]) else domain.get_iter(args[0])
    given = [ConstantValue(0), ConstantValue(start or 0), ConstantValue(stop), ConstantValue(step or 1)]
    if stop is not None and (start or 0) > stop:
        given[1] = ConstantValue(stop)
    return native_iterator(domain, itertools.islice, steps.sliced, [iterators, *given], _slicing)


def _repeating(emitter: Any, variables: _Variables) -> str:
    times = variables["times"].value
    more = "" if times is None else f", {times}"
    return f"{emitter.constant(itertools.repeat)}({emitter.expression(variables['item'])}{more})"


@ITERATOR_RULES.of(itertools.repeat)
def _repeat(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given = [*args, *kwargs.values()]
    if not 1 <= len(given) <= 2 or kwargs.keys() - {"times"}:
        wrong("repeat")
    times = domain.constant_of(given[1], "repeat") if len(given) > 1 else None
    if len(given) > 1 and type(times) is not int:
        wrong("repeat")
    return native_iterator(domain, itertools.repeat, steps.repeated, [given[0], ConstantValue(times)], _repeating)


@ITERATOR_RULES.of(itertools.count)
def _count(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    named = dict(zip(("start", "step"), args, strict=False)) | kwargs
    if len(args) > 2 or named.keys() - {"start", "step"}:
        wrong("count")
    given = [named.get("start", ConstantValue(0)), named.get("step", ConstantValue(1))]
    if any(type(domain.constant_of(value, "count")) not in (int, bool, float) for value in given):
        wrong("count")
    return native_iterator(domain, itertools.count, steps.counted, given, _written(itertools.count, "number", "step"))


def _cycling(emitter: Any, variables: _Variables) -> str:
    saved, index, cycle = variables["saved"].items, variables["index"], emitter.constant(itertools.cycle)
    if index.value is not None:
        at = index.value + 1
        return f"{cycle}([{', '.join(map(emitter.expression, [*saved[at:], *saved[:at]]))}])"
    iterator = emitter.expression(variables["iterator"])
    return f"{emitter.constant(_cycle_begun)}({iterator}, [{', '.join(map(emitter.expression, saved))}])"


def _cycle_begun(iterator: Any, saved: list[Any]) -> Any:
    made = itertools.cycle(itertools.chain(saved, iterator))
    for _ in saved:
        next(made)
    return made


@ITERATOR_RULES.of(itertools.cycle)
def _cycle(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        wrong("cycle")
    iterators = iterators_of(domain, itertools.cycle, [], args, {})
    if not isinstance(iterators, list):
        return iterators
    given = [iterators[0], SequenceValue(list, []), ConstantValue(None)]
    return native_iterator(domain, itertools.cycle, steps.cycled, given, _cycling)


def _accumulating(emitter: Any, variables: _Variables) -> str:
    iterator, function = (emitter.expression(variables[name]) for name in ("iterator", "function"))
    accumulate = emitter.constant(itertools.accumulate)
    if not variables["is_begun"].value:
        return f"{accumulate}({iterator}, {function}, initial={emitter.expression(variables['initial'])})"
    total = emitter.expression(variables["total"])
    return f"{emitter.constant(_accumulation_begun)}({iterator}, {function}, {total})"


def _accumulation_begun(iterator: Any, function: Any, total: Any) -> Any:
    made = itertools.accumulate(itertools.chain([total], iterator), function)
    next(made)
    return made


@ITERATOR_RULES.of(itertools.accumulate)
def _accumulate(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not 1 <= len(args) <= 2 or kwargs.keys() - {"func", "initial"} or (len(args) == 2 and "func" in kwargs):
        wrong("accumulate")
    function = args[1] if len(args) > 1 else kwargs.get("func", _NOTHING)
    initial = kwargs.get("initial", _NOTHING)
    if domain.runs_code(args[0]) and not _is_iterator(domain, args[0]):
        raise GraphBreak("call_of_native_code", what="accumulate of an object of the program")
    iterator = args[0] if _is_iterator(domain, args[0]) else domain.get_iter(args[0])
    given = [iterator, function, initial, _NOTHING, ConstantValue(False)]
    return native_iterator(domain, itertools.accumulate, steps.accumulated, given, _accumulating)


@ITERATOR_RULES.of(itertools.compress)
def _compress(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given = [*args, *kwargs.values()]
    if len(given) != 2 or [*kwargs] not in ([], ["selectors"], ["data", "selectors"]):
        wrong("compress")
    iterators = iterators_of(domain, itertools.compress, [], given, {})
    if not isinstance(iterators, list):
        return iterators
    written = _written(itertools.compress, "data", "selectors")
    return native_iterator(domain, itertools.compress, steps.compressed, iterators, written)


@ITERATOR_RULES.of(itertools.groupby)
def _groupby(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given = [*args, *([kwargs["key"]] if "key" in kwargs else [])]
    if not 1 <= len(given) <= 2 or kwargs.keys() - {"key"}:
        wrong("groupby")
    iterators = iterators_of(domain, itertools.groupby, [], given[:1], dict(zip(["key"], given[1:], strict=False)))
    if not isinstance(iterators, list):
        return iterators
    key = given[1] if len(given) > 1 else _NOTHING
    return native_iterator(domain, itertools.groupby, steps.grouped, [*iterators, key, SequenceValue(list, [])], None)


@ITERATOR_RULES.of(itertools.tee)
def _tee(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not 1 <= len(args) <= 2 or kwargs:
        wrong("tee")
    many = domain.constant_of(args[1], "tee") if len(args) > 1 else 2
    if type(many) is not int or many < 0 or (domain.runs_code(args[0]) and not _is_iterator(domain, args[0])):
        wrong("tee")
    iterator = args[0] if _is_iterator(domain, args[0]) else domain.get_iter(args[0])
    items = SequenceValue(list, [])
    class_ = type(itertools.tee(())[0])
    made: list[Value] = [
        native_iterator(domain, class_, steps.shared, [iterator, items, ConstantValue(0)], None) for _ in range(many)
    ]
    return SequenceValue(tuple, made)


def _combining(function: Any, names: tuple[str, ...], pools: int | None) -> None:
    """Registers classes that read all arguments when they are made. `pools`: how many are iterables; None: all."""

    def make(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        count = len(args) if pools is None else pools
        if len(args) < count or kwargs.keys() - {*names} or len(args) > count + (0 if pools is None else len(names)):
            wrong(function.__name__)
        named = dict(zip(names, args[count:], strict=False)) | kwargs
        if any(domain.runs_code(arg) or _is_iterator(domain, arg) for arg in args[:count]):
            given = [ObjectValue(function), SequenceValue(tuple, args[:count]), domain.named(named)]
            return domain.enter_polyfill(steps.with_lists, given)
        plain = {name: domain.constant_of(value, function.__name__) for name, value in named.items()}
        if any(value is not None and (type(value) is not int or value < 0) for value in plain.values()):
            wrong(function.__name__)
        elements = [domain.elements(arg) for arg in args[:count]]
        try:
            found = list(itertools.islice(function(*elements, **plain), _MOST_COMBINATIONS + 1))
        except TypeError as error:
            raise GraphBreak("op_raises_on_fake", what=function.__name__, error="TypeError") from error
        if len(found) > _MOST_COMBINATIONS:
            raise GraphBreak("too_many_instructions", what=_MOST_COMBINATIONS)
        items = SequenceValue(list, [SequenceValue(tuple, list(item)) for item in found])

        def rebuild(emitter: Any, variables: _Variables) -> str:
            written = "".join(f"[{', '.join(map(emitter.expression, pool))}], " for pool in elements)
            made = f"{emitter.constant(function)}({written}**{plain!r})"
            return f"{emitter.constant(_advanced)}({made}, {variables['position'].value})"

        return native_iterator(domain, function, steps.stepped, [items, ConstantValue(0)], rebuild)

    ITERATOR_RULES[id(function)] = make


def _advanced(iterator: Any, count: int) -> Any:
    for _ in range(count):
        next(iterator)
    return iterator


_combining(itertools.product, ("repeat",), None)
_combining(itertools.permutations, ("r",), 1)
_combining(itertools.combinations, ("r",), 1)
_combining(itertools.combinations_with_replacement, ("r",), 1)


def callable_iterator(domain: SymbolicDomain, function: Any, sentinel: Any) -> Any:
    """`iter(function, sentinel)`."""
    class_ = type(iter(int, 1))
    return native_iterator(
        domain, class_, steps.called_until, [function, sentinel], _written(iter, "function", "sentinel")
    )


def _from_keys(class_: type) -> Rule:
    """`class_.fromkeys`."""

    def make(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if class_ is OrderedDict and kwargs.keys() == {"value"}:  # the others take it by position only
            args, kwargs = [*args, kwargs["value"]], {}
        if not 1 <= len(args) <= 2 or kwargs:
            wrong(class_.__name__)
        if domain.runs_code(args[0]):
            rest = SequenceValue(tuple, args[1:])
            given = [NativeMethodValue(ObjectValue(class_), "fromkeys"), args[0], rest, domain.named({})]
            return domain.enter_polyfill(polyfills.called_with_list, given)
        made = DefaultDictValue({}, _NOTHING) if class_ is defaultdict else DictValue({}, class_=class_)
        for key in domain.elements(args[0]):
            domain.put(made, key, args[1] if len(args) > 1 else _NOTHING)
        return made

    return make


# Rules for methods of classes, by class and name: looking a method up gives a new object each time.
CLASS_METHODS: dict[tuple[int, str], Rule] = {
    (id(itertools.chain), "from_iterable"): _chain_from_iterable,
    **{(id(class_), "fromkeys"): _from_keys(class_) for class_ in (dict, OrderedDict, defaultdict)},
}
