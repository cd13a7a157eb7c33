"""Where `inc-tb` begins: Ctrl-C while everything else is still being loaded is one line, too."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from inc_tb.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("inc-tb: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
