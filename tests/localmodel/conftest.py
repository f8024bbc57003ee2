"""Where the runtime or the embedded model is missing these tests are skipped, or fail if the run demands them."""

import os

import pytest

from fanfold.errors import MissingExtraError
from fanfold.providers.gguf import find_model
from fanfold.providers.llama import load_runtime


@pytest.fixture(scope="session", autouse=True)
def local_model() -> None:
    try:
        load_runtime()
        find_model("default")
    except MissingExtraError as error:
        if os.environ.get("FANFOLD_REQUIRE_LOCAL_MODEL") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))
