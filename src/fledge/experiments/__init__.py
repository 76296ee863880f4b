"""Sweeps, ablations, comparisons and the pages that report them."""
