"""What can go wrong, and the exit code each ends with.

The tree (exit codes are a contract, see docs/design.md)::

    DraftmeterError
    +-- UsageError          2  the command, a file or an option is wrong
    +-- ServerError         3  a server could not be reached, started or spoken to
    +-- UntrustworthyError  4  measured, but the figures must not be believed
    +-- InterruptedRunError  130  stopped by Ctrl-C or SIGTERM; what was measured is kept

Every message is one or two lines: what was wrong, where, and what to do.
"""

EXIT_OK = 0
EXIT_NO = 1
EXIT_USAGE = 2
EXIT_SERVER = 3
EXIT_UNTRUSTWORTHY = 4
EXIT_INTERRUPTED = 130


class DraftmeterError(Exception):
    """Base of every error a user is meant to read; ``exit_code`` is the process's."""

    exit_code = EXIT_USAGE


class UsageError(DraftmeterError):
    """The command line, an experiment file or a prompts file is wrong."""

    exit_code = EXIT_USAGE


class ServerError(DraftmeterError):
    """A server could not be reached, started or spoken to."""

    exit_code = EXIT_SERVER


class UntrustworthyError(DraftmeterError):
    """The measurement ended, but its figures must not be believed."""

    exit_code = EXIT_UNTRUSTWORTHY


class InterruptedRunError(DraftmeterError):
    """A run was stopped; what was measured is kept."""

    exit_code = EXIT_INTERRUPTED
