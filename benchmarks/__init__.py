"""How fast Forge is, as ratios measured in one run, each beside its target.

    python -m benchmarks [--only NAME …] [--quick] [--json FILE] [--write-docs]

Every benchmark is a module with `run(bench) -> list[Figure]`. All use one temporary server with the settings of the
embedded one: fsync on, synchronous_commit on. What is compared runs in turns (A B A B …); a figure is the median of
its rounds and comes with its lowest and highest. Disk and processor of a machine in use are noisy: look at the spread.
"""
