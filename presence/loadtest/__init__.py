"""Devices under locust that know what they did, and so whether the server's events are true.

``python -m presence.loadtest --help``; `loadtest/README.md` says more.
"""
