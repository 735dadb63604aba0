"""The command line: ``python -m staging COMMAND``.

Each command is a module with ``main(argv) -> int``; it is imported only when it is
run, so that ``python -m staging sim`` starts a program without loading torch twice.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence

# command -> (module, what it does)
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (
        "staging.demo.cli",
        "stage a model runner's inputs step after step, checking every byte",
    ),
    "sim": ("staging.sim.cli", "run a command over the simulated device"),
    "calibrate": (
        "staging.calibrate",
        "measure what each way of copying costs on this machine",
    ),
    "serve": ("staging.process.serve", "serve an ASGI application from several workers"),
}


def usage() -> str:
    """Return the help text that lists every command."""
    width = max(map(len, COMMANDS))
    lines = ["usage: python -m staging COMMAND [options]", "", "commands:"]
    lines += [f"  {name:<{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    lines += ["", "python -m staging COMMAND --help says more, with an example."]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv
        Arguments after the program's name; ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        The exit status: the command's own, 0 for help, 2 for an unknown command.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in {"-h", "--help", "help"}:
        print(usage())
        return 0
    if argv[0] in {"-V", "--version"}:
        from staging import __version__

        print(f"staging {__version__}")
        return 0
    command = COMMANDS.get(argv[0])
    if command is None:
        print(f"staging: unknown command {argv[0]!r}\n\n{usage()}", file=sys.stderr)
        return 2
    if argv[0] == "serve":
        # Until its own handlers stand, Ctrl-C simply ends it. The KeyboardInterrupt of a
        # Python that is importing can be raised inside the import machinery, which ignores
        # it and may keep a lock.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    status = importlib.import_module(command[0]).main(argv[1:])
    return int(status)
