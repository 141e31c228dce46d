"""results: store records, and make tables, comparisons, gates and exports of them. Does not import torch."""
