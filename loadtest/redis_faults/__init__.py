"""Everything that befalls a Redis, or a Redis Cluster, done to real ones under three nodes."""
