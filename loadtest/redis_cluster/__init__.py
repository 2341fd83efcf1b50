"""A real Redis Cluster of processes on this machine, whose members can be killed, frozen and promoted.

The members do not meet each other by gossip: each starts with a written configuration that names them all,
so that a cluster serves some two seconds after its start (so long a member waits by itself before it takes
writes). Members end with the thread that started them (Linux), whatever becomes of it.
"""

from loadtest.redis_cluster.cluster import Cluster
from loadtest.redis_cluster.members import Member
from loadtest.redis_cluster.moves import Move

__all__ = ["Cluster", "Member", "Move"]
