# The cuda device: with nvcc it is compiled for GPUs; with a C++ compiler it is compiled for the host
# too, for its tests (src/run/cuda/README.md).

# ---- GPUs ----------------------------------------------------------------------------------
# AUTO: the program has the device where nvcc, CUDA's runtime and cuBLASLt are found; what is missing
# is said, and what can be compiled without it is by target cuda_kernels. ON: it has it, and it is an
# error when something is missing.
set(DH_CUDA AUTO CACHE STRING "device cuda: AUTO (where CUDA is found), ON or OFF")
set(DH_CUDA_ARCHITECTURES "80;90a" CACHE STRING "compute capabilities to compile for; code of the last for later ones")

# Some 35 MB, which a bundle holds once (scripts/bundle.sh). CUDA's runtime is then a library too: a
# launch that fails is known to one runtime alone.
option(DH_CUDA_KERNELS_APART "kernels for GPUs as a shared library, for several programs" OFF)

# Without what it needs there is no device, or no build.
function(dh_cuda_lacks what)
  if(DH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "DH_CUDA is ON and there is no ${what}")
  endif()
  message(STATUS "device cuda is left out: there is no ${what}")
endfunction()

if(NOT DH_CUDA STREQUAL "OFF")
  find_program(DH_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT DH_NVCC)
    dh_cuda_lacks("nvcc: put it on the path, or give -DDH_NVCC=<nvcc>")
  endif()
