"""Print the shell line of README.md that stands below the marker `<!-- NAME -->`."""

import re
import sys
from pathlib import Path

name = sys.argv[1]
text = Path("README.md").read_text(encoding="utf-8")
found = re.search(rf"<!-- {name} -->\n```sh\n(.+)\n```", text)
if not found:
    sys.exit(f"README.md has no line marked {name}")
print(found.group(1))
