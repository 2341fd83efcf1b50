"""Calls of Redis that are interrupted at random points, and answers that must be their own all the same.

``python -m loadtest.interrupts``.
"""
