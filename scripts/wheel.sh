#!/usr/bin/env bash
# The Python package as one wheel for Python 3.9 and later, by python/build_backend.py.
#   scripts/wheel.sh [FOLDER]      FOLDER: where it goes; dist where it is not given
# DHELIX_BUILD_DIR names a build folder to take the module from; without, it is compiled.
source "$(dirname "$0")/env.sh"

folder=${1:-dist}
mkdir -p "$folder"
python3 python/build_backend.py "$folder"
