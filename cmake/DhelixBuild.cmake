# Compiler settings and the two functions every folder uses.
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden) # but for DH_API: include/dhelix/export.h
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Lines for backtraces and profilers; variables for a debugger are in preset dev.
set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG -g1")
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C)

add_library(dh_flags INTERFACE)
target_compile_definitions(dh_flags INTERFACE _GNU_SOURCE DH_VERSION="${PROJECT_VERSION}")
target_include_directories(dh_flags INTERFACE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
target_compile_options(dh_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
  -Wvla -Wpointer-arith -Wno-unused-parameter
  $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes> $<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes>)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  # Messages are cut to their buffers on purpose; the warning depends on -O and -fsanitize.
  target_compile_options(dh_flags INTERFACE -Wno-format-truncation)
endif()
if(DH_WERROR)
  target_compile_options(dh_flags INTERFACE -Werror)
endif()
target_link_libraries(dh_flags INTERFACE m)

# dh_library(<name> [DEPS <dh libs>] [PKGS <pkg-config names>] [LIBS <plain libs>])
# One static library from the *.c of the calling folder.
function(dh_library name)
  cmake_parse_arguments(A "" "" "DEPS;PKGS;LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC dh_flags ${A_DEPS} ${A_LIBS})
  foreach(pkg IN LISTS A_PKGS)
    string(MAKE_C_IDENTIFIER "PKG_${pkg}" var)
    if(NOT TARGET PkgConfig::${var})
      pkg_check_modules(${var} REQUIRED IMPORTED_TARGET GLOBAL ${pkg})
    endif()
    target_link_libraries(${name} PUBLIC PkgConfig::${var})
  endforeach()
endfunction()

# dh_test(<name> SOURCES <files> [LIBS <libs>] [LABELS <labels>] [TIMEOUT <s>] [CASES <cases>])
# One cmocka executable, run by CTest from the repository root, so that tests
# name files as tests/data/...; with CASES once for each, <name>_<case>, which is its argument.
function(dh_test name)
  cmake_parse_arguments(A "" "TIMEOUT;COST" "SOURCES;LIBS;LABELS;CASES" ${ARGN})
  if(NOT TARGET PkgConfig::CMOCKA)
    pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET GLOBAL cmocka)
  endif()
  add_executable(${name} ${A_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${A_LIBS} PkgConfig::CMOCKA)
  set(tests)
  foreach(case IN LISTS A_CASES)
    add_test(NAME ${name}_${case} COMMAND ${name} ${case} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    list(APPEND tests ${name}_${case})
  endforeach()
  if(NOT A_CASES)
    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set(tests ${name})
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 1500)
  endif()
  set_tests_properties(${tests} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}")
  if(A_COST)
    set_tests_properties(${tests} PROPERTIES COST ${A_COST})
  endif()
  dh_fast_link(${name})
  set(threads FALSE)
  if("tsan" IN_LIST A_LABELS OR "comm" IN_LIST A_LABELS)
    set(threads TRUE)
    add_dependencies(thread_tests ${name})
  endif()
  if(NOT ("long" IN_LIST A_LABELS OR "deep" IN_LIST A_LABELS OR "full" IN_LIST A_LABELS))
    add_dependencies(short_tests ${name})
    if(threads)
      add_dependencies(short_thread_tests ${name})
    endif()
  endif()
endfunction()

# What a run of tests needs, and nothing else, as `--target`: those of the thread sanitizer, and of
# both kinds those that run under sanitizers without --ci.
add_custom_target(thread_tests)
add_custom_target(short_tests)
add_custom_target(short_thread_tests)

# Tests are some two hundred programs with the same libraries: linked by gold, where binutils has
# it, in half the time.
find_program(DH_GOLD ld.gold)
function(dh_fast_link name)
  if(DH_GOLD)
    target_link_options(${name} PRIVATE -fuse-ld=gold)
  endif()
endfunction()

# dh_embed(<library> <symbol> <files>): the files' text becomes part of the library, as an array
# of dh_embedded (src/base/embedded.h) sorted by name.
function(dh_embed library symbol)
  list(SORT ARGN)
  list(JOIN ARGN "," joined)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.c)
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DSYMBOL=${symbol} -DFILES=${joined}
      -P ${CMAKE_SOURCE_DIR}/cmake/EmbedText.cmake
    DEPENDS ${ARGN} ${CMAKE_SOURCE_DIR}/cmake/EmbedText.cmake
    COMMENT "Generating ${symbol}.c" VERBATIM)
  target_sources(${library} PRIVATE ${out})
endfunction()
