"""Benchmarks: this server beside others on the same load, in one run.

``python -m loadtest.bench`` compares processor time and memory per connection; ``python -m
loadtest.bench.wheel`` compares the timing wheel with a heap; ``python -m loadtest.bench.expiry`` lets a
hundred thousand sessions end in one tick, to the last event in Redis; ``python -m
loadtest.bench.redis_cost`` says what a node costs Redis.
"""
