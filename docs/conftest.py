"""pytest runs the examples of the pages; it has no business with the scripts beside them."""

import importlib
import importlib.util
import warnings

collect_ignore_glob = ["*.py"]

# torch.compile imports this module when it first generates code, and torch 2.13 warns of itself
# there. A page has no way to expect a warning, and in these runs warnings are errors.
if importlib.util.find_spec("torch"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("torch.utils.mkldnn")
