"""Lets ``LAPGRAD_ACCELERATE=1 python script.py`` take effect in a script that does not import lapgrad.

torch calls every entry point of the group "torch.backends" at the end of ``import torch``. The one of lapgrad
is here, outside of the package: where the variable is not set, nothing of lapgrad is imported.
"""

import os


def accelerate_if_asked() -> None:
    """Import lapgrad, which reads the variable, if ``LAPGRAD_ACCELERATE`` asks for something."""
    if os.environ.get("LAPGRAD_ACCELERATE", "").lower() not in ("", "0", "off", "false"):
        import lapgrad  # noqa: F401
