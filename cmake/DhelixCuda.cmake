# Kernels for CUDA: with nvcc they are compiled for GPUs; with a C++ compiler they are compiled for
# the host too, for their tests (src/run/cuda/README.md).

# ---- GPUs ----------------------------------------------------------------------------------
# AUTO: target cuda_kernels is there where nvcc is. ON: part of all, and an error without nvcc.
set(DH_CUDA AUTO CACHE STRING "kernels compiled for GPUs: AUTO, ON or OFF")
set(DH_CUDA_ARCHITECTURES "80;90" CACHE STRING "compute capabilities to compile for; code of the last for later ones")
if(NOT DH_CUDA STREQUAL "OFF")
  find_program(DH_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT DH_NVCC AND DH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "DH_CUDA is ON and there is no nvcc: put it on the path, or give -DDH_NVCC=<nvcc>")
  endif()
endif()
if(DH_NVCC AND NOT DH_CUDA STREQUAL "OFF")
  set(cuda_flags -std=c++17 -O3 -lineinfo -I${CMAKE_SOURCE_DIR}/include -I${CMAKE_SOURCE_DIR}/src
    -Xcompiler=-fPIC,-fvisibility=hidden -Werror=all-warnings)
  foreach(arch IN LISTS DH_CUDA_ARCHITECTURES)
    list(APPEND cuda_flags -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
  list(GET DH_CUDA_ARCHITECTURES -1 newest)
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
  set(cuda_all "")
  if(DH_CUDA STREQUAL "ON")
    set(cuda_all ALL)
  endif()
  add_custom_target(cuda_kernels ${cuda_all} DEPENDS ${cuda_objects})
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
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG -g")
  set(CMAKE_CXX_VISIBILITY_PRESET hidden)
  enable_language(CXX)
endif()

# dh_cuda_on_host(<target> <sources>): kernels as a library for the host, and what runs them.
function(dh_cuda_on_host name)
  add_library(${name} STATIC ${ARGN} ${CMAKE_SOURCE_DIR}/src/run/cuda/host/fibres.cc)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
  target_compile_options(${name} PRIVATE -fno-exceptions -fno-rtti -fno-threadsafe-statics
    -Wall -Wextra -Wshadow -Wno-unused-parameter $<$<BOOL:${DH_WERROR}>:-Werror>)
endfunction()
