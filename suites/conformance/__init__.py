"""Runs PyTorch's own test files with the reference implementation in place of torch's entry points.

The user names a PyTorch source tree, of which only `test/` is read. The tests run with the installed torch, its test harness
(`torch.testing._internal`) and its operator database. The modules:

    tree.py      checks that PATH is a source tree, finds its version, and hashes the test files
    table.py     the suites: their files and classes
    run.py       plans the passes, gives each test to a worker process, reads and fills the cache
    child.py     in the worker: loads a file through source.py, runs one test, reports its outcome
    source.py    rewrites a test file: imports and attributes that are substituted, moved or gone
    stand_in.py  objects that replace entry points and raise when they are used
    guard.py     forbids calls from refimpl into the code that it is compared with
    outcomes.py  outcomes of tests, the denominator, the cache of outcomes, the rows of the result
    expected.py  the committed table of tests that are known not to pass, each with its reason
    report.py    the table on the terminal, CSV or JSON lines, the page in docs/

There are three passes. Stock: nothing is substituted. Stand-in: every substituted entry point raises when it is used. Tests that
pass in the first and not in the second depend on the entry points, and form the denominator. The third pass runs them with the
subject. See docs/conformance.md.
"""
