"""How many files and connections a process may have open."""

import resource
import subprocess
import sys

PROGRAM = """
import resource
from datum_compute.runtime.descriptors import allow_many
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
allow_many()
allow_many()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_program_takes_all_that_it_is_allowed() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert told.split() == [str(hard), str(hard)]
