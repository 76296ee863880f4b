"""Plans, trials and engines; sweeps, ablations and comparisons on top of them."""
