"""Benchmarks: this server beside others on the same load, in one run.

``python -m loadtest.bench`` compares processor time and memory per connection; ``python -m
loadtest.bench.wheel`` compares the timing wheel with a heap.
"""
