"""A stand-in for ssh: ``python ssh_stand_in.py HOST WORD ...`` runs the words in a shell elsewhere.

As behind ssh, the command's process is in a session of its own, where no signal to this process or
to its group arrives, and its only ties are three pipes that end with this process. Its number is
written to the file that STAND_IN_PID names.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path


def pump(source: int, target: int) -> None:
    try:
        while data := os.read(source, 65536):
            while data:
                data = data[os.write(target, data) :]
    except OSError:
        pass
    os.close(target)


def main() -> int:
    host, *words = sys.argv[1:]
    if host == "unknown":
        sys.stderr.write("ssh: Could not resolve hostname unknown: Name or service not known\n")
        return 255
    if host == "chatty":
        os.write(1, b"Welcome to chatty!\nMaintenance on Sunday.\n")
    there = subprocess.Popen(
        ["/bin/sh", "-c", " ".join(words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    if file := os.environ.get("STAND_IN_PID"):
        Path(file).write_text(str(there.pid))
    threading.Thread(target=pump, args=(0, os.dup(there.stdin.fileno())), daemon=True).start()
    there.stdin.close()
    outward = [
        threading.Thread(target=pump, args=(pipe.fileno(), os.dup(at)))
        for pipe, at in ((there.stdout, 1), (there.stderr, 2))
    ]
    for thread in outward:
        thread.start()
    for thread in outward:
        thread.join()
    return there.wait() % 256


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the thread that reads what no longer arrives stays
