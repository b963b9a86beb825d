# conformance/template as C, for `slmoe new`.
set(NEW_FILES backend.c CMakeLists.txt README.md)
set(NEW_FROM ${CMAKE_SOURCE_DIR}/conformance/template)
list(TRANSFORM NEW_FILES PREPEND ${NEW_FROM}/ OUTPUT_VARIABLE NEW_PATHS)
add_custom_command(
  OUTPUT ${CMAKE_BINARY_DIR}/new_files.c
  COMMAND ${CMAKE_COMMAND} -DOUT=${CMAKE_BINARY_DIR}/new_files.c -DFROM=${NEW_FROM} "-DFILES=${NEW_FILES}"
          -P ${CMAKE_SOURCE_DIR}/conformance/cmake/embed.cmake
  DEPENDS ${NEW_PATHS} ${CMAKE_SOURCE_DIR}/conformance/cmake/embed.cmake VERBATIM)
# Two programs compile it: made once, before both.
add_custom_target(new_files DEPENDS ${CMAKE_BINARY_DIR}/new_files.c)
