"""How fast this project's parts are beside their peers (`python -m benchmarks`), and tables of what else is measured.

Only a checkout has this package: it imports all others, and none imports it.
"""
