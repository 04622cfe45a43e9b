# cmake -DDHELIX=<binary> -DTEMPLATE=<dhelix.1.in> -DOUT=<dhelix.1> -DVERSION=<x.y.z> -P MakeMan.cmake
#
# Fills the manual page from what the program says about itself, so that the page
# never lags behind it: @COMMANDS@ (help of every command) and @SETTINGS@.

function(help_text topic var)
  execute_process(COMMAND ${DHELIX} help ${topic} OUTPUT_VARIABLE text RESULT_VARIABLE result)
  if(result)
    message(FATAL_ERROR "${DHELIX} help ${topic} failed: ${result}")
  endif()
  set(${var} "${text}" PARENT_SCOPE)
endfunction()

# Plain text as a troff display: nothing in it is an instruction.
function(as_display text var)
  string(REPLACE "\\" "\\e" text "${text}")
  string(REPLACE "-" "\\-" text "${text}")
  string(REGEX REPLACE "\n([.'])" "\n\\\\&\\1" text "\n${text}")
  string(STRIP "${text}" text)
  set(${var} ".EX\n${text}\n.EE" PARENT_SCOPE)
endfunction()

# The overview lists the commands as lines "  name   what it does".
help_text("" overview)
string(REPLACE ";" "," overview "${overview}") # it would divide a list
string(REGEX MATCHALL "\n  [a-z-]+ +[^\n]+" lines "${overview}")
if(NOT lines)
  message(FATAL_ERROR "${DHELIX} help lists no commands")
endif()
set(COMMANDS "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^\n  ([a-z-]+) .*" "\\1" name "${line}")
  help_text(${name} help)
  as_display("${help}" help)
  string(APPEND COMMANDS ".SS ${name}\n${help}\n")
endforeach()

help_text(job settings)
as_display("${settings}" SETTINGS)
configure_file(${TEMPLATE} ${OUT} @ONLY)
