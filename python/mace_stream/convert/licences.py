"""Licences of well-known model files, so that a converted file can say whose terms hold."""

from __future__ import annotations

import re

BY_SHA256 = {
    # examples/models/ti_hcp_meam.mace of this repository
    "c568e8a1e0cb10994dd16c43b12fb438f67910ce0511b5ae26ed7883cc042fe3": "MIT",
    # github.com/imagdau/Tutorials
    "8a100c3db4e39ad8a821d610ef6e216640aacd8c1faf25740c4163a45548a8ba": "MIT",
    # github.com/ACEsuit/mace, pull request 325
    "3f1251c8655192faf9d28f2f857533f66507bb7abee3f1781c6a71336f26da3f": "MIT",
    # github.com/ilyes319/mace-tutorials
    "b89c84c2bc20a3d2d3ce6c253b64821ea9beeee9621efbc2d35cbd61dce5d107": "MIT",
}

_ACADEMIC = "Academic Software License (no commercial use), https://github.com/gabor1/ASL"

BY_FILE_NAME = (
    (r"mace-off2\d.*|mace-omat-.*|mace-matpes-.*|mace-omol-.*", _ACADEMIC),
    (r"2023-12-\d\d-mace-128-l[01].*|mace_mptrj_2022.*|mace_agnesi_.*", "MIT"),
    (r"mace-(small|medium|large)-density-agnesi-.*|mace-mp-0b3-.*|mace-mpa-0-.*", "MIT"),
)
"""File names of the releases of ACEsuit's foundation models, with the terms stated there."""


def licence_note(file_name: str, digest: str) -> str:
    """Licence of a model file, ``unknown`` if neither its content nor its name is known."""
    if digest in BY_SHA256:
        return BY_SHA256[digest]
    for pattern, licence in BY_FILE_NAME:
        if re.fullmatch(pattern, file_name.lower()):
            return f"{licence} (judged by the file's name)"
    return "unknown"
