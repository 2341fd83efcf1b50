"""Everything goes wrong at once, on real nodes, a real Redis and real clients, and each event is judged.

``python -m loadtest.chaos``; README.md one folder above says more.
"""
