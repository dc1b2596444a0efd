"""The data directory: made for its owner alone at the first start."""

from pathlib import Path

from servicekit.settings import SettingsError
from supervisor.settings import PREFIX


def made(directory: Path) -> Path:
    """The directory, which is made where it is not there.

    Raises:
        SettingsError: Something else has that name.
        OSError: It cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (FileExistsError, NotADirectoryError) as error:
        raise SettingsError(f"{PREFIX}DATA_DIR", f"{directory} is not a directory") from error
    return directory
