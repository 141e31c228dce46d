"""Python features without tensors: containers, iteration, text, numbers."""

from __future__ import annotations

from fuzz.vocabulary.statements.python_template import Template, any_kind, rules_of

_ANY = any_kind()
_TENSOR = {"$": "tensor", "shape": [], "dtype": "float32"}
DATA: tuple[Template, ...] = (
    Template(
        name="list_methods",
        text="""
            items = [{x}, $f({x})]
            items.append({y})
            items.insert(1, items.pop())
            items.reverse()
            items += [items[0] * 2]
            {r} = $b(items[0], items[-1])
            {s} = items[1] * len(items)
        """,
        kinds=("float", "integer", "complex"),
    ),
    Template(
        name="list_alias",
        text="""
            items = [{x}]
            other = items
            other.append($f({x}))
            items = items + [{y}]
            {r} = other[-1] * len(other) + items[-1] * len(items)
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="list_slice_assignment",
        text="""
            items = [$n, $m, $o, 1]
            items[1:3] = [len(items)]
            del items[0]
            items[::2] = [value * 2 for value in items[::2]]
            {r} = {x}
            for value in items:
                {r} = {r} * value + 1
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="list_argument",
        text="""
            {r} = {x}
            for at, part in enumerate({A}):
                {r} = {r} * part + at
        """,
        argument=(
            [{**_TENSOR, "fill": {"kind": "full", "value": 2}}, {**_TENSOR, "fill": {"kind": "full", "value": 3}}],
            [{**_TENSOR, "fill": {"kind": "full", "value": 3}}],
            [{**_TENSOR, "fill": {"kind": "full", "value": 2}}, 5],
            [],
            {"$": "tuple", "items": [2, 3.5]},
        ),
        weight=1.5,
    ),
    Template(
        name="dict_argument",
        text="""
            {r} = {x}
            for name, value in {A}.items():
                {r} = {r} * value + len(name)
            if 'scale' in {A}:
                {r} = {r} * {A}['scale']
        """,
        argument=(
            {"scale": 2.0, "by": {**_TENSOR, "fill": {"kind": "full", "value": 3}}},
            {"by": {**_TENSOR, "fill": {"kind": "full", "value": 3}}, "scale": 2.0},
            {"by": 0.5},
            {"scale": {**_TENSOR, "fill": {"kind": "full", "value": 0.5}}, "other": 1},
            {},
        ),
        weight=1.5,
    ),
    Template(
        name="dict_argument_written",
        text="""
            {A}['seen'] = $f({x}).detach().sum()
            {r} = {x} + {A}['seen'] * {A}.get('scale', 2) + len({A})
        """,
        argument=({}, {"scale": 3}, {"seen": 1}, {"scale": 0.5, "other": None}),
    ),
    Template(
        name="list_argument_written",
        text="""
            {A}.append($n)
            {r} = $f({x}) * len({A}) + sum({A})
        """,
        argument=([], [1], [2.5, 1], [1, 2, 3]),
        kinds=("float", "integer"),
    ),
    Template(
        name="optional_argument",
        text="""
            if {A} is None:
                {r} = $f({x})
            else:
                {r} = {x} * {A}
        """,
        argument=(None, {**_TENSOR, "fill": {"kind": "full", "value": 2}}, 3, 0.5),
    ),
    Template(
        name="dict_methods",
        text="""
            table = {'a': {x}, 'b': $f({x})}
            table.update(c={y}, a=$g({x}))
            table.setdefault('b', 0)
            table['d'] = table.pop('a')
            {r} = {x}
            for at, (name, value) in enumerate(table.items()):
                {r} = {r} + value * at
            {s} = table[max(table)] * len(table)
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="dict_comprehension",
        text="""
            table = {f'k{i:d}': {x} * i for i in range($k + 1)}
            {r} = table['k1'] + sum(value for name, value in table.items() if name != 'k0')
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="fstring_keys",
        text="""
            names = [f'{size!s}-{at:d}' for at, size in enumerate({x}.shape)]
            table = {name: len(name) for name in names}
            {r} = $f({x}) * sum(table.values()) + sum(name.count('1') for name in table)
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="formatted_size",  # capture refuses a number format of a size that varies, so it is rare
        text="""
            word = f'{{x}.shape[0]:d}' + f'{{x}.dim():>3}'
            {r} = $f({x}) * len(word)
        """,
        condition=lambda tensor: tensor.dim() > 0,
        weight=0.05,
    ),
    Template(
        name="string_methods",
        text="""
            words = {A}.strip().lower().split('_')
            {r} = {x}
            for word in sorted(words, reverse=True):
                {r} = {r} * len(word) if word.startswith('s') else {r} + word.find('b')
            if '_'.join(words).isidentifier():
                {r} = -{r}
        """,
        argument=("sin_Bb_sab", " ab_S ", "x", "s_1b_", "3_s"),
    ),
    Template(
        name="string_dispatch",
        text="{r} = getattr(torch, {A})({x})",
        argument=("sin", "cos", "abs", "neg", "square"),
    ),
    Template(
        name="set_operations",
        definitions=("$D = frozenset(('a', 'b', 'c'))",),
        text="""
            here = {'b', 'c', 'd'}
            if {x}.dim() > 1:
                here.add('a')
            {r} = $f({x}) * len($D & here) + len($D ^ here)
            for name in sorted($D | here):
                {r} = {r} * 2 if name in $D else {r} - 1
        """,
    ),
    Template(
        name="deque",
        definitions=("import collections\n\n\n$D = collections.deque",),
        text="""
            window = $D([$n, $m], maxlen=3)
            window.append($o)
            window.appendleft(len(window))
            window.rotate(1)
            {r} = {x}
            for value in window:
                {r} = {r} * value
            {s} = {x} + window[0]
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="defaultdict",
        definitions=("import collections\n\n\n$D = collections.defaultdict",),
        text="""
            groups = $D(list)
            for part in ({x}, {y}, $f({x})):
                groups[part.dim()].append(part)
            {r} = sum(groups[{x}.dim()]) * len(groups[9]) + groups[{x}.dim()][0]
            {s} = {x} * len(groups)
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="counter_and_ordered_dict",
        definitions=(
            "import collections\n\n\n$D = collections.Counter",
            "import collections\n\n\n$E = collections.OrderedDict",
        ),
        text="""
            found = $D({x}.shape)
            {r} = $f({x}) * max(found.values(), default=1)
            ordered = $E(a={x}, b={r} + found[7])
            ordered.move_to_end('a')
            {s} = ordered.popitem(last=False)[1] * 2 + len(ordered)
        """,
        kinds=("float", "integer"),
        weight=0.5,
    ),
    Template(
        name="zip_enumerate_reversed",
        text="""
            {r} = {x}
            for at, (factor, part) in enumerate(zip(reversed([$n, $m, $o]), ({x}, {y}), strict=False)):
                {r} = {r} + part * factor * at
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="map_filter",
        text="""
            parts = list(map(lambda part: $f(part), filter(lambda t: t.dim() == {x}.dim(), [{x}, {y}, {x}.sum()])))
            {r} = sum(parts)
        """,
        kinds=("float",),
    ),
    Template(
        name="itertools",
        definitions=("import itertools\n\n\n$D = itertools.chain",),
        text="""
            {r} = {x}
            for part in itertools.islice($D([{x}], itertools.repeat({y}, 3)), 1, 3):
                {r} = $b({r}, part)
            for low, high in itertools.product((1, 2), ($n, $m)):
                {r} = {r} * low + high
            {s} = {x} * [*itertools.accumulate([1, 2, $k])][-1]
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="comprehension_nested",
        text="""
            parts = [[{x} * (i + j) for j in range(2)] for i in range($k)]
            {r} = sum(part for row in parts for part in row) + {x}
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="comprehension_filter",
        text="""
            parts = [$f(part) for part in ({x}, {y}, {x}.sum()) if part.dim() == {x}.dim() and part.numel() != 1]
            {r} = {x} * len(parts) + (parts[0] if parts else 1)
        """,
    ),
    Template(
        name="star_unpacking",
        text="""
            first, *middle, last = [{x}, $f({x}), {y}, $n]
            {r} = $b(first, middle[-1]) * last
            (a, b), *_ = [({x}, {y}), None]
            {s} = $b(a, b)
        """,
        kinds=("float", "integer", "complex"),
    ),
    Template(
        name="swap",
        text="""
            a, b = {x}, {y}
            a, b = b, $f(a)
            {r}, {s} = a, b
        """,
        kinds=_ANY,
    ),
    Template(
        name="walrus",
        text="""
            if (count := {x}.dim() + {A}) > 2:
                {r} = $f({x}) * count
            else:
                {r} = (half := $g({x})) + half * count
        """,
        argument=(1, 0, 2, -3),
        kinds=("float",),
    ),
    Template(
        name="match",
        text="""
            match ({x}.dim(), {A}):
                case (0, _):
                    {r} = $f({x})
                case (1 | 2 as rank, int() as by) if by > 1:
                    {r} = {x} * by * rank
                case (_, str(word)):
                    {r} = {x} + len(word)
                case (_, [first, *rest]):
                    {r} = {x} * first + len(rest)
                case _:
                    {r} = $g({x}) - 1
        """,
        argument=(2, 1, "abc", [2, 5], 0.5),
        kinds=("float",),
    ),
    Template(
        name="integer_arithmetic",
        text="""
            quotient, rest = divmod({A} * 7 + 3, $k + 1)
            {r} = {x} * quotient + (rest ** 2 | 1) - (-{A} // 2) % 5
            {r} = {r} * (({A} << 1) ^ 3) + bin({A} & 255).count('1')
        """,
        argument=(2, 0, 5, 1000, -3),
        kinds=("float",),
    ),
    Template(
        name="float_arithmetic",
        definitions=("import math\n\n\n$D = math.floor",),
        text="""
            {r} = {x} * math.sqrt(abs({A})) + round({A}, 1) + int({A} * 3)
            if math.isclose({A}, $n) or {A} > 2:
                {r} = $f({r}) + $D({A})
        """,
        argument=(1.5, 2.0, 0.25, 7.0, -1.0),
    ),
    Template(
        name="number_argument",
        text="{r} = $f({x}) * {A}",
        argument=(2, 3, 0, 1, -1, 7),
        kinds=("float", "integer"),
        weight=1.5,
    ),
    Template(
        name="float_argument",
        text="{r} = {x} * {A} + {A}",
        argument=(2.0, 0.5, 1.0, 0.0, -1.5),
        weight=1.5,
    ),
    Template(
        name="number_argument_compared",
        text="""
            if {A} > $k or {A} == 0:
                {r} = $f({x}) + {A}
            else:
                {r} = $g({x}) - {A}
        """,
        argument=(2, 0, 1, 3, 4, 10),
        kinds=("float", "integer"),
    ),
    Template(
        name="flag_argument",
        text="{r} = $f({x}) if {A} else $g({x}) + 1",
        argument=(True, False, 1, None, "no"),
        kinds=("float", "integer", "complex"),
    ),
    Template(
        name="dtype_argument",
        text="{r} = $f({x}).to({A}) * $n",
        argument=(
            {"$": "dtype", "name": "float64"},
            {"$": "dtype", "name": "float32"},
            {"$": "dtype", "name": "bfloat16"},
        ),
    ),
    Template(
        name="slice_argument",
        text="{r} = {x}[..., {A}] * $n",
        argument=(
            {"$": "slice", "args": [None, None, 2]},
            {"$": "slice", "args": [0, 1, None]},
            {"$": "slice", "args": [1, None, None]},
            {"$": "slice", "args": [-1, None, None]},
        ),
        kinds=("float", "integer"),
        condition=lambda tensor: tensor.dim() > 0,
    ),
    Template(
        name="range_argument",
        text="""
            {r} = {x}
            for i in {A}:
                {r} = $f({r}) + i
        """,
        argument=(
            {"$": "range", "args": [0, 2, 1]},
            {"$": "range", "args": [3, 0, -1]},
            {"$": "range", "args": [0, 0, 1]},
        ),
    ),
    Template(
        name="index_argument",
        text="{r} = {x}[{A}] + $n",
        argument=(0, -1, 1, 2),
        kinds=("float", "integer"),
        condition=lambda tensor: tensor.dim() > 0 and tensor.shape[0] > 2,
    ),
    Template(
        name="any_all_min_max",
        text="""
            sizes = [*{x}.shape, $k, 2]
            {r} = $f({x}) * max(sizes) + min(sizes, key=lambda size: -size)
            {r} = {r} * 2 if any(size == 3 for size in sizes) else {r} + all(size > 1 for size in sizes)
        """,
    ),
    Template(
        name="exception_as_flow",
        text="""
            table = {2: $n, 3: $m}
            try:
                {r} = $f({x}) * table[{x}.dim()]
            except KeyError as error:
                {r} = $g({x}) + error.args[0]
            else:
                {r} = {r} + 1
            finally:
                {r} = {r} * 2
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="stop_iteration",
        text="""
            parts = iter([{x}, $f({x})])
            {r} = next(parts)
            while True:
                try:
                    part = next(parts)
                    {r} = $b({r}, part)
                except StopIteration:
                    break
            {s} = next(parts, {y})
        """,
        kinds=("float", "integer", "complex"),
    ),
    Template(
        name="copy_of_containers",
        definitions=("import copy\n\n\n$D = copy.copy",),
        text="""
            items = [{x}, [$n, $m]]
            shallow, deep = $D(items), copy.deepcopy(items[1])
            items[1].append($o)
            {r} = {x} * len(shallow[1]) + sum(deep)
        """,
        kinds=("float", "integer"),
        weight=0.5,
    ),
    Template(
        name="same_object",
        text="""
            parts = [{x}, {y}, {x}]
            {r} = $f({x}) * (2 if parts[0] is parts[1] else 3) + (parts[2] is {x})
        """,
        kinds=("float", "integer"),
    ),
)

RULES = rules_of(DATA)
