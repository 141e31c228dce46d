"""Hand-written Triton kernels judged against a PyTorch function: `torch-oracle kernel`, see docs/kernels.md."""
