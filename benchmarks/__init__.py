"""Benchmarks of rfrope, run by asv: ``asv run``, or ``asv run -E existing:same --quick`` for a look at this machine.

A figure counts only beside its peer in the same run, so the peers (a plain copy, the usual formula) are benchmarks too.
"""
