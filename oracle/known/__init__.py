"""Known issues: the ledger of bugs of stock PyTorch that this project has found or reproduced.

`ledger` reads the entries (`entries/*.toml`), `programs/` has a program for each bug, `seen.json` has their measured results on
each rung, and `matching` decides whether a verdict is a known issue. Does not import torch.
"""
