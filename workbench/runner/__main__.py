"""``python -m workbench.runner``: speaks the protocol on its standard input and output.

Under ``torchrun`` or ``srun`` this is rank 0; every other rank becomes a worker of it.
"""

import os

from workbench.runner.main import main


def run() -> int:
    """Serve as the runner or, as any rank but 0, as a worker."""
    if int(os.environ.get("RANK", "0")):
        from workbench.runner.rank_worker import main as work

        work()
    return main()


if __name__ == "__main__":
    raise SystemExit(run())
