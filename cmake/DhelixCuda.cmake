# Kernels for CUDA: with nvcc they are compiled for GPUs; with a C++ compiler they are compiled for
# the host too, for their tests (src/run/cuda/README.md).

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
