"""fuzz: random programs that a compiler may get wrong, and what is done with those it does.

Will hold the operator specifications, the strategies that draw programs (views, mutation, autograd, Python features,
call plans, export), campaigns with a corpus and coverage feedback, reduction of a failing program to a few statements,
and the sorting of failures into buckets. It may import `results` and `oracle`, and nothing imports it but `suites`.
"""
