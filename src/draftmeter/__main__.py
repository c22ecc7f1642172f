"""``python -m draftmeter``."""

from draftmeter.cli import main

if __name__ == "__main__":
    main()
