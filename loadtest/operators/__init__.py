"""What operators' tools cost the clients' server: ``python -m loadtest.operators``."""
