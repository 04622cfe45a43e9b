#!/bin/sh
# Starts a program of the bundle, the one this file is called by: bin/dhelix, bin/dhelix-cpu, ...
#
# Programs run on the bundle's own C library and loader, whatever the machine has. Found on the
# machine, in this order: folders of DHELIX_CUDA_LIBS (with ":" between them) and no others; those of
# LD_LIBRARY_PATH, CUDA_HOME, CUDA_PATH, nvcc's folder, /usr/local/cuda*, conda's, what ldconfig knows,
# PyTorch's wheels. `bin/dhelix` has device cuda where cuBLASLt is found, else it is the program for
# cpus alone. The driver's libcuda is looked for in LD_LIBRARY_PATH, DHELIX_CUDA_LIBS, the system's
# folders and what ldconfig knows. DHELIX_PYTHON names the python3 whose wheels are looked at;
# DHELIX_CUDA_LIBS="" looks nowhere. For tests, DHELIX_CUDA_PLACES and DHELIX_DRIVER_PLACES: in place
# of /usr/local/cuda* and of the driver's folders.
name=${0##*/}
self=$0
while [ -L "$self" ]; do
    to=$(readlink "$self")
    case $to in /*) self=$to ;; *) self=${self%/*}/$to ;; esac
done
here=$(cd "${self%/*}/.." && pwd) || exit 1
own=$here/lib
[ -d "$own" ] || { echo "$name: $here is no whole bundle: there is no lib" >&2; exit 1; }
loader=$own/ld-linux-x86-64.so.2
wanted=$(cat "$own/cublaslt" 2>/dev/null) # libcublasLt.so.13: what it was linked with; none: for cpus

folders=
add() { # folder
    case ":$folders:" in *":$1:"*) ;; *) folders=${folders:+$folders:}$1 ;; esac
}
has() { # folder, file
    [ -e "$1/$2" ] && add "$1"
}
has_both() { [ -n "$cublas" ] && [ -n "$nccl" ]; }
look() { # folder
    [ -n "$cublas" ] || { has "$1" "$wanted" && cublas=$1; }
    [ -n "$nccl" ] || { has "$1" libnccl.so.2 && nccl=$1; }
    has_both
}
look_under() { # CUDA's folder
    look "$1/lib64" || look "$1/targets/x86_64-linux/lib" || look "$1/lib"
}
known() { # expression for names: the files that ldconfig knows
    for tool in ldconfig /sbin/ldconfig /usr/sbin/ldconfig; do
        command -v "$tool" >/dev/null 2>&1 || continue
        "$tool" -p 2>/dev/null | sed -n "s/^[[:space:]]*\($1\) .*x86-64.* => //p"
        break
    done
}
look_in_ldconfig() {
    for file in $(known "$wanted\|libnccl\.so\.2"); do look "${file%/*}"; done
    has_both
}
# The loader is given folders, and looks at no LD_LIBRARY_PATH beside them.
look_in_path() {
    IFS=:
    for folder in $LD_LIBRARY_PATH; do look "$folder"; done
    unset IFS
    has_both
}
# Of every python that may have PyTorch: nvidia/cublas/lib and the like, or nvidia/cu13/lib.
packages_of_python() {
    for python in "$DHELIX_PYTHON" "$VIRTUAL_ENV/bin/python3" "$CONDA_PREFIX/bin/python3" python3 python; do
        case $python in '' | /bin/python3) continue ;; esac
        command -v "$python" >/dev/null 2>&1 || continue
        "$python" -c 'import site, sys
for folder in sys.path + [site.getusersitepackages()]: print(folder)' 2>/dev/null
    done
    for folder in /usr/local/lib/python3*/dist-packages /usr/local/lib/python3*/site-packages /usr/lib/python3*/site-packages \
        /usr/lib/python3/dist-packages /opt/*/lib/python3*/site-packages /opt/*/.venv/lib/python3*/site-packages; do
        echo "$folder"
    done
}
look_in_wheels() {
    packages_of_python | while read -r folder; do
        case $folder in '' | *.zip) continue ;; esac
        for lib in "$folder"/nvidia/*/lib; do
            if [ -e "$lib/$wanted" ] || [ -e "$lib/libnccl.so.2" ]; then echo "$lib"; fi
        done
    done
}
find_cuda() {
    if [ -n "${DHELIX_CUDA_LIBS+set}" ]; then
        IFS=:
        for folder in $DHELIX_CUDA_LIBS; do look "$folder"; done
        unset IFS
        return
    fi
    look_in_path && return
    for folder in "$CUDA_HOME" "$CUDA_PATH"; do
        if [ -n "$folder" ] && look_under "$folder"; then return; fi
    done
    nvcc=$(command -v nvcc 2>/dev/null) && nvcc=$(readlink -f "$nvcc") && look_under "${nvcc%/bin/*}" && return
    for folder in ${DHELIX_CUDA_PLACES-/usr/local/cuda /usr/local/cuda-*}; do look_under "$folder" && return; done
    if [ -n "$CONDA_PREFIX" ] && look_under "$CONDA_PREFIX"; then return; fi
    look_in_ldconfig && return
    for folder in $(look_in_wheels); do look "$folder" && return; done
}
# The driver's own, which no loader's cache may have where it was mounted into a container. CUDA's
# stubs are of its name, and fail.
find_driver() {
    IFS=:
    set -f
    set -- $LD_LIBRARY_PATH $DHELIX_CUDA_LIBS
    set +f
    unset IFS
    for folder in "$@" ${DHELIX_DRIVER_PLACES-/usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/nvidia/lib64 /usr/local/nvidia/lib \
        /usr/lib/wsl/lib /run/opengl-driver/lib /run/nvidia/driver/usr/lib/x86_64-linux-gnu}; do
        case $folder in */stubs | */stubs/) continue ;; esac
        has "$folder" libcuda.so.1 && { driver=$folder; return; }
    done
    for file in $(known 'libcuda\.so\.1'); do
        add "${file%/*}"
        driver=${file%/*}
        return
    done
}

program=$name
[ "$name" != dhelix-cpu ] || program=dhelix
[ "$name" != python3 ] || program=python3
cublas= nccl= driver=
if [ -n "$wanted" ] && [ "$name" != dhelix-cpu ] && [ "$name" != python3 ]; then
    find_cuda
    find_driver
    if [ "$name" = cuda-libs ]; then
        printf '%s %s\nlibnccl.so.2 %s\nlibcuda.so.1 %s\n' "$wanted" "${cublas:-none}" "${nccl:-none}" "${driver:-none}"
        exit
    fi
    if [ -n "$cublas" ]; then
        [ -n "$nccl" ] || add "$own/none"
        [ "$name" != dhelix ] || program=dhelix-cuda
    elif [ "$name" != dhelix ]; then
        echo "$name: $wanted is nowhere on this machine: give its folder by DHELIX_CUDA_LIBS" >&2
        exit 1
    fi
fi
[ "$name" != cuda-libs ] || { echo "this bundle is for cpus"; exit; }
# Files without the right to be run, or a file system that is mounted noexec.
"$loader" --version >/dev/null 2>&1 || { echo "$name: $loader may not be run: unpack the bundle where programs may be (a file system that is not noexec)" >&2; exit 1; }
if [ "$name" = python3 ]; then
    # -I: nothing of the machine's python; it finds its own files by the folder of its name.
    exec "$loader" --argv0 "$own/python/bin/python3" --library-path "$own" "$own/python/bin/python3" -I "$@"
fi
exec "$loader" --argv0 "$0" --library-path "$own${folders:+:$folders}" "$here/libexec/$program" "$@"
