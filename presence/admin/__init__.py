"""HTTP for operators, in the admin process: metrics, users online, events, kicks, the live page."""
