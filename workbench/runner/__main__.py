"""``python -m workbench.runner``: speaks the protocol on its standard input and output.

Under ``torchrun`` or ``srun`` this is rank 0; every other rank runs a worker of it.
"""

import os


def run() -> int:
    """Serve as the runner or, as any rank but 0, as the supervisor of a worker."""
    if int(os.environ.get("RANK", "0")):
        from workbench.runner.distributed.supervisor import main as supervise

        supervise()
    from workbench.runner.main import main

    return main()


if __name__ == "__main__":
    raise SystemExit(run())
