"""The data directory, which only its owner can read."""

from pathlib import Path

from servicekit.settings import SettingsError
from supervisor.settings import PREFIX


def ensure_data_dir(directory: Path) -> Path:
    """Creates the data directory if it does not exist, and returns it.

    Raises:
        SettingsError: The path is not a directory.
        OSError: The directory cannot be created.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (FileExistsError, NotADirectoryError) as error:
        raise SettingsError(f"{PREFIX}DATA_DIR", f"{directory} is not a directory") from error
    return directory
