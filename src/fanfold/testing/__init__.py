"""Fakes that are real implementations of a seam, and suites that any implementation can be run against."""

from fanfold.testing.scripted import Reply as Reply
from fanfold.testing.scripted import ScriptedModel as ScriptedModel
from fanfold.testing.scripted import as_json as as_json
from fanfold.testing.scripted import calls as calls
from fanfold.testing.scripted import echo as echo
