"""``python -m tests.gpu.check``: everything that needs a GPU to be known, in one run; see :mod:`tests.gpu.check`."""
