"""Settings of the whole process."""

import resource
import subprocess
import sys

PROGRAM = """
import resource
from datum_compute.runtime.process import allow_many_files
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
allow_many_files()
allow_many_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_limit_on_open_files_is_raised_to_the_hard_limit() -> None:
    limits = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert limits.split() == [str(hard), str(hard)]
