"""The command line: ``rope-xp COMMAND``, or ``python -m rope_xp COMMAND``."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rope_xp import __version__
from rope_xp._cli import bench, check, demo, info, inspect_config, terminal, vectors
from rope_xp._core.errors import RopeError

_CLOSED_PIPE = 141
"""Exit status of a program that SIGPIPE ended, as a shell reports it."""


COMMANDS: dict[str, ModuleType] = {
    "info": info,
    "demo": demo,
    "inspect": inspect_config,
    "check": check,
    "vectors": vectors,
    "bench": bench,
}
"""Modules with ``add_arguments(parser)`` and ``run(options)``, which returns the exit status. The
first line of their docstring is the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    try:
        try:
            return _run_command(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away. Python would report it again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE


def _run_command(arguments: Sequence[str] | None) -> int:
    script = Path(sys.argv[0]).stem == "rope-xp"
    parser = terminal.Parser(
        prog="rope-xp" if script else "python -m rope_xp",
        description="One rotary position embedding for every array library.",
    )
    parser.add_argument("--version", action="version", version=f"rope-xp {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        summary = (command.__doc__ or "").partition("\n")[0]
        command.add_arguments(commands.add_parser(name, help=summary, description=summary))
    options = parser.parse_args(arguments)
    status = 2 if options.command == "check" else 1  # which has checked nothing, where one fails
    try:
        return int(COMMANDS[options.command].run(options))
    except BrokenPipeError:
        raise  # of stdout, and no file
    except OSError as error:
        return terminal.fail(options.command, f"{error.filename}: {error.strerror}", status)
    except RopeError as error:
        return terminal.fail(options.command, str(error), status)
    except SystemExit as stop:  # of a module or function that it called; it says nothing of RoPE
        reason = f"code that it called ended the program with {stop.code!r}; nothing was checked"
        return terminal.fail(options.command, reason, status=2)


if __name__ == "__main__":
    sys.exit(main())
