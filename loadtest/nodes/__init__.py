"""What happens to real nodes on one Redis when workers die, stop, are cut off, or Redis itself forgets.

``python -m loadtest.nodes``; README.md one folder above says more.
"""
