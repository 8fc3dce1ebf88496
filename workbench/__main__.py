"""The program ``workbench``, also ``python -m workbench``."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line and end the process.

    Signals are handled before anything else is imported, and until the process has ended.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from workbench import interrupts

    interrupts.install()
    from workbench import cli, crash_log

    try:
        code = cli.main()
    except SystemExit as end:  # argparse raises it
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - a person gets a sentence, the log the rest
        code = cli.report_defect(error, crash_log.write(error))
    interrupts.end_process(code)


if __name__ == "__main__":
    main()
