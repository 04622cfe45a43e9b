#!/usr/bin/env bash
# One archive that runs on any x86-64 Linux without packages of ours: the program, the libraries and
# the C library that it was built with, a python3 for gpu_check.sh, job files.
#
#   scripts/bundle.sh [--out FOLDER]                 build/dhelix-VERSION.tar.gz, for cpus
#   scripts/bundle.sh --cuda [--nvcc NVCC] [--out FOLDER]
#       build/dhelix-VERSION-cuda.tar.gz: with device cuda (sm_80, sm_90a, PTX), its tests and rates,
#       gpu_check.sh. Libraries of CUDA, NCCL and the driver are the machine's (scripts/bundle/start.sh).
#
# Prints the archive's path and size. It builds in build/bundle, build/bundle-cpu; without MPI, so that
# ranks are threads of one process: several machines take a program that is built where their MPI is.
source "$(dirname "$0")/env.sh"

most_bytes=$((60 * 1000 * 1000))
cuda=false nvcc='' folder=build
while [ $# -gt 0 ]; do
    case $1 in
        --cuda) cuda=true ;;
        --nvcc | --out)
            [ $# -gt 1 ] || die "$1 takes a value"
            [ "$1" = --nvcc ] && nvcc=$2 || folder=$2
            shift
            ;;
        *) die "unknown option $1 (--cuda, --nvcc NVCC, --out FOLDER)" ;;
    esac
    shift
done
[ "$(uname -m)" = x86_64 ] || die "bundles are for x86-64; this machine is $(uname -m)"
version=$(sed -n 's/^project(dhelix VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)

# ---- build ---------------------------------------------------------------------------------
options=(-DDH_MPI=OFF -DDH_PYTHON=OFF)
programs=(src/cli/dhelix) build=build/bundle-cpu name=dhelix-$version
if $cuda; then
    : "${nvcc:=$(scripts/cuda_compiler.sh)}"
    options+=(-DDH_CUDA=ON -DDH_NVCC="$nvcc" '-DDH_CUDA_ARCHITECTURES=80;90a' -DDH_CUDA_KERNELS_APART=ON)
    programs=(src/cli/dhelix src/cli/dhelix_cpu tests/kernels/test_gpu_kernels tests/kernels/test_gpu_operators bench/kernels/bench_gpu)
    build=build/bundle name=dhelix-$version-cuda
fi
mkdir -p build "$folder"
cmake --preset release -B "$build" "${options[@]}" >"$build.log" 2>&1 &&
    cmake --build "$build" --target "${programs[@]##*/}" -j "$jobs" >>"$build.log" 2>&1 ||
    { tail -20 "$build.log" >&2; die "$build cannot be built; whole log: $build.log"; }

# ---- what is in it -------------------------------------------------------------------------
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root_of=$work/$name
lib=$root_of/lib
mkdir -p "$root_of/bin" "$root_of/libexec" "$lib/none" "$root_of/share"

put_program() { # built file, name in libexec
    strip -o "$root_of/libexec/$2" "$build/$1"
}
# Libraries of a program or a library, those of CUDA and the driver left to the machine. Links'
# names are what is asked for.
put_libraries() {
    ldd "$@" | sed -n 's/^[[:space:]]*\(.* => \)\{0,1\}\(\/[^ ]*\) (0x.*/\2/p' | sort -u | while read -r file; do
        case ${file##*/} in libcublas* | libnccl* | libcuda.* | libnvidia*) continue ;; esac
        [ -e "$lib/${file##*/}" ] || cp -L "$file" "$lib/${file##*/}"
    done
}
install -m 755 scripts/bundle/start.sh "$root_of/bin/dhelix"
starter() { ln -s dhelix "$root_of/bin/$1"; }

if $cuda; then
    put_program src/cli/dhelix dhelix-cuda
    put_program src/cli/dhelix_cpu dhelix
    for program in "${programs[@]:2}"; do
        put_program "$program" "${program##*/}"
        starter "${program##*/}"
    done
    starter dhelix-cpu
    starter cuda-libs
    objdump -p "$root_of/libexec/dhelix-cuda" | sed -n 's/.*NEEDED *\(libcublasLt\.so\.[0-9]*\)$/\1/p' >"$lib/cublaslt"
    # Where a machine has no NCCL the program has to start all the same: this says that there is none.
    nm -D --undefined-only "$root_of/libexec/dhelix-cuda" | sed -n 's/.* \(nccl[A-Za-z]*\).*/\1/p' |
        while read -r call; do
            case $call in
                ncclGetErrorString | ncclGetLastError) echo "const char *$call(void) { return \"no NCCL\"; }" ;;
                *) echo "int $call(void) { return 2; } /* ncclSystemError */" ;;
            esac
        done >"$work/none.c"
    cc -shared -fPIC -Wl,-soname,libnccl.so.2 -o "$lib/none/libnccl.so.2" "$work/none.c"
