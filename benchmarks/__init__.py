"""Benchmarks: what this server costs and holds, alone and beside others on the same load."""
