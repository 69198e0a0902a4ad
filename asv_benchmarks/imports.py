"""What ``import rope_xp`` costs a process that has numpy already: below 50 ms."""


def timeraw_import() -> tuple[str, str]:
    return "import rope_xp", "import numpy"


# Each sample is a process of its own.
timeraw_import.repeat = (5, 20, 20.0)
timeraw_import.version = "1"
