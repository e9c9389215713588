#!/usr/bin/env bash
# Gradescope runs this once, when it makes the assignment's image.
set -euo pipefail
apt-get update
apt-get install -y python3 python3-venv
python3 -m venv /autograder/environment
# PyTorch's build for processors alone is a tenth the size of the one with CUDA.
/autograder/environment/bin/pip install -r /autograder/source/requirements.txt \
    --extra-index-url https://download.pytorch.org/whl/cpu
