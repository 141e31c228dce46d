"""Python features: classes of the program's own: properties, descriptors, inheritance, operators, records, enums."""

from __future__ import annotations

from fuzz.vocabulary.statements.python_template import Template, Varies, rules_of

CLASSES: tuple[Template, ...] = (
    Template(
        name="property",
        definitions=(
            """
            class $D:
                def __init__(self, value):
                    self._value = value

                @property
                def value(self):
                    return $f(self._value)

                @value.setter
                def value(self, new):
                    self._value = new * $n
            """,
        ),
        text="""
            holder = $D({x})
            {r} = holder.value
            holder.value = {y}
            {s} = holder.value
        """,
        kinds=("float", "integer", "complex"),
    ),
    Template(
        name="descriptor",
        definitions=(
            """
            class $D:
                def __init__(self, scale):
                    self.scale = scale

                def __set_name__(self, owner, name):
                    self.name = '_' + name

                def __get__(self, instance, owner=None):
                    return getattr(instance, self.name, 1) * self.scale

                def __set__(self, instance, value):
                    setattr(instance, self.name, value)
            """,
            """
            class $E:
                weight = $D($n)
            """,
        ),
        text="""
            holder = $E()
            {r} = {x} * holder.weight
            holder.weight = $f({x})
            {s} = holder.weight
        """,
    ),
    Template(
        name="class_and_static_methods",
        definitions=(
            """
            class $D:
                shift = $n

                @classmethod
                def shifted(cls, x):
                    return $f(x) + cls.shift

                @staticmethod
                def doubled(x):
                    return $g(x) * 2
            """,
            """
            class $E($D):
                shift = $m
            """,
        ),
        text="{r} = $E.shifted({x}) + $D.doubled({x})",
        varies=(Varies(kind="class attribute", name="$E", texts=("$E.shift = $o", "del $E.shift", "$D.shift = $o")),),
    ),
    Template(
        name="super_and_mixins",
        definitions=(
            """
            class $D:
                def apply(self, x):
                    return $f(x)


            class $DLeft($D):
                def apply(self, x):
                    return super().apply(x) * $n


            class $DRight($D):
                def apply(self, x):
                    return super().apply($g(x)) + $m


            class $DBoth($DLeft, $DRight):
                pass
            """,
        ),
        text="{r} = $DBoth().apply({x})",
    ),
    Template(
        name="operator_overloading",
        definitions=(
            """
            class $D:
                def __init__(self, value, log=()):
                    self.value = value
                    self.log = log

                def __add__(self, other):
                    return $D(self.value + getattr(other, 'value', other), (*self.log, 'add'))

                def __radd__(self, other):
                    return $D(other - self.value, (*self.log, 'radd'))

                def __matmul__(self, other):
                    return $D(self.value * other.value, (*self.log, 'matmul'))

                def __getitem__(self, at):
                    return self.log[at]

                def __len__(self):
                    return len(self.log)

                def __bool__(self):
                    return len(self.log) > 1
            """,
        ),
        text="""
            both = $n + ($D({x}) + $D({y}))
            {r} = both.value * len(both) if both else both.value
            {s} = (both @ $D($f({x}))).value
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="getattr_fallback",
        definitions=(
            """
            class $D:
                known = $n

                def __getattr__(self, name):
                    if name.startswith('scale'):
                        return len(name)
                    raise AttributeError(name)
            """,
        ),
        text="""
            holder = $D()
            {r} = $f({x}) * holder.scale_by * holder.known
            if hasattr(holder, {A}):
                {r} = {r} + getattr(holder, {A})
            else:
                setattr(holder, {A}, $m)
                {r} = {r} - getattr(holder, {A})
        """,
        argument=("known", "other", "scale"),
    ),
    Template(
        name="callable_object",
        definitions=(
            """
            class $D:
                def __init__(self, *layers):
                    self.layers = list(layers)

                def __call__(self, x):
                    for layer in self.layers:
                        x = layer(x)
                    return x

                def __iter__(self):
                    return iter(self.layers)

                def __contains__(self, layer):
                    return layer in self.layers
            """,
            "$E = $D(torch.sin, lambda x: $f(x))",
        ),
        text="""
            {r} = $E({x})
            for layer in $E:
                {r} = {r} * (2 if layer in $E else 3)
        """,
        varies=(
            Varies(
                kind="container",
                name="$E",
                texts=("$E.layers.append(torch.cos)", "$E.layers.pop(0)", "$E = $D(torch.neg)"),
            ),
        ),
    ),
    Template(
        name="list_of_own_iterable",  # a guard on its length is what capture puts there, and it has none
        definitions=(
            """
            class $D:
                def __iter__(self):
                    return iter((1, 2, $n))
            """,
            "$E = $D()",
        ),
        text="{r} = $f({x}) * len(list($E))",
        weight=0.05,
    ),
    Template(
        name="dataclass",
        definitions=(
            """
            import dataclasses


            @dataclasses.dataclass
            class $D:
                value: torch.Tensor
                scale: float = $n
                parts: list = dataclasses.field(default_factory=list)

                def __post_init__(self):
                    self.parts.append(self.scale)

                def total(self):
                    return $f(self.value) * self.scale + sum(self.parts)
            """,
        ),
        text="""
            record = $D({x})
            record.parts.append($m)
            {r} = record.total()
            {s} = dataclasses.replace(record, scale=$o).total()
        """,
    ),
    Template(
        name="namedtuple",
        definitions=("import collections\n\n$D = collections.namedtuple('$D', 'left right', defaults=($n,))",),
        text="""
            pair = $D({x})
            {r} = pair.left * pair.right
            left, right = pair._replace(right={y})
            {s} = $b(left, right)
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="enum",
        definitions=(
            """
            import enum


            class $D(enum.Enum):
                FIRST = $n
                SECOND = $m
            """,
        ),
        text="""
            mode = $D[{A}]
            {r} = $f({x}) * mode.value if mode is $D.FIRST else $g({x}) + mode.value
        """,
        argument=("FIRST", "SECOND"),
        kinds=("float", "integer"),
    ),
    Template(
        name="slots",
        definitions=(
            """
            class $D:
                __slots__ = ('first', 'second')

                def __init__(self, first):
                    self.first = first
            """,
        ),
        text="""
            holder = $D($f({x}))
            {r} = holder.first * ($n if hasattr(holder, 'second') else $m)
            holder.second = holder.first
            holder.first = {x}
            {s} = $b(holder.second, holder.first)
        """,
        kinds=("float", "integer", "complex"),
    ),
)

RULES = rules_of(CLASSES)
