# Fails if an object defines symbols that the linker may merge with those of other objects: cmake
# -DNM=nm -DOBJECTS="a.o;b.o" -P isa_symbols.cmake
#
# An inline function of a header is compiled into each object that calls it, and one copy is kept. If
# it is that of an object for one instruction set, all other code enters these instructions unasked.
set(mergeable "[^\n]* [WwVvuC] [^\n]*")
list(LENGTH OBJECTS n_objects)
if(n_objects EQUAL 0)
  message(FATAL_ERROR "No objects were given.")
endif()
set(found "")
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND "${NM}" -C --defined-only "${object}" OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  if(NOT symbols MATCHES " [TRDB] ")
    message(FATAL_ERROR "${NM} lists no symbol of ${object}: it cannot be checked.")
  endif()
  string(REPLACE ";" "," symbols "${symbols}")
  string(REGEX MATCHALL "${mergeable}" lines "${symbols}")
  foreach(line IN LISTS lines)
    string(APPEND found "\n  ${object}: ${line}")
  endforeach()
endforeach()
if(found)
  message(FATAL_ERROR "The linker may merge what is built for one instruction set with what every "
                      "machine enters. Make it static, or put it into an unnamed namespace:${found}")
endif()
