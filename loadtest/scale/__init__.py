"""A hundred thousand real connections, and each event held against what that client truly did.

``python -m loadtest.scale``; README.md one folder above says more.
"""
