"""The command line, one module for each group of commands: parse, call, print."""

import os

# NumPy's products are small here: on busy machines a second thread costs many times what it saves.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
