"""Load tests of a server, and what starts and judges servers for them, for benchmarks and for tests."""
