"""A proxy that disturbs the connections through it: between clients and nodes, between nodes and Redis.

    with Proxy("/run/redis.sock") as proxy:      # or Proxy(("127.0.0.1", 6379))
        node = start(redis=proxy.url)
        proxy.disturb(Faults(latency_s=0.2))     # of each way; up=False: only of what comes back
        proxy.heal()
        proxy.drop_reply(10)
        assert proxy.injected.replies_dropped    # what was truly done

``python -m loadtest.proxy --help`` tries it by hand.
"""

from loadtest.proxy.faults import CLEAR, Faults, Injected
from loadtest.proxy.server import Proxy, Target

__all__ = ["CLEAR", "Faults", "Injected", "Proxy", "Target"]
