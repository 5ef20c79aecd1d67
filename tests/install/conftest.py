"""`make test-install` runs the page, in the folder that INSTALL names; otherwise only its form is checked."""

import os

collect_ignore = [] if os.environ.get("INSTALL") else ["test_install.py"]
