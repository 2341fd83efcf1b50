"""Devices under locust: ``python -m presence.loadtest``, or ``locust -f`` with the path of this file.

Locust patches the process with gevent when it is imported: never import this module beside trio or in the
tests' process.

Tests: `tests/system/loadtest/test_locust.py`.
"""

from presence.loadtest.hooks import LoadUser, register_hooks


class DeviceUser(LoadUser):
    """One device, or as many as ``--connections`` says, each with a uid of its own."""


register_hooks()
