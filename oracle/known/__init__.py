"""Known issues: bugs of stock PyTorch that this project has found or reproduced, in one ledger for every command.

`ledger` reads the entries (`entries/*.toml`), `programs/` holds a program for each bug, `seen.json` says how each of them
ends on every rung that was measured, and `matching` decides whether a verdict is what an entry says. Torch-free.
"""
