"""``python -m workbench.runner.script``: speaks the protocol on its standard input and output."""

from __future__ import annotations

from workbench import protocol
from workbench.runner.script.catalogue import catalogue
from workbench.runner.script.watch import ScriptWatch
from workbench.runner.wire import Wire


def main() -> int:
    """Watch one script after the other until Quit."""
    wire = Wire.from_standard_streams()
    wire.listen()
    wire.send(catalogue(wire.created))
    count = 0  # segments of all scripts
    while not isinstance(command := wire.next(), protocol.Quit):
        if isinstance(command, protocol.Script):
            watch = ScriptWatch(wire, command, count)
            watch.run()
            count += watch.begins_segment
        wire.send(protocol.State(state="idle"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
