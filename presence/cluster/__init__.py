"""Membership of the cluster: leases, failure detection, fencing, and the sweep of dead nodes."""
