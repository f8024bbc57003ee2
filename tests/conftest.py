"""What all tests need of the process that runs them."""

import signal

from hypothesis import HealthCheck, settings

# How fast the machine is says nothing of a law.
settings.register_profile("fanfold", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fanfold")

# Started in the background of a shell without job control, a process ignores Ctrl-C, and so do its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
