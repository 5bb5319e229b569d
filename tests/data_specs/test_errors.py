"""Every error of the formats is one that a user can mend, so that the entry shows it without a traceback."""

import importlib
import inspect
import pkgutil

import data_specs
from data_specs.errors import UserError


def test_it_is_a_value_error():
    assert issubclass(UserError, ValueError)


def test_every_error_of_the_formats_derives_from_it():
    modules = [
        importlib.import_module(f"data_specs.{m.name}") for m in pkgutil.iter_modules(data_specs.__path__)
    ]
    found = {
        name: kind
        for module in modules
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, BaseException) and kind.__module__ == module.__name__
    }
    assert {"AnswersError", "CacheError", "EvaluationError", "ManifestError", "SpsError"} <= set(found)
    assert [name for name, kind in found.items() if not issubclass(kind, UserError)] == []
