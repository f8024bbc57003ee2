"""What pytest finds by the entry point `fanfold`; the plugin itself is `fanfold.testing.pytest_plugin`.

pytest refuses a module that is registered under two names. By this detour the plugin has only the one by which people
name it (`-p fanfold.testing.pytest_plugin`, or `pytest_plugins` in a conftest), so naming an installed one is harmless.
"""

pytest_plugins = ("fanfold.testing.pytest_plugin",)
