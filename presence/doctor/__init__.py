"""Looks at a machine, its settings and its Redis, and says what a server would miss; changes nothing.

What is so is gathered first, by `machine.look` and `redis_facts.gather`; each check is a function of that.
"""
