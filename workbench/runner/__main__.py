"""``python -m workbench.runner``: speaks the protocol on its standard input and output."""

from workbench.runner.main import main

if __name__ == "__main__":
    raise SystemExit(main())
