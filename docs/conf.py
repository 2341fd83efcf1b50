"""The site: ``sphinx-build -W -c docs . site`` from the top of the repository, with the extra ``docs``.

The pages are those of the repository, so their links work in both places. `docs/index.md` and `docs/api.md`
are for the site only.
"""

from presence import __version__

project = "presence-server"
author = "The presence-server authors"
copyright = f"2026, {author}"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
root_doc = "docs/index"
include_patterns = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md", "deploy/README.md", "examples/README.md"),
    *(
        "benchmarks/README.md",
        "loadtest/README.md",
        "protocol/SPEC.md",
        "protocol/clients/node/README.md",
        "protocol/clients/java/README.md",
        "tests/system/README.md",
    ),
]
exclude_patterns = ["presence/**"]  # presence/protocol is a link to protocol

html_theme = "furo"
html_title = f"presence-server {__version__}"
html_copy_source = False

myst_fence_as_directive = ["mermaid"]  # GitHub draws the same fences
myst_heading_anchors = 4  # as GitHub makes them
suppress_warnings = ["myst.header"]  # a page may begin with a heading of the second level

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_ivar = True
napoleon_use_rtype = False
default_role = "code"  # docstrings have single backticks around names
