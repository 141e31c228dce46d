"""The pytest plugin: calls that a test suite makes are judged on compilers (`pytest --torch-oracle=inductor`).

`plugin` has pytest's hooks and loads nothing heavy, since pytest imports it in every run. `targets` finds the calls, `judging`
judges them, `recording` writes the rows.
"""
