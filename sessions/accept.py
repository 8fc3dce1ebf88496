"""Accept a session file that another program changed: ``python -m sessions.accept FILE ...``.

A child process reads the complete file; if all of it makes sense it is saved again with a new
checksum.
"""

from __future__ import annotations

import sys

from sessions.errors import SessionError
from sessions.storage.hdf5 import accept


def main(paths: list[str]) -> int:
    """Accept each file; 0 if all could be, 1 if one could not, 2 without any."""
    if not paths:
        sys.stderr.write("usage: python -m sessions.accept FILE ...\n")
        return 2
    status = 0
    for path in paths:
        try:
            accept(path)
        except SessionError as error:
            sys.stderr.write(f"{error}\n")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
