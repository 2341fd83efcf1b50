"""Idle detection by each technique on one workload: what it costs, how late it is, what it loses."""
