"""What an app's channel promises, held against real servers: watches, messages, and what they cost others.

Whatever judges is pure (`entries`, `*_judge`, the judge in `flapping`): broken histories can be
made up for it. Whatever plays drives its clients in one thread and writes histories.
"""