endif()
if(DH_NVCC AND NOT DH_CUDA STREQUAL "OFF")
  set(cuda_flags -std=c++17 -O3 -lineinfo -I${CMAKE_SOURCE_DIR}/include -I${CMAKE_SOURCE_DIR}/src
    -Xcompiler=-fPIC$<$<NOT:$<BOOL:${DH_CUDA_KERNELS_APART}>>:,-fvisibility=hidden> -Werror=all-warnings)
  foreach(arch IN LISTS DH_CUDA_ARCHITECTURES)
    list(APPEND cuda_flags -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
  if("90a" IN_LIST DH_CUDA_ARCHITECTURES)
    list(APPEND cuda_flags -DDH_SM90A)
  endif()
  # Code of a letter (90a) is for that GPU alone; what later ones translate has none.
  list(GET DH_CUDA_ARCHITECTURES -1 newest)
  string(REGEX REPLACE "[a-z]$" "" newest "${newest}")
  list(APPEND cuda_flags -gencode arch=compute_${newest},code=compute_${newest})
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/run/cuda/kernels/*.cu)
  set(cuda_objects "")
  foreach(source IN LISTS cuda_sources)
    get_filename_component(name ${source} NAME_WE)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
      COMMAND ${DH_NVCC} ${cuda_flags} -MD -MF ${object}.d -MT cuda/${name}.o -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d COMMENT "Compiling ${name}.cu for GPUs" VERBATIM)
    list(APPEND cuda_objects ${object})
  endforeach()
  add_custom_target(cuda_kernels DEPENDS ${cuda_objects})

  # Headers and libraries: of the CUDA that nvcc is of, as NVIDIA installs it and as its Python packages
  # lie (libraries by their versions alone). NCCL is a package of its own: beside CUDA, in the system's
  # folders, or where it is told.
  get_filename_component(cuda_root ${DH_NVCC} REALPATH)
  get_filename_component(cuda_root ${cuda_root} DIRECTORY)
  get_filename_component(cuda_root ${cuda_root} DIRECTORY)
  set(cuda_libs ${cuda_root}/lib ${cuda_root}/lib64)
  find_path(DH_CUDA_INCLUDE cublasLt.h HINTS ${cuda_root}/include /usr/local/cuda/include NO_DEFAULT_PATH)
  if(DH_CUDA_KERNELS_APART)
    find_library(DH_CUDART NAMES cudart libcudart.so.13 libcudart.so.12 HINTS ${cuda_libs})
  else()
    find_library(DH_CUDART cudart_static HINTS ${cuda_libs})
  endif()
  find_library(DH_CUBLASLT NAMES cublasLt libcublasLt.so.13 libcublasLt.so.12 HINTS ${cuda_libs})
  find_path(DH_NCCL_INCLUDE nccl.h HINTS ${DH_CUDA_INCLUDE} ${cuda_root}/include ${cuda_root}/../nccl/include ENV NCCL_HOME
    PATHS /usr/local/include /usr/include PATH_SUFFIXES include)
  find_library(DH_NCCL NAMES nccl libnccl.so.2 HINTS ${cuda_libs} ${cuda_root}/../nccl/lib ENV NCCL_HOME PATH_SUFFIXES lib)
  if(DH_NCCL_INCLUDE AND NOT DH_NCCL)
    message(STATUS "nccl.h and no libnccl (DH_NCCL): NCCL is left out")
  elseif(NOT DH_NCCL_INCLUDE)
    message(STATUS "no nccl.h (DH_NCCL_INCLUDE): ranks on GPUs communicate through the host")
  endif()

  # The rest, in C; and the host's runtime against CUDA's declarations, which it has to match.
  if(DH_CUDA_INCLUDE)
    file(GLOB cuda_device CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/run/cuda/*.c)
    file(GLOB cuda_host CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/run/cuda/host/*.c)
    add_library(cuda_device OBJECT EXCLUDE_FROM_ALL ${cuda_device})
    add_library(cuda_host_declared OBJECT EXCLUDE_FROM_ALL ${cuda_host})
    foreach(target cuda_device cuda_host_declared)
      target_include_directories(${target} SYSTEM PRIVATE ${DH_CUDA_INCLUDE})
      target_link_libraries(${target} PRIVATE dh_flags)
      if(DH_NCCL_INCLUDE)
        target_include_directories(${target} SYSTEM PRIVATE ${DH_NCCL_INCLUDE})
      endif()
    endforeach()
    if(DH_NCCL_INCLUDE AND DH_NCCL)
      target_compile_definitions(cuda_device PRIVATE DH_HAVE_NCCL)
    endif()
    if(NOT DH_NCCL_INCLUDE)
      list(FILTER cuda_host EXCLUDE REGEX "/(nccl|sums)\\.c$")
      set_target_properties(cuda_host_declared PROPERTIES SOURCES "${cuda_host}")
    endif()
    add_dependencies(cuda_kernels cuda_device cuda_host_declared)
  endif()

  if(NOT DH_CUDA_INCLUDE)
    dh_cuda_lacks("cublasLt.h beside nvcc: give -DDH_CUDA_INCLUDE=<folder>; target cuda_kernels has the kernels alone")
  elseif(NOT DH_CUDART)
    dh_cuda_lacks("CUDA's runtime (libcudart_static): give -DDH_CUDART=<file>; target cuda_kernels compiles what would be linked")
  elseif(NOT DH_CUBLASLT)
    dh_cuda_lacks("libcublasLt: give -DDH_CUBLASLT=<file>; target cuda_kernels compiles what would be linked")
  else()
    if(DH_CUDA_KERNELS_APART)
      add_library(dhelix_gpu SHARED ${cuda_objects})
      set_target_properties(dhelix_gpu PROPERTIES LINKER_LANGUAGE C)
      target_link_libraries(dhelix_gpu PRIVATE ${DH_CUDART} stdc++)
      add_library(dh_cuda STATIC $<TARGET_OBJECTS:cuda_device>)
      target_link_libraries(dh_cuda PUBLIC dhelix_gpu)
    else()
      add_library(dh_cuda STATIC $<TARGET_OBJECTS:cuda_device> ${cuda_objects})
    endif()
    set_target_properties(dh_cuda PROPERTIES LINKER_LANGUAGE C)
    target_link_libraries(dh_cuda PUBLIC dh_cpu ${DH_CUDART} ${DH_CUBLASLT} Threads::Threads dl rt stdc++)
    if(DH_NCCL_INCLUDE AND DH_NCCL)
      target_link_libraries(dh_cuda PUBLIC ${DH_NCCL})
      message(STATUS "device cuda: ${DH_NVCC}, ${DH_CUBLASLT}, ${DH_NCCL}")
    else()
      message(STATUS "device cuda: ${DH_NVCC}, ${DH_CUBLASLT}, without NCCL")
    endif()
  endif()
endif()

# ---- the host ------------------------------------------------------------------------------
# C++ of the same make as C, with the same flags: sanitizers are among them.
if(NOT CMAKE_CXX_COMPILER AND CMAKE_C_COMPILER_ID MATCHES "Clang")
  find_program(DH_CLANGXX clang++)
  if(DH_CLANGXX)
    set(CMAKE_CXX_COMPILER ${DH_CLANGXX})
  endif()
endif()
include(CheckLanguage)
check_language(CXX)
if(CMAKE_CXX_COMPILER)
  set(CMAKE_CXX_FLAGS "${CMAKE_C_FLAGS}" CACHE STRING "as for C")
  set(CMAKE_CXX_FLAGS_DEBUG "${CMAKE_C_FLAGS_DEBUG}" CACHE STRING "as for C")
  set(CMAKE_CXX_STANDARD 17)
  set(CMAKE_CXX_STANDARD_REQUIRED ON)
  set(CMAKE_CXX_EXTENSIONS OFF)
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG -g1")
  set(CMAKE_CXX_VISIBILITY_PRESET hidden)
  enable_language(CXX)
endif()

# dh_cuda_on_host(<target> <sources>): kernels as a library for the host, and what runs them, on
# streams of <target>_runtime: CUDA's calls and cuBLASLt's, for the host.
function(dh_cuda_on_host name)
  file(GLOB runtime CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/run/cuda/host/*.c)
  add_library(${name}_runtime STATIC ${runtime})
  target_include_directories(${name}_runtime SYSTEM PUBLIC ${CMAKE_SOURCE_DIR}/src/run/cuda/host/include)
  target_link_libraries(${name}_runtime PUBLIC dh_flags dh_base Threads::Threads)
  add_library(${name} STATIC ${ARGN} ${CMAKE_SOURCE_DIR}/src/run/cuda/host/fibres.cc
    ${CMAKE_SOURCE_DIR}/src/run/cuda/host/matrices.cc ${CMAKE_SOURCE_DIR}/src/run/cuda/host/warpgroups.cc)
  target_include_directories(${name} PUBLIC
    $<TARGET_PROPERTY:${name}_runtime,INTERFACE_INCLUDE_DIRECTORIES>)
  target_link_libraries(${name} PUBLIC $<LINK_ONLY:${name}_runtime>)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
  target_compile_options(${name} PRIVATE -fno-exceptions -fno-rtti -fno-threadsafe-statics
    -Wall -Wextra -Wshadow -Wno-unused-parameter $<$<BOOL:${DH_WERROR}>:-Werror>)
endfunction()
