"""The model of whoever names none, for commands that only tell: nothing is opened, and a broken file is no error."""

import os
from pathlib import Path

from fanfold.cli.options import MODEL_VARIABLE
from fanfold.config.discovery import load
from fanfold.errors import ConfigError


def default_model() -> str | None:
    """`provider/model-id`; None where no configuration tells."""
    named = os.environ.get(MODEL_VARIABLE)
    if named:
        return named
    try:
        return load(None, start=Path.cwd(), environ=os.environ).default_model
    except ConfigError:
        return None  # whoever resumes is told what is wrong with it
