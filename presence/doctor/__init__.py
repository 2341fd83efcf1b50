"""Looks at a machine, its settings and its Redis, and says what a server would miss; changes nothing.

What is so is gathered first, in `facts` and `redis_facts`; each check is a function from that to findings.
"""
