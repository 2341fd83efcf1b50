"""``python -m tests.system.channel.few_channels_server CHANNELS serve …``: it follows whole shards.

It does so beyond `CHANNELS` watched users of a worker, and no longer soon after there are few again.
"""

import sys

from presence.cli.main import main
from presence.watching import shard_placement, shard_watch

LINGER_S = 1.0

if __name__ == "__main__":
    vars(shard_placement)["MAX_USER_CHANNELS"] = int(sys.argv.pop(1))
    vars(shard_watch)["LINGER_S"] = LINGER_S
    sys.exit(main())
