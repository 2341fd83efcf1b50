"""Checks a machine, the settings and Redis for what a server needs; changes nothing.

Facts are gathered first, by `machine.gather` and `redis_facts.gather`; each check is a function of them.
"""
