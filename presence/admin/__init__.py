"""HTTP for operators, in a process of its own: figures, who is online, events, kicks, the live page."""
