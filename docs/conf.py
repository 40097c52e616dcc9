"""Sphinx configuration. Build with ``make docs``; warnings are errors."""

from streamclient import __version__

project = "streamclient"
author = "The streamclient authors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"streamclient {release}"
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_mock_imports = ["pyspark", "pyarrow"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]
