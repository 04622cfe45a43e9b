# What `cmake --install` puts where: the program (src/cli), one library made of all
# layers (static and shared), public headers, dhelix.pc, the manual page, completions
# for shells, documents and examples.
if(NOT TARGET dh_base)
  return()
endif()

# ---- one library from the layers --------------------------------------------------
set(layer_libs "")
set(objects "")
foreach(layer IN LISTS DH_LAYERS)
  if(NOT EXISTS ${CMAKE_SOURCE_DIR}/src/${layer}/CMakeLists.txt)
    continue()
  endif()
  get_property(targets DIRECTORY ${CMAKE_SOURCE_DIR}/src/${layer} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type MATCHES "STATIC_LIBRARY|OBJECT_LIBRARY")
      list(APPEND objects $<TARGET_OBJECTS:${target}>)
    endif()
    if(type STREQUAL "STATIC_LIBRARY")
      list(APPEND layer_libs ${target})
    endif()
  endforeach()
endforeach()

add_library(dhelix_static STATIC ${objects})
add_library(dhelix_shared SHARED ${objects})
# For what the layers link; the archives themselves have nothing left to add.
target_link_libraries(dhelix_shared PRIVATE ${layer_libs})
foreach(library dhelix_static dhelix_shared)
  set_target_properties(${library} PROPERTIES OUTPUT_NAME dhelix LINKER_LANGUAGE C
    ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
endforeach()
# The soname changes with every minor version while the major one is 0.
set_target_properties(dhelix_shared PROPERTIES VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

install(TARGETS dhelix_static dhelix_shared
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/dhelix DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")

# ---- dhelix.pc: what a program linked statically needs besides -------------------------
set(pc_requires "")
set(pc_libs -lm)
foreach(lib IN LISTS layer_libs)
  get_target_property(links ${lib} LINK_LIBRARIES)
  foreach(link IN LISTS links)
    if(NOT link OR link STREQUAL "dh_flags" OR link IN_LIST layer_libs)
      continue()
    elseif(link MATCHES "^PkgConfig::(.+)$")
      list(APPEND pc_requires ${${CMAKE_MATCH_1}_MODULE_NAME})
    elseif(link MATCHES "^OpenMP::")
      list(APPEND pc_libs ${OpenMP_C_FLAGS})
    elseif(link MATCHES "^Threads::")
      list(APPEND pc_libs -pthread)
    elseif(link MATCHES "^MPI::")
      list(APPEND pc_requires ompi-c)
    elseif(link MATCHES "/lib([^/]+)\\.(so|a)$")
      list(APPEND pc_libs -l${CMAKE_MATCH_1})
    elseif(link MATCHES "^[A-Za-z0-9_+-]+$" AND NOT link MATCHES "^dh_")
      list(APPEND pc_libs -l${link})
    else()
      message(FATAL_ERROR "DhelixInstall: ${lib} links ${link}: say here what that is in dhelix.pc")
    endif()
  endforeach()
endforeach()
list(REMOVE_DUPLICATES pc_requires)
list(REMOVE_DUPLICATES pc_libs)
# Relative, so that an installed tree may move.
set(pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH DH_PC_TO_PREFIX /${pc_folder} /)
string(REGEX REPLACE "/$" "" DH_PC_TO_PREFIX "${DH_PC_TO_PREFIX}")
list(JOIN pc_requires " " DH_PC_REQUIRES)
list(JOIN pc_libs " " DH_PC_LIBS)
configure_file(cmake/dhelix.pc.in dhelix.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/dhelix.pc DESTINATION ${pc_folder})

# ---- manual page, documents, examples ------------------------------------------------
if(TARGET dhelix)
  set(page ${CMAKE_BINARY_DIR}/dhelix.1)
  add_custom_command(OUTPUT ${page}
    COMMAND ${CMAKE_COMMAND} -DDHELIX=$<TARGET_FILE:dhelix> -DVERSION=${PROJECT_VERSION}
      -DTEMPLATE=${CMAKE_SOURCE_DIR}/docs/dhelix.1.in -DOUT=${page}
      -P ${CMAKE_SOURCE_DIR}/cmake/MakeMan.cmake
    DEPENDS dhelix docs/dhelix.1.in cmake/MakeMan.cmake
    COMMENT "Generating dhelix.1" VERBATIM)
  add_custom_target(man ALL DEPENDS ${page})
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  # What shells complete, from the same tables.
  set(completions "")
  foreach(shell bash zsh)
    set(script ${CMAKE_BINARY_DIR}/dhelix.${shell})
    add_custom_command(OUTPUT ${script}
      COMMAND dhelix completion ${shell} > ${script} DEPENDS dhelix
      COMMENT "Generating dhelix.${shell}" VERBATIM)
    list(APPEND completions ${script})
  endforeach()
  add_custom_target(completions ALL DEPENDS ${completions})
  install(FILES ${CMAKE_BINARY_DIR}/dhelix.bash RENAME dhelix
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${CMAKE_BINARY_DIR}/dhelix.zsh RENAME _dhelix
    DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
endif()
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")
install(DIRECTORY examples clusters validation DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
