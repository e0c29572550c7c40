"""`simrank`, and `python -m simrank` where the command is not on the path."""

import sys

_INTERRUPTED = 130  # As shells have it: 128 and the number of the signal.


def main() -> None:
    """Run the command line; Ctrl-C while it is loaded ends it without a traceback."""
    try:
        from simrank.cli import main as command  # noqa: PLC0415 - this takes half a second
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    try:
        command()
    except SystemExit as ended:
        if "torch" in sys.modules and isinstance(ended.code, int | None):
            from simrank.cli.ending import end  # noqa: PLC0415 - at the end

            end(ended.code or 0)
        raise


if __name__ == "__main__":
    main()
