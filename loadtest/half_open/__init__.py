"""Clients whose network goes away without a word: no FIN and no RST ever comes.

``python -m loadtest.half_open``.
"""
