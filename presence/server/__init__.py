"""One server process, wired: node, tasks, start and drain; and several of them on one port."""