else
    put_program src/cli/dhelix dhelix
fi
put_libraries "$root_of"/libexec/*
# What CUDA's libraries, the driver and compute-sanitizer ask for by name, of the same C library.
for file in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libutil.so.1 libgcc_s.so.1 libstdc++.so.6 libresolv.so.2; do
    cp -Lu "$(cc -print-file-name="$file")" "$lib/$file"
done
cp -L /lib64/ld-linux-x86-64.so.2 "$lib/"
strip --strip-unneeded "$lib"/lib*.so* 2>/dev/null || true

# ---- python --------------------------------------------------------------------------------
# The files that these modules are made of, no more.
modules="argparse, collections, contextlib, csv, datetime, functools, glob, gzip, hashlib, itertools, json, locale, math, \
os, pathlib, platform, random, re, selectors, shlex, shutil, signal, socket, statistics, struct, subprocess, sys, \
tarfile, tempfile, textwrap, threading, time, traceback, zlib, encodings.ascii, encodings.idna, encodings.latin_1, encodings.utf_8"
put_python() {
    local python=/usr/bin/python3 to=$lib/python
    mkdir -p "$to/bin"
    strip -o "$to/bin/python3" "$(readlink -f "$python")"
    "$python" -I -S -c "import $modules
import sys
at = [m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', None)]
for folder in sys.path:
    for file in at + [folder + '/site.py', folder + '/_sysconfigdata__x86_64-linux-gnu.py', folder + '/codecs.py']:
        if file.startswith(folder + '/python3') or not file.startswith(folder): continue
        print(file, f'lib/python{sys.version_info[0]}.{sys.version_info[1]}/' + file[file.index('/python3') + 1:].split('/', 1)[1])
        " | sort -u | while read -r file at; do
        [ -e "$file" ] || continue
        mkdir -p "$to/$(dirname "$at")"
        cp -L "$file" "$to/$at"
    done
    put_libraries "$to/bin/python3" $(find "$to" -name '*.so')
}
put_python
starter python3

# ---- text, jobs ----------------------------------------------------------------------------
cp -r examples clusters "$root_of/"
cp LICENSE "$root_of/"
cp scripts/bundle/README.md "$root_of/README.md"
if $cuda; then
    cp -r scripts/gpu_check "$root_of/share/"
    cp docs/reference/gpu-check.md "$root_of/"
    cp bench/overlap/run.py "$root_of/share/gpu_check/overlap.py"
    find "$root_of/share" -name '__pycache__' -prune -exec rm -rf {} +
    printf '#!/bin/sh\n# gpu-check.md\nhere=$(cd "$(dirname "$0")" && pwd) || exit 1\nexec sh "$here/bin/python3" "$here/share/gpu_check/gpu_check.py" "$@"\n' >"$root_of/gpu_check.sh"
    chmod +x "$root_of/gpu_check.sh"
fi
# What each library is of: their licences want it said.
(cd "$lib" && for file in *.so*; do
    package=$(dpkg-query -S "*/$file" 2>/dev/null | head -1 | cut -d: -f1) || true
    echo "$file ${package:-unknown} $(dpkg-query -W -f='${Version}' "${package:-none}" 2>/dev/null || true)"
done) >"$root_of/share/libraries.txt"

archive=$folder/$name.tar.gz
tar -C "$work" --owner=0 --group=0 --sort=name -cf - "$name" | gzip -9n >"$archive"
bytes=$(stat -c %s "$archive")
echo "$archive: $(awk -v n="$bytes" 'BEGIN { printf "%.1f MB", n / 1e6 }') packed, $(du -sm "$root_of" | cut -f1) MiB unpacked"
[ "$bytes" -le "$most_bytes" ] || die "$archive has more than $((most_bytes / 1000000)) MB"
