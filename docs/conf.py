# SPDX-License-Identifier: MIT
"""Sphinx's settings; build.sh sets the environment that they read."""
import os
import re
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "runtime", "python"))
with open(os.path.join(here, "..", "meson.build"), encoding="utf-8") as file:
    release = version = re.search(r"version: '([^']+)'", file.read())[1]

project = "moe-offload"
project_copyright = "the authors of moe-offload"
extensions = ["breathe", "sphinx.ext.autodoc"]
breathe_projects = {"moe-offload": os.environ["MOE_DOXYGEN_XML"]}
breathe_default_project = "moe-offload"
breathe_domain_by_extension = {"h": "c"}
breathe_show_include = False
primary_domain = "c"
highlight_language = "none"
suppress_warnings = ["duplicate_declaration.c"]  # of a struct and its typedef
autodoc_member_order = "bysource"
html_theme = "alabaster"
html_theme_options = {"description": "mixture-of-experts models larger than memory", "page_width": "1100px",
                      "sidebar_width": "240px", "fixed_sidebar": True}
html_sidebars = {"**": ["about.html", "navigation.html", "searchbox.html"]}
html_show_sphinx = False
html_copy_source = False
