"""The command line: ``python -m rope_xp COMMAND``."""

import argparse
import sys
from collections.abc import Sequence
from typing import Protocol

from rope_xp._cli import bench, check, demo, info, inspect_config, plot


class Command(Protocol):
    """A module with a command. The first line of its docstring is the command's help."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""
        ...

    def run(self, options: argparse.Namespace) -> int:
        """Do it; return the exit status."""
        ...


COMMANDS: dict[str, Command] = {
    "info": info,
    "demo": demo,
    "inspect": inspect_config,
    "check": check,
    "plot": plot,
    "bench": bench,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m rope_xp",
        description="One rotary position embedding for every array library.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        summary = (command.__doc__ or "").partition("\n")[0]
        command.add_arguments(commands.add_parser(name, help=summary, description=summary))
    options = parser.parse_args(arguments)
    return COMMANDS[options.command].run(options)


if __name__ == "__main__":
    sys.exit(main())
