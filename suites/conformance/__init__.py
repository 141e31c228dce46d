"""PyTorch's own test files, run with the reference implementation in the place of torch's entry points.

The user names a PyTorch source tree. Of it only `test/` is read; the torch that runs is the installed one, with the test
harness (`torch.testing._internal`) and the operator database it brings. The road of a run, one module each:

    tree.py      is PATH a source tree, which version, and a hash of the files that are run
    table.py     the suites: which files, which classes
    run.py       plans the passes, gives each test to a worker process, reads and fills the cache
    child.py     in the worker: loads a file through source.py, runs one test, says how it ended
    source.py    what the names of a test file mean: imports and attributes that are substituted, moved or gone
    stand_in.py  what stands in the place of an entry point in order to raise
    guard.py     no call from refimpl into what it is compared with
    outcomes.py  how a test ends, what is in the denominator, the rows of the result
    expected.py  the committed table of tests that are known not to pass, each with its reason
    report.py    the table on the terminal, CSV or JSON lines, the page in docs/

Three passes. Stock: nothing is substituted. Stand-in: everything that refimpl offers raises when it is used. A test that
passes with the first and not with the second says something about the entry points: these form the denominator. Then the
subject. See docs/conformance.md.
"""
