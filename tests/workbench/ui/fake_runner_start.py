"""``python -S -E fake_runner_start.py SOCKET``: a fake runner, forked by ``runner_forks.py``.

It has the streams and the variables of this process.
"""

import os
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
    connection.connect(sys.argv[1])
    variables = [b"%s=%s" % variable for variable in os.environb.items()]
    socket.send_fds(connection, [b"\0".join(variables)], [0, 1, 2])
    code = connection.recv(1)
os._exit(code[0] if code else 1)
