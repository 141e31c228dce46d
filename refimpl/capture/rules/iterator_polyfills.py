"""Iterators that are written in C, as generators to be interpreted. At every `yield`, their variables say how to rebuild C's
iterator.

Counterpart: torch/_dynamo/polyfills/itertools.py, builtins.py
"""

from __future__ import annotations

from typing import Any

from refimpl.capture.values.polyfills import failed, note_polyfills


def mapped(function: Any, iterators: Any) -> Any:
    """`map`."""
    while True:
        args = []
        for iterator in iterators:
            for item in iterator:
                args.append(item)
                break
            else:
                return
        yield function(*args)


def filtered(function: Any, iterator: Any) -> Any:
    """`filter`."""
    for item in iterator:
        if item if function is None else function(item):
            yield item


def filtered_out(function: Any, iterator: Any) -> Any:
    """`itertools.filterfalse`."""
    for item in iterator:
        if not (item if function is None else function(item)):
            yield item


def zipped(iterators: Any, strict: bool) -> Any:
    """`zip`."""
    while iterators:
        items = []
        for iterator in iterators:
            for item in iterator:
                items.append(item)
                break
            else:
                if strict:
                    _end_together(iterators, len(items))
                return
        yield tuple(items)


def _end_together(iterators: Any, at: int) -> None:
    if at:
        failed(ValueError)
    for iterator in iterators[1:]:
        for _ in iterator:
            failed(ValueError)


def zipped_to_the_longest(iterators: Any, fillvalue: Any) -> Any:
    """`itertools.zip_longest`."""
    ended = [False for _ in iterators]
    while iterators:
        items = []
        for index, iterator in enumerate(iterators):
            if ended[index]:
                items.append(fillvalue)
                continue
            for item in iterator:
                items.append(item)
                break
            else:
                ended[index] = True
                if all(ended):
                    return
                items.append(fillvalue)
        yield tuple(items)


def enumerated(iterator: Any, count: int) -> Any:
    """`enumerate`."""
    for item in iterator:
        pair = (count, item)
        count += 1
        yield pair


def chain_of(iterables: Any) -> Any:
    """`itertools.chain.from_iterable`."""
    active = None
    for iterable in iterables:
        active = iter(iterable)
        for item in active:  # noqa: UP028 - `yield from` would send what is sent here
            yield item
        active = None


def sliced(iterator: Any, position: int, upcoming: int, stop: Any, step: int) -> Any:
    """`itertools.islice`: `position` items were taken, and the next one to give is number `upcoming`."""
    while True:
        while position < upcoming:
            for _ in iterator:
                position += 1
                break
            else:
                return
        if stop is not None and position >= stop:
            return
        for item in iterator:
            found = item
            break
        else:
            return
        position += 1
        upcoming += step
        if stop is not None and upcoming > stop:
            upcoming = stop
        yield found


def repeated(item: Any, times: Any) -> Any:
    """`itertools.repeat`."""
    while times is None or times > 0:
        if times is not None:
            times -= 1
        yield item


def counted(number: Any, step: Any) -> Any:
    """`itertools.count`."""
    while True:
        current = number
        number = number + step
        yield current


def cycled(iterator: Any, saved: Any, index: Any) -> Any:
    """`itertools.cycle`: `index` is None in the first round."""
    for item in iterator:
        saved.append(item)
        yield item
    while saved:
        for index, item in enumerate(saved):  # rebuilding uses `index`
            yield item if index is not None else None


def accumulated(iterator: Any, function: Any, initial: Any, total: Any, is_begun: bool) -> Any:
    """`itertools.accumulate`."""
    if initial is not None:
        total, is_begun = initial, True
        yield total
    for item in iterator:
        if not is_begun:
            total, is_begun = item, True
        elif function is None:
            total = total + item
        else:
            total = function(total, item)
        yield total


def taken_while(function: Any, iterator: Any) -> Any:
    """`itertools.takewhile`."""
    for item in iterator:
        if not function(item):
            return
        yield item


def dropped_while(function: Any, iterator: Any, is_begun: bool) -> Any:
    """`itertools.dropwhile`."""
    for item in iterator:
        if is_begun or not function(item):
            is_begun = True
            yield item


def starred(function: Any, iterator: Any) -> Any:
    """`itertools.starmap`."""
    for args in iterator:
        yield function(*args)


def compressed(data: Any, selectors: Any) -> Any:
    """`itertools.compress`."""
    for item in data:
        for selector in selectors:
            is_chosen = selector
            break
        else:
            return
        if is_chosen:
            yield item


def paired(iterator: Any, is_begun: bool) -> Any:
    """`itertools.pairwise`."""
    last = None
    for item in iterator:
        before, last = last, item
        if is_begun:
            yield before, item
        is_begun = True


def stepped(items: Any, position: int) -> Any:
    """`itertools.product` and others whose items are all known when they are made."""
    for item in items:
        position += 1
        yield item


def shared(iterator: Any, items: Any, position: int) -> Any:
    """One of `itertools.tee`. `items`: those that any of them has taken."""
    while True:
        if position == len(items):
            for item in iterator:
                items.append(item)
                break
            else:
                return
        found = items[position]
        position += 1
        yield found


def called_until(function: Any, sentinel: Any) -> Any:
    """`iter(function, sentinel)`."""
    while True:
        item = function()
        if item == sentinel:
            return
        yield item


def grouped(iterator: Any, key: Any, waiting: Any) -> Any:
    """`itertools.groupby`. `waiting`: a list of the key and item that were taken but not yet given; a group takes from it."""
    is_begun, last = False, None
    while True:
        while not is_begun or not waiting or last == waiting[0]:
            waiting.clear()
            _take(iterator, key, waiting)
            if not waiting:
                return
            if not is_begun:
                break
        is_begun, last = True, waiting[0]
        current = [True]
        yield last, group_of(iterator, key, waiting, last, current)
        current.clear()


def _take(iterator: Any, key: Any, waiting: Any) -> None:
    for item in iterator:
        waiting.append(item if key is None else key(item))
        waiting.append(item)
        break


def group_of(iterator: Any, key: Any, waiting: Any, last: Any, current: Any) -> Any:
    """A group of `itertools.groupby`. It ends when the next group is requested."""
    while current:
        if not waiting:
            _take(iterator, key, waiting)
        if not waiting or not last == waiting[0]:  # noqa: SIM201 - `!=` may be another method
            return
        item = waiting[1]
        waiting.clear()
        yield item


def reduced(function: Any, iterable: Any, initial: Any) -> Any:
    """`functools.reduce`. `initial`: a tuple of one item or none."""
    iterator = iter(iterable)
    if initial:
        total = initial[0]
    else:
        for item in iterator:
            total = item
            break
        else:
            failed(TypeError)
    for item in iterator:
        total = function(total, item)  # pyright: ignore[reportPossiblyUnboundVariable]
    return total  # pyright: ignore[reportPossiblyUnboundVariable]


def with_iterators(function: Any, before: Any, iterables: Any, kwargs: Any) -> Any:
    """`function(*before, *iterables, **kwargs)`, if making an iterator runs code of the user's."""
    iterators = []
    for iterable in iterables:
        iterators.append(iter(iterable))
    return function(*before, *iterators, **kwargs)


def with_lists(function: Any, iterables: Any, kwargs: Any) -> Any:
    """`function(*iterables, **kwargs)`, for a function that first reads the iterables to the end."""
    lists = []
    for iterable in iterables:
        items = []
        for item in iterable:
            items.append(item)
        lists.append(items)
    return function(*lists, **kwargs)


note_polyfills(list(globals().values()))
