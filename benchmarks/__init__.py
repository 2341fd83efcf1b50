"""Benchmarks: this server beside others on the same load, in one run."""
