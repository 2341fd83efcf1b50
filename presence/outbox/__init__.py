"""From the core to Redis: a bounded queue, numbered batches, resync, reconciliation; ports, and no Redis."""
