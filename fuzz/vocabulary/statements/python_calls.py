"""Python features: functions and how they are called: helpers, arguments, generators, contexts, early return, classes."""

from __future__ import annotations

from fuzz.vocabulary.statements.python_template import Template, any_kind, rules_of

_ANY = any_kind()
_NUMERIC = ("float", "integer", "complex")
CALLS: tuple[Template, ...] = (
    Template(
        name="helper",
        definitions=(
            """
            def $D(x):
                y = $f(x)
                return $b(x, y)
            """,
        ),
        text="{r} = $D($D({x}))",
        kinds=_NUMERIC,
        weight=1.5,
    ),
    Template(
        name="helper_two_results",
        definitions=(
            """
            def $D(x, y):
                z = $b(x, y)
                return z, $f(z)
            """,
        ),
        text="{r}, {s} = $D({x}, {y})",
        kinds=_ANY,
    ),
    Template(
        name="helper_writes",
        definitions=(
            """
            def $D(x):
                x.mul_($n)
                return $f(x)
            """,
        ),
        text="{r} = $D({x}.clone())",
        kinds=("float", "complex"),
    ),
    Template(
        name="recursion",
        definitions=(
            """
            def $D(x, depth):
                if depth == 0:
                    return $f(x)
                return $D($g(x), depth - 1) + depth
            """,
        ),
        text="{r} = $D({x}, {A})",
        argument=(2, 0, 1, 3),
        kinds=("float",),
    ),
    Template(
        name="mutual_recursion",
        definitions=(
            """
            def $D(x, n):
                return $f(x) if n <= 0 else $E(x, n - 1) * 2
            """,
            """
            def $E(x, n):
                return $g(x) if n <= 0 else $D(x, n - 1) + 1
            """,
        ),
        text="{r} = $D({x}, {x}.dim())",
    ),
    Template(
        name="star_arguments",
        definitions=(
            """
            def $D(first, *rest, scale=1, **named):
                for value in rest:
                    first = first * value
                for name, value in named.items():
                    first = first + value * len(name)
                return $f(first) * scale
            """,
        ),
        text="""
            values = [{x}, $n]
            {r} = $D(*values, {y}, scale=$m, **{'shift': $o})
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="positional_only",
        definitions=(
            """
            def $D(x, scale=$n, /, *, shift=$m):
                return $f(x) * scale - shift
            """,
        ),
        text="{r} = $D({x}, {A}, shift=$o)",
        argument=(2, 3, 0, 1.5, True),
    ),
    Template(
        name="lambda",
        text="""
            scaled = lambda x, by={A}: $f(x) * by
            {r} = scaled({x}) + scaled({y}, $n)
        """,
        argument=(2.0, 0.5, 1.0, 3),
    ),
    Template(
        name="inner_function",
        text="""
            def inner(t, {A}={A}):
                return $b(t, {y}) * {A}

            {r} = inner({x})
        """,
        argument=(2, 3, 1),
        kinds=("float", "integer"),
    ),
    Template(
        name="late_binding",
        text="""
            functions = []
            for factor in (1, 2, $k):
                functions.append(lambda t: t * factor)
            {r} = functions[0]({x}) + functions[2]({x})
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="partial",
        definitions=(
            """
            import functools


            def $D(x, scale, shift):
                return $f(x) * scale + shift
            """,
        ),
        text="{r} = functools.partial($D, shift=$n, scale={A})({x})",
        argument=(2.0, 0.5, 1.0),
    ),
    Template(
        name="reduce",
        definitions=(
            """
            import functools


            def $D(values):
                return functools.reduce(lambda a, b: $b(a, b), values)
            """,
        ),
        text="{r} = $D([{x}, {y}, {x}])",
        kinds=_NUMERIC,
    ),
    Template(
        name="decorated",
        definitions=(
            """
            import functools


            def $D(scale):
                def decorate(function):
                    @functools.wraps(function)
                    def wrapped(*args, **kwargs):
                        return function(*args, **kwargs) * scale

                    return wrapped

                return decorate
            """,
            """
            @$D($n)
            def $E(x, y):
                return $b(x, y)
            """,
        ),
        text="{r} = $E({x}, y={y})",
        kinds=("float", "integer"),
    ),
    Template(
        name="generator",
        definitions=(
            """
            def $D(x, count):
                for i in range(count):
                    yield $f(x) * i
                    x = $g(x)
            """,
        ),
        text="""
            {r} = {x}
            for part in $D({x}, {A}):
                {r} = {r} + part
        """,
        argument=(2, 0, 1, 3),
        kinds=("float",),
    ),
    Template(
        name="generator_send",
        definitions=(
            """
            def $D(x):
                total = x
                while True:
                    got = yield total
                    if got is None:
                        return
                    total = total + got * $n
            """,
        ),
        text="""
            running = $D({x})
            next(running)
            {r} = running.send({y})
            {s} = running.send($f({x}))
            running.close()
        """,
        kinds=("float",),
    ),
    Template(
        name="yield_from",
        definitions=(
            """
            def $D(x):
                yield $f(x)
                yield from (x * i for i in range(1, 3))
            """,
        ),
        text="{r} = sum($D({x}))",
        kinds=("float", "integer"),
    ),
    Template(
        name="early_return_on_shape",
        definitions=(
            """
            def $D(x):
                if x.dim() == 0 or x.shape[-1] <= $k:
                    return $f(x)
                x = $g(x)
                if x.shape[0] == x.shape[-1]:
                    return x * 2
                return $h(x) - 1
            """,
        ),
        text="{r} = $D({x})",
        kinds=_NUMERIC,
        weight=1.5,
    ),
    Template(
        name="early_return_on_value",
        definitions=(
            """
            def $D(x):
                if (x > 0).sum() > $k:
                    return $f(x)
                return $g(x) * 3
            """,
        ),
        text="{r} = $D({x})",
        kinds=("float", "integer"),
    ),
    Template(
        name="early_return_in_loop",
        definitions=(
            """
            def $D(x, limit):
                for i in range(4):
                    x = $f(x)
                    if i >= limit:
                        return x * i
                return -x
            """,
        ),
        text="{r} = $D({x}, {A})",
        argument=(1, 0, 2, 7),
    ),
    Template(
        name="try_finally_return",
        definitions=(
            """
            def $D(x, log):
                try:
                    return $f(x)
                finally:
                    log.append($n)
            """,
        ),
        text="""
            log = []
            {r} = $D({x}, log) * len(log) + log[0]
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="context_manager_class",
        definitions=(
            """
            class $D:
                def __init__(self, state):
                    self.state = state

                def __enter__(self):
                    self.state['depth'] += 1
                    return self.state['depth']

                def __exit__(self, kind, error, trace):
                    self.state['depth'] -= 1
                    self.state['left'] = self.state.get('left', 0) + 1
                    return kind is ValueError
            """,
        ),
        text="""
            state = {'depth': $k}
            with $D(state) as depth:
                {r} = $f({x}) * depth
                if {x}.dim() > 1:
                    raise ValueError('left early')
                {r} = {r} + 5
            {s} = {r} * state['left'] - state['depth']
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="context_manager_generator",
        definitions=(
            """
            import contextlib


            @contextlib.contextmanager
            def $D(values, value):
                values.append(value)
                try:
                    yield values
                finally:
                    values.pop()
            """,
        ),
        text="""
            values = [$n]
            with $D(values, {A}) as inside:
                {r} = $f({x}) * inside[-1]
            {s} = {x} * values[-1]
        """,
        argument=(2, 3, 0.5),
    ),
    Template(
        name="isinstance_dispatch",
        definitions=(
            """
            def $D(x, by):
                if isinstance(by, bool):
                    return $f(x) if by else x
                if isinstance(by, int):
                    return x * by
                if isinstance(by, (float, str)):
                    return x + (len(by) if isinstance(by, str) else by)
                if by is None:
                    return $g(x)
                return x - by
            """,
        ),
        text="{r} = $D({x}, {A})",
        argument=(
            2,
            True,
            0.5,
            "ab",
            None,
            {"$": "tensor", "shape": [], "dtype": "float32", "fill": {"kind": "full", "value": 2}},
        ),
    ),
    Template(
        name="sorted_with_key",
        text="""
            parts = sorted([{x}, $f({x}).reshape(1, -1), {x}.reshape(-1, 1)], key=lambda t: (t.dim(), t.shape[-1:]))
            {r} = parts[0] * $n
            {s} = parts[-1].sum()
        """,
        condition=lambda tensor: 0 < tensor.numel() <= 64,
    ),
)

RULES = rules_of(CALLS)
