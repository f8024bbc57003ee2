"""What all tests need of the process that runs them."""

import signal

# Started in the background of a shell without job control, a process ignores Ctrl-C, and so do its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
